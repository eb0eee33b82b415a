#include "ckpt/object_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/manifest.h"
#include "ckpt/object_index.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {
namespace {

constexpr const char* kIndexName = "INDEX";
constexpr uint64_t kMostParts = 10000;  // of S3
/// Each try is lost to another writer's request. So many in a row are no coincidence.
constexpr int kTries = 20;

using Attempt = ObjectAttempt;

std::span<const std::byte> bytes_in(const std::string& text) { return std::as_bytes(std::span(text)); }

/// Read through ranges.
class ObjectFile final : public File {
 public:
  ObjectFile(ObjectClient& client, ObjectInfo info) : client_(client), info_(std::move(info)) {}
  void write_at(uint64_t, std::span<const std::byte>) override {
    throw ObjectError(400, info_.key + " is open for reading");
  }
  void read_at(uint64_t offset, std::span<std::byte> data) override {
    if (offset > info_.bytes || data.size() > info_.bytes - offset)
      throw ObjectError(416, fmt::format("{} ends at byte {}, bytes up to {} were expected", info_.key,
                                         info_.bytes, offset + data.size()));
    if (data.empty()) return;
    const size_t have = client_.get(info_.key, offset, data);
    if (have != data.size())
      throw ObjectError(0,
                        fmt::format("{}: {} of {} bytes at {} came", info_.key, have, data.size(), offset));
  }
  uint64_t size() override { return info_.bytes; }
  void sync() override {}

 private:
  ObjectClient& client_;
  const ObjectInfo info_;
};

/// One PUT, or parts where the file is larger than one.
class NewObject final : public NewFile {
 public:
  NewObject(ObjectClient& client, std::string key, uint64_t bytes, uint64_t part_bytes)
      : client_(client),
        key_(std::move(key)),
        bytes_(bytes),
        part_bytes_(std::max(part_bytes, (bytes + kMostParts - 1) / kMostParts)) {
    buffer_.reserve(size_t(std::min(bytes_, part_bytes_)));
  }
  ~NewObject() override {
    if (upload_.empty() || finished_) return;
    try {
      client_.abort_upload(key_, upload_);
    } catch (...) {
      // Parts of an abandoned upload are removed by the store's own rules.
    }
  }
  void append(std::span<const std::byte> data) override {
    while (!data.empty()) {
      if (buffer_.size() == part_bytes_) put_part();
      const size_t count = std::min(data.size(), size_t(part_bytes_) - buffer_.size());
      buffer_.insert(buffer_.end(), data.begin(), data.begin() + ptrdiff_t(count));
      data = data.subspan(count);
    }
  }
  void finish() override {
    ENSURE(sent_ + buffer_.size() == bytes_, "{}: {} of {} bytes", key_, sent_ + buffer_.size(), bytes_);
    if (upload_.empty()) {
      client_.put(key_, buffer_);
    } else {
      put_part();
      client_.finish_upload(key_, upload_, etags_);
    }
    finished_ = true;
  }

 private:
  void put_part() {
    if (upload_.empty()) upload_ = client_.start_upload(key_);
    etags_.push_back(client_.put_part(key_, upload_, int(etags_.size()) + 1, buffer_));
    sent_ += buffer_.size();
    buffer_.clear();
  }

  ObjectClient& client_;
  const std::string key_;
  const uint64_t bytes_, part_bytes_;
  std::vector<std::byte> buffer_;
  uint64_t sent_ = 0;
  std::string upload_;
  std::vector<std::string> etags_;
  bool finished_ = false;
};

/// The objects of one folder of keys.
template <typename Base>
class Objects : public Base {
 public:
  Objects(ObjectClient& client, const ObjectStoreOptions& options) : client_(client), options_(options) {}
  std::string where() const override { return options_.where + "/" + attempt().name(); }
  std::optional<int64_t> named_step() const override { return attempt().step; }
  bool has(const std::string& name) override { return client_.head(key_of(name)).has_value(); }
  std::unique_ptr<File> open(const std::string& name) override {
    auto info = client_.head(key_of(name));
    if (!info) throw ObjectError(404, fmt::format("there is no {}/{}", where(), name));
    return std::make_unique<ObjectFile>(client_, std::move(*info));
  }
  std::vector<std::string> names() override {
    std::vector<std::string> result;
    const std::string folder = key_of("");
    for (const ObjectInfo& info : client_.list(folder)) result.push_back(info.key.substr(folder.size()));
    std::sort(result.begin(), result.end());
    return result;
  }
  /// A PUT replaces in one step.
  std::unique_ptr<NewFile> replace(const std::string& name, uint64_t bytes) override {
    return std::make_unique<NewObject>(client_, key_of(name), bytes, options_.part_bytes);
  }

 protected:
  virtual const Attempt& attempt() const = 0;
  std::string key_of(const std::string& name) const {
    return options_.prefix + "/" + attempt().name() + "/" + name;
  }
  ObjectClient& client_;
  const ObjectStoreOptions options_;
};

class PublishedObjects final : public Objects<StoredFiles> {
 public:
  PublishedObjects(ObjectClient& client, const ObjectStoreOptions& options, const Attempt& attempt)
      : Objects(client, options), attempt_(attempt) {}

 private:
  const Attempt& attempt() const override { return attempt_; }
  const Attempt attempt_;
};

class ObjectStore final : public Store {
 public:
  ObjectStore(ObjectClient& client, const ObjectStoreOptions& options) : client_(client), options_(options) {}
  std::string where() const override { return options_.where; }
  std::unique_ptr<SavingFiles> saving(const StateInfo& state) override;

  std::vector<int64_t> list() override {
    std::set<int64_t, std::greater<>> steps;
    for (const Attempt& attempt : live()) steps.insert(attempt.step);
    return {steps.begin(), steps.end()};
  }
  std::unique_ptr<StoredFiles> open(int64_t step) override {
    const std::vector<Attempt> attempts = live();
    for (auto attempt = attempts.rbegin(); attempt != attempts.rend(); ++attempt)
      if (attempt->step == step) return std::make_unique<PublishedObjects>(client_, options_, *attempt);
    return nullptr;
  }
  bool remove(int64_t step, uint64_t epoch) override {
    const Index index = read_index();
    if (index.content.newest_epoch() > epoch) return false;  // the caller is out of date
    bool removed = false;
    for (const Attempt& attempt : published(index.content))
      if (attempt.step == step && attempt.epoch <= epoch) remove_commit(attempt), removed = true;
    return removed;
  }
  void set_aside_after(const EpochBegin& begin) override {
    update_index([&](ObjectIndex& index) {
      refuse_newer(index, begin.epoch);
      return index.begin(begin);
    });
  }
  void clean(const Retention& retention, const std::vector<uint64_t>& kept_epochs) override;
  void abort_uploads(uint64_t current_epoch);

  // For the saving.
  std::string key_of(const Attempt& attempt, const char* name) const {
    return options_.prefix + "/" + attempt.name() + "/" + name;
  }
  /// `first`, or the next one that is later than what was published of its save, and in whose folder nobody
  /// has put a COMMIT.
  Attempt unused(Attempt first) {
    for (const Attempt& there : published(read_index().content))
      if (there.is_rival(first)) first.number = std::max(first.number, there.number + 1);
    while (client_.head(key_of(first, kCommitName))) ++first.number;
    return first;
  }
  /// Error(kCheckpoint) if this writer is out of date, or the run has left the step of its epoch behind.
  void must_publish(const Attempt& attempt) { must_publish(attempt, read_index().content); }
  /// The commit point. Returns false if another writer has taken the place of COMMIT.
  bool put_commit(const Attempt& attempt, const std::string& text) {
    const std::string key = key_of(attempt, kCommitName);
    for (int tries = 0; tries < kTries; ++tries) {
      if (put_if(key, "", text)) return true;
      // Of a publisher of the same save it is the same.
      if (const auto there = client_.head(key))
        return there->bytes == text.size() && !etags_differ(there->etag, etag_of(bytes_in(text)));
    }
    throw contended(key);
  }
  /// Names in INDEX what was published of a save by a writer that may have died before it did so.
  void settle(const Attempt& save) {
    const ObjectIndex index = read_index().content;
    for (const Attempt& there : published(index))
      if (there.is_rival(save) && !std::count(index.published.begin(), index.published.end(), there))
        add_to_index(there);
  }
  void add_to_index(const Attempt& attempt) {
    update_index([&](ObjectIndex& index) {
      must_publish(attempt, index);
      index.add(attempt);
      return true;
    });
  }

 private:
  struct Index {
    ObjectIndex content;
    std::string version;  ///< for put_if
  };

  static ObjectError contended(const std::string& key) {
    return ObjectError(
        409,
        fmt::format("{} was changed by others {} times in a row: another writer is at work", key, kTries));
  }
  void refuse_newer(const ObjectIndex& index, uint64_t epoch) const {
    if (index.newest_epoch() <= epoch) return;
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("attempt {} of this run has begun in {}; this writer has attempt {} and is out of date "
                    "(if no other one runs, remove {}/{})",
                    index.newest_epoch(), where(), epoch, where(), kIndexName));
  }
  void must_publish(const Attempt& attempt, const ObjectIndex& index) const {
    refuse_newer(index, options_.epoch);
    if (const auto newer = index.against(attempt.epoch, attempt.step))
      throw Error(
          ErrorCode::kCheckpoint,
          fmt::format("step {} of attempt {} is no part of the run any more: attempt {} went on from step {}",
                      attempt.step, attempt.epoch, newer->epoch, newer->after_step));
  }
  /// Not an empty one: that is of an upload which was given up.
  bool is_published(const Attempt& attempt) {
    const auto commit = client_.head(key_of(attempt, kCommitName));
    return commit && commit->bytes > 0;
  }
  void remove_commit(const Attempt& attempt) { client_.remove(key_of(attempt, kCommitName)); }
  /// From here on nobody publishes it. Returns false if it is published, or may yet be.
  bool give_up(const Attempt& attempt) {
    const std::string key = key_of(attempt, kCommitName);
    if (put_if(key, "", "")) return true;
    const auto there = client_.head(key);
    return there && there->bytes == 0;
  }

  /// Puts the object if it is still of this version ("": absent). A store that refuses such a condition is
  /// asked just before instead.
  bool put_if(const std::string& key, const std::string& version, const std::string& text) {
    if (knows_conditions_) try {
        return client_.put_if(key, version, bytes_in(text)).has_value();
      } catch (const ObjectError& error) {
        if (!error.may_be_unknown()) throw;
        knows_conditions_ = false;
      }
    const auto there = client_.head(key);
    if ((there ? there->version : "") != version) return false;
    client_.put(key, bytes_in(text));
    return true;
  }

  Index read_index() {
    for (int tries = 0; tries < kTries; ++tries) {
      const auto info = client_.head(index_key());
      if (!info) return {};
      std::string text(info->bytes, '\0');
      try {
        if (!text.empty()) client_.get(info->key, 0, std::as_writable_bytes(std::span(text)));
      } catch (const ObjectError& error) {
        // Removed meanwhile, or shorter.
        if (error.status() != 404 && error.status() != 416) throw;
        continue;
      }
      if (!etags_differ(info->etag, etag_of(bytes_in(text)))) return {read_object_index(text), info->version};
    }
    throw contended(index_key());
  }
  /// `change` returns whether there is something to write.
  void update_index(const std::function<bool(ObjectIndex&)>& change) {
    for (int tries = 0; tries < kTries; ++tries) {
      Index index = read_index();
      if (!change(index.content)) return;
      if (put_if(index_key(), index.version, index.content.text())) return;
    }
    throw contended(index_key());
  }
  std::string index_key() const { return options_.prefix + "/" + kIndexName; }

  /// Keys by their folder of keys, as a listing has them.
  std::map<Attempt, std::vector<std::string>> listed() {
    std::map<Attempt, std::vector<std::string>> result;
    const std::string root = options_.prefix + "/";
    for (const ObjectInfo& info : client_.list(root)) {
      const std::string rest = info.key.substr(root.size());
      if (const auto attempt = attempt_of(rest.substr(0, rest.find('/'))))
        result[*attempt].push_back(info.key);
    }
    return result;
  }
  /// All that have a COMMIT, ascending.
  std::vector<Attempt> published(const ObjectIndex& index) {
    std::set<Attempt> candidates(index.published.begin(), index.published.end());
    for (const auto& [attempt, keys] : listed())
      if (std::count(keys.begin(), keys.end(), key_of(attempt, kCommitName))) candidates.insert(attempt);
    std::erase_if(candidates, [&](const Attempt& attempt) { return !is_published(attempt); });
    return {candidates.begin(), candidates.end()};
  }
  /// True if a run went back to before this one: the index says so, or a later epoch published this step
  /// or an earlier one.
  static bool is_aside(const Attempt& attempt, const ObjectIndex& index, const std::vector<Attempt>& all) {
    return index.against(attempt.epoch, attempt.step) ||
           std::any_of(all.begin(), all.end(),
                       [&](const Attempt& a) { return a.epoch > attempt.epoch && a.step <= attempt.step; });
  }
  std::vector<Attempt> live() {
    const ObjectIndex index = read_index().content;
    const std::vector<Attempt> all = published(index);
    std::vector<Attempt> result;
    for (const Attempt& attempt : all)
      if (!is_aside(attempt, index, all)) result.push_back(attempt);
    return result;
  }

  ObjectClient& client_;
  const ObjectStoreOptions options_;
  bool knows_conditions_ = true;  ///< until the store refuses one
};

void ObjectStore::clean(const Retention& retention, const std::vector<uint64_t>& kept_epochs) {
  const ObjectIndex index = read_index().content;
  if (index.newest_epoch() > retention.current_epoch) return;  // the caller is out of date
  const std::vector<Attempt> all = published(index);
  const int keep = std::max(retention.keep_last, 2);
  std::vector<Attempt> gone;
  for (const Attempt& attempt : all) {
    // Checkpoints that were set aside are removed when as many of later epochs are safe.
    const bool is_replaced = std::count_if(kept_epochs.begin(), kept_epochs.end(),
                                           [&](uint64_t epoch) { return epoch > attempt.epoch; }) >= keep;
    const bool is_older_try = std::any_of(
        all.begin(), all.end(), [&](const Attempt& a) { return a.is_rival(attempt) && attempt < a; });
    if (!(is_older_try || (is_replaced && is_aside(attempt, index, all)))) continue;
    remove_commit(attempt);
    gone.push_back(attempt);
  }
  for (const auto& [attempt, keys] : listed()) {
    const bool is_kept =
        std::count(all.begin(), all.end(), attempt) && !std::count(gone.begin(), gone.end(), attempt);
    const bool is_current = attempt.epoch >= retention.current_epoch;
    const std::string commit = key_of(attempt, kCommitName);
    const bool is_empty = keys == std::vector<std::string>{commit};  // given up before
    if (is_kept || is_current || is_empty || options_.where + "/" + attempt.name() == retention.current ||
        is_published(attempt))
      continue;
    // A COMMIT that was removed was put: nobody puts it again.
    const bool was_published = std::count(gone.begin(), gone.end(), attempt) ||
                               std::count(index.published.begin(), index.published.end(), attempt);
    if (!was_published && !give_up(attempt)) continue;
    for (const std::string& key : keys)
      if (key != commit) client_.remove(key);
  }
  abort_uploads(retention.current_epoch);
}

/// Uploads in parts of writers that died. Those of a newer epoch, and of this one, may be under way.
void ObjectStore::abort_uploads(uint64_t current_epoch) {
  const std::string root = options_.prefix + "/";
  std::vector<UnfinishedUpload> unfinished;
  try {
    unfinished = client_.list_uploads(root);
  } catch (const ObjectError& error) {
    if (!error.may_be_unknown()) throw;  // else the store has no such listing: its own rules remove them
  }
  for (const auto& [key, upload] : unfinished) {
    const std::string rest = key.substr(root.size());
    const auto attempt = attempt_of(rest.substr(0, rest.find('/')));
    if (attempt && attempt->epoch < current_epoch) client_.abort_upload(key, upload);
  }
}

class SavingObjects final : public Objects<SavingFiles> {
 public:
  SavingObjects(ObjectStore& store, ObjectClient& client, const ObjectStoreOptions& options,
                const StateInfo& state)
      : Objects(client, options), store_(store), first_{state.step, state.epoch, 0, ""} {}

  void begin() override {
    for (const std::string& name : names()) remove(name);
  }
  void begin_alone() override {
    ENSURE(!attempt_, "{} was used before begin_alone()", where());
    first_.word = options_.word;
    begin();
  }
  bool is_lost() override { return is_lost_; }
  void settle() override { store_.settle(first_); }
  std::unique_ptr<NewFile> put(const std::string& name, uint64_t bytes) override {
    return replace(name, bytes);
  }
  void remove(const std::string& name) override { client_.remove(key_of(name)); }
  void commit(const std::string& text, const std::function<bool()>& is_wanted) override {
    store_.must_publish(attempt());
    if (!is_wanted()) {
      begin();
      return settle();
    }
    if (!store_.put_commit(attempt(), text)) {
      is_lost_ = true;
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("{}: another writer has given this upload up and removed its files", where()));
    }
    store_.add_to_index(attempt());
  }

 private:
  /// Asked for once: it changes with the commit.
  const Attempt& attempt() const override {
    if (!attempt_) attempt_ = store_.unused(first_);
    return *attempt_;
  }

  ObjectStore& store_;
  Attempt first_;
  mutable std::optional<Attempt> attempt_;
  bool is_lost_ = false;
};

std::unique_ptr<SavingFiles> ObjectStore::saving(const StateInfo& state) {
  return std::make_unique<SavingObjects>(*this, client_, options_, state);
}

}  // namespace

bool keeps_conditions(ObjectClient& client, const std::string& key) {
  const auto there = client.head(key);
  ENSURE(there.has_value(), "there is no {}", key);
  const std::string one = "1", two = "2";
  try {
    return !client.put_if(key, "", bytes_in(one)) && client.put_if(key, there->version, bytes_in(one)) &&
           !client.put_if(key, there->version, bytes_in(two));
  } catch (const ObjectError& error) {
    if (!error.may_be_unknown()) throw;
    return false;
  }
}

std::unique_ptr<Store> object_store(ObjectClient& client, const ObjectStoreOptions& options) {
  return std::make_unique<ObjectStore>(client, options);
}

}  // namespace trainctl::ckpt
