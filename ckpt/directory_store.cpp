// The store of FORMAT.md: a folder on a file system, published by one rename.
#include <fmt/format.h>

#include <algorithm>

#include "ckpt/folders.h"
#include "ckpt/manifest.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {
namespace {

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

/// Takes the place of `name` when finished.
class ReplacedFile final : public NewFile {
 public:
  ReplacedFile(FileSystem& fs, const std::string& folder, const std::string& name)
      : fs_(fs), folder_(folder), name_(name) {
    if (fs.exists(folder + "/" + temporary())) fs.remove_file(folder + "/" + temporary());
    file_ = std::make_unique<NewFolderFile>(fs, folder, temporary());
  }
  void append(std::span<const std::byte> data) override { file_->append(data); }
  void finish() override {
    file_->finish();
    fs_.rename(folder_ + "/" + temporary(), folder_ + "/" + name_);
    fs_.sync_directory(folder_);
  }

 private:
  std::string temporary() const { return name_ + ".repair"; }
  FileSystem& fs_;
  const std::string folder_, name_;
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
  std::unique_ptr<NewFile> replace(const std::string& name, uint64_t) override {
    return std::make_unique<ReplacedFile>(fs_, path_, name);
  }

 protected:
  FileSystem& fs_;
  const std::string path_;
};

class SavingFolder final : public Folder<SavingFiles> {
 public:
  /// Published as `target`, a folder of `dir`.
  SavingFolder(FileSystem& fs, const std::string& path, const std::string& dir, const std::string& target)
      : Folder(fs, path), dir_(dir), target_(target) {}

  void begin() override {
    make_durable_directory(fs_, dir_);
    // `dir` may have been made without a sync of its parent, which makes its name durable.
    fs_.sync_directory(parent_of(dir_));
    make_durable_directory(fs_, saving_root(dir_));
    if (fs_.exists(path_)) fs_.remove_tree(move_to_trash(fs_, dir_, ".saving/" + base_name(path_)));
    fs_.make_directory(path_);
    fs_.sync_directory(saving_root(dir_));
  }
  void join() override {
    if (fs_.is_directory(path_)) return;
    make_durable_directory(fs_, dir_);
    fs_.sync_directory(parent_of(dir_));
    make_durable_directory(fs_, saving_root(dir_));
    fs_.make_directory(path_);
    fs_.sync_directory(saving_root(dir_));
  }
  std::unique_ptr<NewFile> put(const std::string& name, uint64_t) override {
    return std::make_unique<NewFolderFile>(fs_, path_, name);
  }
  void remove(const std::string& name) override { fs_.remove_tree(path_ + "/" + name); }
  void commit(const std::string& text, const std::function<bool()>& is_wanted) override {
    put_text(kCommitName, text);
    if (is_wanted())
      rename_into_place();
    else
      fs_.remove_tree(path_);
  }

 private:
  /// The commit point. An existing folder is moved to .trash/ first, and back if the rename fails.
  void rename_into_place() {
    const std::string replaced = fs_.exists(target_) ? move_to_trash(fs_, dir_, base_name(target_)) : "";
    try {
      fs_.rename_no_replace(path_, target_);
    } catch (const Error&) {
      if (!replaced.empty()) {
        fs_.rename_no_replace(replaced, target_);
        fs_.sync_directory(dir_);
      }
      throw;
    }
    fs_.sync_directory(dir_);
    fs_.sync_directory(saving_root(dir_));
  }

  const std::string dir_, target_;
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
    return std::make_unique<SavingFolder>(fs_, saving_directory(dir_, state), dir_,
                                          step_directory(dir_, state.step));
  }
  std::vector<int64_t> list() override { return list_steps(fs_, dir_); }
  std::unique_ptr<StoredFiles> open(int64_t step) override {
    const std::string path = step_directory(dir_, step);
    return fs_.exists(path) ? stored_folder(fs_, path) : nullptr;
  }
  void remove(int64_t step) override { move_to_trash(fs_, dir_, base_name(step_directory(dir_, step))); }
  void set_aside_after(int64_t step, uint64_t epoch) override { supersede(fs_, dir_, step, epoch); }
  void clean(const Retention& retention, const std::vector<uint64_t>& kept_epochs) override {
    if (fs_.is_directory(dir_)) remove_superseded(fs_, dir_, kept_epochs, std::max(retention.keep_last, 2));
    for (const std::string& root : {trash_root(dir_), saving_root(dir_)}) {
      if (!fs_.is_directory(root)) continue;
      for (const std::string& name : fs_.list(root)) {
        const bool is_current =
            root + "/" + name == retention.current ||
            (root == saving_root(dir_) && saving_epoch(name).value_or(0) >= retention.current_epoch);
        if (!is_current) fs_.remove_tree(root + "/" + name);
      }
    }
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

ShardReceipt write_shard(FileSystem& fs, const std::string& saving_dir, const std::string& file_name,
                         const StateInfo& state, std::span<const Tensor> tensors,
                         std::span<const ChunkData> chunks, ChunkSource& source) {
  SavingFolder saving(fs, saving_dir, "", "");
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
  return retain(store, {keep_last, keep_every_steps, current_saving});
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
