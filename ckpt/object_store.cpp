#include "ckpt/object_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <tuple>

#include "ckpt/manifest.h"
#include "runtime/base/json.h"

namespace trainctl::ckpt {
namespace {

constexpr const char* kIndexName = "INDEX";
constexpr size_t kIndexedNames = 64;
constexpr uint64_t kMostParts = 10000;  // of S3

/// A folder of keys: step-SSSSSSSS.eE.aN.
struct Attempt {
  int64_t step = 0;
  uint64_t epoch = 0, number = 0;
  auto key() const { return std::tuple(step, epoch, number); }
  bool operator<(const Attempt& other) const { return key() < other.key(); }
  bool operator==(const Attempt& other) const { return key() == other.key(); }
  std::string name() const { return fmt::format("step-{:08}.e{}.a{}", step, epoch, number); }
};

std::optional<Attempt> attempt_of(const std::string& name) {
  Attempt attempt;
  const char *at = name.data(), *const end = at + name.size();
  const auto take = [&](std::string_view before, auto& value) {
    if (!std::string_view(at, size_t(end - at)).starts_with(before)) return false;
    const auto parsed = std::from_chars(at + before.size(), end, value);
    at = parsed.ptr;
    return parsed.ec == std::errc();
  };
  if (!take("step-", attempt.step) || !take(".e", attempt.epoch) || !take(".a", attempt.number))
    return std::nullopt;
  if (attempt.name() != name) return std::nullopt;  // only the one spelling
  return attempt;
}

struct SetAside {
  int64_t after_step = 0;
  uint64_t epoch = 0;
};

struct Index {
  std::vector<Attempt> published;  ///< latest last
  std::vector<SetAside> set_aside;
};

std::string index_text(const Index& index) {
  nlohmann::ordered_json object{{"published", nlohmann::ordered_json::array()},
                                {"set_aside", nlohmann::ordered_json::array()}};
  for (const Attempt& attempt : index.published) object["published"].push_back(attempt.name());
  for (const SetAside& aside : index.set_aside)
    object["set_aside"].push_back({{"epoch", aside.epoch}, {"after_step", aside.after_step}});
  return dump_json(object) + "\n";
}

/// Lines that cannot be read are left out, because the list is only a hint.
Index read_index(const std::string& text) {
  Index index;
  const nlohmann::json object = try_parse_json(text);
  if (!object.is_object()) return index;
  for (const auto& name : object.value("published", nlohmann::json::array()))
    if (const auto attempt = name.is_string() ? attempt_of(name.get<std::string>()) : std::nullopt)
      index.published.push_back(*attempt);
  for (const auto& aside : object.value("set_aside", nlohmann::json::array()))
    if (aside.is_object() && aside.contains("epoch") && aside["epoch"].is_number_unsigned() &&
        aside.contains("after_step") && aside["after_step"].is_number_integer())
      index.set_aside.push_back({aside["after_step"].get<int64_t>(), aside["epoch"].get<uint64_t>()});
  return index;
}

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
    bool removed = false;
    for (const Attempt& attempt : published(read_index()))
      if (attempt.step == step && attempt.epoch <= epoch)
        client_.remove(key_of(attempt, kCommitName)), removed = true;
    return removed;
  }
  void set_aside_after(const EpochBegin& begin) override {
    const std::vector<int64_t> there = list();
    if (there.empty() || there.front() <= begin.step) return;
    Index index = read_index();
    index.set_aside.push_back({begin.step, begin.epoch});
    write_index(index);
  }
  void clean(const Retention& retention, const std::vector<uint64_t>& kept_epochs) override;

  // For the saving.
  std::string key_of(const Attempt& attempt, const char* name) const {
    return options_.prefix + "/" + attempt.name() + "/" + name;
  }
  bool is_published(const Attempt& attempt) { return client_.head(key_of(attempt, kCommitName)).has_value(); }
  void add_to_index(const Attempt& attempt) {
    Index index = read_index();
    std::erase(index.published, attempt);
    index.published.push_back(attempt);
    if (index.published.size() > kIndexedNames) index.published.erase(index.published.begin());
    write_index(index);
  }

 private:
  Index read_index() {
    const auto info = client_.head(index_key());
    if (!info) return {};
    std::string text(info->bytes, '\0');
    if (!text.empty()) client_.get(info->key, 0, std::as_writable_bytes(std::span(text)));
    return ckpt::read_index(text);
  }
  void write_index(const Index& index) {
    const std::string text = index_text(index);
    client_.put(index_key(), std::as_bytes(std::span(text)));
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
  std::vector<Attempt> published(const Index& index) {
    std::set<Attempt> candidates(index.published.begin(), index.published.end());
    for (const auto& [attempt, keys] : listed())
      if (std::count(keys.begin(), keys.end(), key_of(attempt, kCommitName))) candidates.insert(attempt);
    std::erase_if(candidates, [&](const Attempt& attempt) { return !is_published(attempt); });
    return {candidates.begin(), candidates.end()};
  }
  /// True if a run went back to before this one: the index says so, or a later epoch published this step
  /// or an earlier one.
  static bool is_aside(const Attempt& attempt, const Index& index, const std::vector<Attempt>& all) {
    return std::any_of(
               index.set_aside.begin(), index.set_aside.end(),
               [&](const SetAside& s) { return attempt.epoch < s.epoch && attempt.step > s.after_step; }) ||
           std::any_of(all.begin(), all.end(),
                       [&](const Attempt& a) { return a.epoch > attempt.epoch && a.step <= attempt.step; });
  }
  std::vector<Attempt> live() {
    const Index index = read_index();
    const std::vector<Attempt> all = published(index);
    std::vector<Attempt> result;
    for (const Attempt& attempt : all)
      if (!is_aside(attempt, index, all)) result.push_back(attempt);
    return result;
  }

  ObjectClient& client_;
  const ObjectStoreOptions options_;
};

void ObjectStore::clean(const Retention& retention, const std::vector<uint64_t>& kept_epochs) {
  const Index index = read_index();
  const std::vector<Attempt> all = published(index);
  const int keep = std::max(retention.keep_last, 2);
  std::vector<Attempt> gone;
  for (const Attempt& attempt : all) {
    // Checkpoints that were set aside are removed when as many of later epochs are safe.
    const bool is_replaced = std::count_if(kept_epochs.begin(), kept_epochs.end(),
                                           [&](uint64_t epoch) { return epoch > attempt.epoch; }) >= keep;
    const bool is_older_try = std::any_of(all.begin(), all.end(), [&](const Attempt& a) {
      return a.step == attempt.step && a.epoch == attempt.epoch && a.number > attempt.number;
    });
    if (!(is_older_try || (is_replaced && is_aside(attempt, index, all)))) continue;
    client_.remove(key_of(attempt, kCommitName));
    gone.push_back(attempt);
  }
  for (const auto& [attempt, keys] : listed()) {
    const bool is_kept =
        std::count(all.begin(), all.end(), attempt) && !std::count(gone.begin(), gone.end(), attempt);
    const bool is_current = attempt.epoch >= retention.current_epoch;
    if (is_kept || is_current || options_.where + "/" + attempt.name() == retention.current ||
        is_published(attempt))
      continue;
    for (const std::string& key : keys) client_.remove(key);
  }
}

class SavingObjects final : public Objects<SavingFiles> {
 public:
  SavingObjects(ObjectStore& store, ObjectClient& client, const ObjectStoreOptions& options,
                const StateInfo& state)
      : Objects(client, options), store_(store), first_{state.step, state.epoch, 0} {}

  void begin() override {
    for (const std::string& name : names()) remove(name);
  }
  std::unique_ptr<NewFile> put(const std::string& name, uint64_t bytes) override {
    return replace(name, bytes);
  }
  void remove(const std::string& name) override { client_.remove(key_of(name)); }
  void commit(const std::string& text, const std::function<bool()>& is_wanted) override {
    if (!is_wanted()) return begin();
    client_.put(key_of(kCommitName), std::as_bytes(std::span(text)));  // the commit point
    store_.add_to_index(attempt());
  }

 private:
  /// The first that is not published. Asked for once: it changes with the commit.
  const Attempt& attempt() const override {
    if (!attempt_) {
      attempt_ = first_;
      while (store_.is_published(*attempt_)) ++attempt_->number;
    }
    return *attempt_;
  }

  ObjectStore& store_;
  const Attempt first_;
  mutable std::optional<Attempt> attempt_;
};

std::unique_ptr<SavingFiles> ObjectStore::saving(const StateInfo& state) {
  return std::make_unique<SavingObjects>(*this, client_, options_, state);
}

}  // namespace

std::unique_ptr<Store> object_store(ObjectClient& client, const ObjectStoreOptions& options) {
  return std::make_unique<ObjectStore>(client, options);
}

}  // namespace trainctl::ckpt
