// The store of FORMAT.md: a folder on a file system, published by one rename.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ckpt/contest.h"
#include "ckpt/folders.h"
#include "ckpt/manifest.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {
namespace {

/// Each try is lost to another writer's rename.
constexpr int kDirectoryTries = 10;

/// Durable under its name when finished.
class NewFolderFile final : public NewFile {
 public:
  NewFolderFile(FileSystem& fs, const std::string& folder, const std::string& name)
      : fs_(fs), folder_(folder), file_(fs.create(folder + "/" + name)) {}
  void append(std::span<const std::byte> data) override {
    file_->write_at(bytes_, data);
    bytes_ += data.size();
  }
  void finish() override {
    file_->sync();
    fs_.sync_directory(folder_);
  }

 private:
  FileSystem& fs_;
  const std::string folder_;
  const std::unique_ptr<File> file_;
  uint64_t bytes_ = 0;
};

/// Takes the place of `name` when finished. Removes what a repair that died has left; so of two repairs of a
/// file at once, the first one finds its own gone and fails.
class ReplacedFile final : public NewFile {
 public:
  ReplacedFile(FileSystem& fs, const std::string& folder, const std::string& name)
      : fs_(fs), path_(folder + "/" + name), temporary_(name + "." + new_word() + kEnd) {
    for (const std::string& old : fs.list(folder))
      if (old.starts_with(name + ".") && old.ends_with(kEnd)) fs.remove_file(folder + "/" + old);
    file_ = std::make_unique<NewFolderFile>(fs, folder, temporary_);
  }
  void append(std::span<const std::byte> data) override { file_->append(data); }
  void finish() override {
    file_->finish();
    const std::string folder = parent_of(path_), from = folder + "/" + temporary_;
    try {
      fs_.rename(from, path_);
    } catch (const Error&) {
      if (fs_.exists(from)) throw;
      throw Error(ErrorCode::kIo, fmt::format("another repair of {} has begun: let that one end", path_));
    }
    fs_.sync_directory(folder);
  }

 private:
  static constexpr const char* kEnd = ".repair";
  FileSystem& fs_;
  const std::string path_, temporary_;
  std::unique_ptr<NewFolderFile> file_;
};

template <typename Base>
class Folder : public Base {
 public:
  Folder(FileSystem& fs, std::string path) : fs_(fs), path_(std::move(path)) {}
  std::string where() const override { return path_; }
  std::optional<int64_t> named_step() const override { return step_of_name(base_name(path_)); }
  bool has(const std::string& name) override { return fs_.exists(path_ + "/" + name); }
  std::unique_ptr<File> open(const std::string& name) override { return fs_.open_read(path_ + "/" + name); }
  std::vector<std::string> names() override { return fs_.list(path_); }
  bool are_on_disk() const override { return true; }
  std::unique_ptr<NewFile> replace(const std::string& name, uint64_t) override {
    return std::make_unique<ReplacedFile>(fs_, path_, name);
  }

 protected:
  FileSystem& fs_;
  std::string path_;
};

class SavingFolder final : public Folder<SavingFiles> {
 public:
  SavingFolder(FileSystem& fs, const std::string& dir, const StateInfo& state)
      : Folder(fs, saving_directory(dir, state)),
        dir_(dir),
        base_(path_),
        target_(step_directory(dir, state.step)),
        step_(state.step),
        epoch_(state.epoch) {}

  void begin() override {
    make_roots();
    remove_earlier();
    make_place();
  }
  void join() override {
    if (fs_.is_directory(path_)) return;
    make_roots();
    make_place();
  }
  void begin_alone() override {
    make_roots();
    remove_earlier();
    path_ = own_name();
    is_alone_ = true;
    make_place();
  }
  void claim(const std::function<void()>& before_taking_over) override {
    std::string from = base_;
    if (!fs_.exists(from)) {
      const auto claims = claims_of(fs_, dir_, step_, epoch_);
      if (claims.empty()) return lose("there are no files of this save");
      before_taking_over();
      from = saving_root(dir_) + "/" + claims.front();
    }
    const std::string own = own_name();
    try {
      fs_.rename_no_replace(from, own);
    } catch (const Error&) {
      if (fs_.exists(from)) throw;
      return lose("another writer has taken the files of this save");
    }
    path_ = own;
  }
  void release() override {
    if (path_ == base_ || is_published_) return;
    try {
      if (is_alone_)
        discard();
      else if (!fs_.exists(base_) && fs_.exists(path_))
        fs_.rename_no_replace(path_, base_);
    } catch (const Error&) {
      // Retention removes it.
    }
  }
  bool is_lost() override { return is_lost_ || (path_ != base_ && !is_published_ && !fs_.exists(path_)); }
  void settle() override { sync_names(); }
  std::unique_ptr<NewFile> put(const std::string& name, uint64_t) override {
    return std::make_unique<NewFolderFile>(fs_, path_, name);
  }
  void remove(const std::string& name) override { fs_.remove_tree(path_ + "/" + name); }
  void commit(const std::string& text, const std::function<bool()>& is_wanted) override {
    put_text(kCommitName, text);
    if (is_wanted()) return publish(text);
    discard();
    sync_names();
  }

 private:
  void make_roots() {
    make_durable_directory(fs_, dir_);
    // `dir` may have been made without a sync of its parent, which makes its name durable.
    fs_.sync_directory(parent_of(dir_));
    make_durable_directory(fs_, saving_root(dir_));
  }
  void make_place() {
    fs_.make_directory(path_);
    fs_.sync_directory(saving_root(dir_));
  }
  /// Of the same step and epoch. Its writer, if it lives, finds nothing to publish.
  void remove_earlier() {
    std::vector<std::string> earlier = claims_of(fs_, dir_, step_, epoch_);
    if (fs_.exists(base_)) earlier.push_back(base_name(base_));
    for (const std::string& name : earlier) fs_.remove_tree(move_to_trash(fs_, dir_, ".saving/" + name));
  }
  std::string own_name() const { return base_ + "." + new_word(); }
  void discard() { fs_.remove_tree(move_to_trash(fs_, dir_, ".saving/" + base_name(path_))); }
  void sync_names() {
    fs_.sync_directory(dir_);
    fs_.sync_directory(saving_root(dir_));
  }
  void lose(const char* why) {
    is_lost_ = true;
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{}: {}; another writer published it, or a newer attempt of the run has begun",
                            base_, why));
  }

  void publish(const std::string& text) {
    const auto own = read_commit(text);
    ENSURE(own.has_value(), "COMMIT of {} is none", path_);
    // After the claim: an epoch that begins now finds the claim, one that began before has left its mark.
    if (const auto newer = epoch_against(fs_, dir_, own->run_id, epoch_, step_))
      throw Error(
          ErrorCode::kCheckpoint,
          fmt::format(
              "step {} of attempt {} is no part of the run any more: attempt {} went on from step {}; "
              "this writer is out of date",
              step_, epoch_, newer->epoch, newer->step));
    bool is_ours = false;
    try {
      is_ours = rename_into_place(*own, text);
    } catch (const Error&) {
      give_back_replaced();
      throw;
    }
    if (is_ours)
      is_published_ = true;
    else
      give_back_replaced(), discard();
    sync_names();
    for (const std::string& path : replaced_) discard_moved(fs_, dir_, path);
  }

  /// The commit point. What is there is moved to a name of our own and looked at there: what has this name a
  /// moment before may be another. Returns false if another writer has published the same state.
  bool rename_into_place(const CommitId& own, const std::string& text) {
    const auto is_same = [&](const std::string& path) {
      return is_equal(stored_folder(fs_, path), epoch_, own.root);
    };
    for (int i = 0; i < kDirectoryTries; ++i) {
      if (fs_.exists(target_)) {
        if (is_same(target_)) return false;
        const std::string moved = take_away(fs_, dir_, step_);
        if (moved.empty()) continue;
        replaced_.push_back(moved);
        if (is_same(moved)) return false;
      }
      if (!try_move(fs_, path_, target_)) {
        if (fs_.exists(path_)) continue;
        lose("another writer has taken the files of this save");
      }
      if (is_there(text)) return true;
      lose("another writer has taken the files of this save");
    }
    throw Error(ErrorCode::kCheckpoint, fmt::format("{} comes and goes: another writer is at work", target_));
  }
  /// The answer of a rename may be lost and made up for (FileSystem::rename_no_replace). A writer that is
  /// out of date may have moved the checkpoint away and not yet put it back.
  bool is_there(const std::string& text) {
    const auto found = [&] {
      try {
        return fs_.read_text(target_ + "/" + kCommitName) == text;
      } catch (const Error&) {
        return false;
      }
    };
    if (found()) return true;
    restore_moved(fs_, dir_);
    return found();
  }
  void give_back_replaced() {
    for (const std::string& path : std::exchange(replaced_, {})) try_put_back(fs_, dir_, path, step_);
  }

  const std::string dir_, base_, target_;
  const int64_t step_;
  const uint64_t epoch_;
  std::vector<std::string> replaced_;  ///< where the checkpoints are that ours replaces
  bool is_alone_ = false, is_lost_ = false, is_published_ = false;
};

/// Removes superseded checkpoints when `keep` checkpoints of the line that replaced them are safe.
/// `epochs` are those of the checkpoints kept.
void remove_superseded(FileSystem& fs, const std::string& dir, const std::vector<uint64_t>& epochs,
                       int keep) {
  for (const std::string& name : fs.list(dir)) {
    const auto epoch = superseding_epoch(name);
    if (epoch && std::count_if(epochs.begin(), epochs.end(), [&](uint64_t e) { return e >= *epoch; }) >= keep)
      move_to_trash(fs, dir, name);
  }
}

class DirectoryStore final : public Store {
 public:
  DirectoryStore(FileSystem& fs, std::string dir) : fs_(fs), dir_(std::move(dir)) {}
  std::string where() const override { return dir_; }
  std::unique_ptr<SavingFiles> saving(const StateInfo& state) override {
    return std::make_unique<SavingFolder>(fs_, dir_, state);
  }
  std::vector<int64_t> list() override { return list_steps(fs_, dir_); }
  std::unique_ptr<StoredFiles> open(int64_t step) override {
    const std::string path = step_directory(dir_, step);
    return fs_.exists(path) ? stored_folder(fs_, path) : nullptr;
  }
  bool remove(int64_t step, uint64_t epoch) override {
    const std::string moved = take_away(fs_, dir_, step);
    if (moved.empty()) return false;
    const auto commit = commit_of(fs_, moved);
    // A caller that is out of date knows neither what is new nor what a newer epoch goes on from.
    if (commit && (commit->epoch > epoch || has_newer_epoch(fs_, dir_, commit->run_id, epoch))) {
      put_back(fs_, dir_, moved, step);
      return false;
    }
    discard_moved(fs_, dir_, moved);
    fs_.sync_directory(dir_);
    return true;
  }
  void restore() override { restore_moved(fs_, dir_); }
  void set_aside_after(const EpochBegin& begin) override { supersede(fs_, dir_, begin); }
  void clean(const Retention& retention, const std::vector<uint64_t>& kept_epochs) override {
    if (fs_.is_directory(dir_)) remove_superseded(fs_, dir_, kept_epochs, std::max(retention.keep_last, 2));
    sweep_saving(fs_, dir_, [&](const std::string& name) {
      const auto saving = saving_name(name);
      const std::string path = saving_root(dir_) + "/" + name;
      const bool is_current = !retention.current.empty() &&
                              (path == retention.current || path.starts_with(retention.current + "."));
      return is_current || (saving && saving->epoch >= retention.current_epoch);
    });
    empty_trash(fs_, dir_);
  }

 private:
  FileSystem& fs_;
  const std::string dir_;
};

}  // namespace

std::unique_ptr<StoredFiles> stored_folder(FileSystem& fs, const std::string& path) {
  return std::make_unique<Folder<StoredFiles>>(fs, path);
}

std::unique_ptr<Store> directory_store(FileSystem& fs, const std::string& dir) {
  return std::make_unique<DirectoryStore>(fs, dir);
}

// checkpoint.h's functions for a folder.

void prepare_saving(FileSystem& fs, const std::string& dir, const StateInfo& state) {
  DirectoryStore(fs, dir).saving(state)->begin();
}

void remove_save(FileSystem& fs, const std::string& dir, const StateInfo& state) {
  const std::string path = saving_directory(dir, state);
  if (fs.exists(path)) fs.remove_tree(move_to_trash(fs, dir, ".saving/" + base_name(path)));
}

void remove_saves(FileSystem& fs, const std::string& dir, uint64_t epoch) {
  sweep_saving(fs, dir, [&](const std::string& name) {
    const auto saving = saving_name(name);
    return saving && saving->epoch > epoch;
  });
  empty_trash(fs, dir);
}

ShardReceipt write_shard(FileSystem& fs, const std::string& saving_dir, const std::string& file_name,
                         const StateInfo& state, std::span<const Tensor> tensors,
                         std::span<const ChunkData> chunks, ChunkSource& source) {
  SavingFolder saving(fs, parent_of(parent_of(saving_dir)), state);
  ENSURE(saving.where() == saving_dir, "{} for a save in {}", saving_dir, saving.where());
  return write_shard(saving, file_name, state, tensors, chunks, source);
}

std::string publish(FileSystem& fs, const std::string& dir, const StateInfo& state,
                    std::span<const Tensor> tensors, std::span<const ShardReceipt> receipts,
                    const std::function<void()>& before_rename) {
  DirectoryStore store(fs, dir);
  return publish(store, state, tensors, receipts, before_rename);
}

std::vector<int64_t> retain(FileSystem& fs, const std::string& dir, int keep_last, int64_t keep_every_steps,
                            const std::string& current_saving) {
  DirectoryStore store(fs, dir);
  return retain(store,
                {.keep_last = keep_last, .keep_every_steps = keep_every_steps, .current = current_saving});
}

std::unique_ptr<Checkpoint> Checkpoint::open(FileSystem& fs, const std::string& given_path) {
  std::string path = given_path;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return open(stored_folder(fs, path));
}

std::unique_ptr<Checkpoint> open_latest(
    FileSystem& fs, const std::string& dir, int64_t max_step,
    const std::function<void(const std::string&, const std::string&)>& skipped) {
  DirectoryStore store(fs, dir);
  return open_latest(store, max_step, skipped);
}

}  // namespace trainctl::ckpt
