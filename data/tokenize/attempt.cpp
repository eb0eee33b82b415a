#include "data/tokenize/attempt.h"

#include <fcntl.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/record.h"

namespace trainctl {

template <>
struct RecordOf<data::CorpusPosition> {
  static void fields(auto& f, auto& r) {
    f("file", r.file), f("offset", r.offset), f("number", r.number), f("in_document", r.in_document);
  }
};
template <>
struct RecordOf<data::LeftOut> {
  static void fields(auto& f, auto& r) { f("place", r.place), f("why", r.why); }
};
template <>
struct RecordOf<data::EncodingState> {
  static void fields(auto& f, auto& r) {
    f("position", r.position), f("stored_bytes", r.stored_bytes), f("split_documents", r.split_documents);
    f("part", r.part), f("sets", r.sets), f("empty_documents", r.empty_documents);
    f("left_out_count", r.left_out_count), f("left_out", r.left_out), f("faulty_count", r.faulty_count);
    f("faulty", r.faulty), f("last_faulty", r.last_faulty);
  }
};
template <>
struct RecordOf<data::AttemptProgress> {
  static void fields(auto& f, auto& r) {
    f("complete", r.complete), f("encoding", r.encoding), f("skip_bad", r.skip_bad);
    f("longest_document", r.longest_document), f("seconds", r.seconds);
  }
};

namespace data {
namespace {

/// The record in a file; nullopt if it is absent or cannot be read.
template <typename R>
std::optional<R> read_attempt_record(FileSystem& fs, const std::string& path) {
  if (!fs.exists(path)) return std::nullopt;
  try {
    return record_of<R>(try_parse_json(fs.read_text(path)));
  } catch (const trainctl::BadRecord&) {
  } catch (const JsonError&) {
  }
  return std::nullopt;
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string changed_input(const std::vector<InputIdentity>& before, const std::vector<InputIdentity>& now) {
  if (before.size() != now.size())
    return fmt::format("the inputs ({} files, now {})", before.size(), now.size());
  for (size_t i = 0; i < now.size(); ++i) {
    const InputIdentity &a = before[i], &b = now[i];
    if (a.path != b.path) return fmt::format("the inputs ({}, now {})", a.path, b.path);
    if (a.bytes != b.bytes) return fmt::format("the size of {} ({} bytes, now {})", a.path, a.bytes, b.bytes);
    if (a.version != b.version)
      return fmt::format("{}, which is another object now (version {}, now {})", a.path, a.version,
                         b.version);
    if (a.modified_ns != b.modified_ns) return fmt::format("{}, which was written to since", a.path);
  }
  return "";
}

}  // namespace

std::string difference(const AttemptSettings& a, const AttemptSettings& b) {
  const auto differs = [](const char* what, const auto& before, const auto& now) {
    return fmt::format("{} ({}, now {})", what, before, now);
  };
  if (a.program_version != b.program_version) return "the version of this program";
  if (a.train_vocab != b.train_vocab) return differs("--train-vocab", a.train_vocab, b.train_vocab);
  if (a.train_kind != b.train_kind) return differs("--train-kind", a.train_kind, b.train_kind);
  if (a.tokenizer != b.tokenizer) return differs("the tokenizer", a.tokenizer, b.tokenizer);
  if (a.tokenizer_sha256 != b.tokenizer_sha256)
    return fmt::format("the content of the tokenizer {}", a.tokenizer);
  if (a.train_share != b.train_share || a.val_share != b.val_share)
    return differs("--split", fmt::format("{}:{}", a.train_share, a.val_share),
                   fmt::format("{}:{}", b.train_share, b.val_share));
  if (a.format != b.format) return differs("--to", a.format, b.format);
  if (a.text_key != b.text_key) return differs("--text-key", a.text_key, b.text_key);
  if (a.separator != b.separator)
    return differs("--separator", json_string(a.separator), json_string(b.separator));
  if (a.chat != b.chat) return differs("the chat template", a.chat, b.chat);
  return changed_input(a.inputs, b.inputs);
}

Attempt::Attempt(FileSystem& fs, std::string folder) : fs_(fs), folder_(std::move(folder)) {
  fs_.make_directories(parent_of(folder_));
  fs_.make_directory(folder_);
  if (&fs == &real_file_system()) {
    const std::string path = folder_ + "/lock";
    lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock_ < 0) throw Error(ErrorCode::kIo, fmt::format("cannot open {}", path));
    if (try_lock(lock_).state == LockState::held) {
      ::close(lock_);
      throw Error(
          ErrorCode::kData,
          fmt::format("another trainctl works in {}; wait for its end, or choose another --out", folder_));
    }
  }
  settings_ = read_attempt_record<AttemptSettings>(fs_, *this / "settings.json");
  if (settings_) progress_ = read_attempt_record<AttemptProgress>(fs_, *this / "progress.json");
}

Attempt::~Attempt() {
  if (lock_ >= 0) ::close(lock_);
}

void Attempt::begin(const AttemptSettings& settings) {
  settings_.reset();
  progress_.reset();
  // progress.json first: without it the other files count for nothing.
  if (fs_.exists(*this / "progress.json")) fs_.remove_file(*this / "progress.json");
  for (const std::string& name : fs_.list(folder_))
    if (name != "lock") fs_.remove_tree(*this / name);
  fs_.sync_directory(folder_);
  fs_.sync_directory(parent_of(folder_));
  fs_.write_new_text(*this / "settings.json", record_text(settings, 2) + "\n");
  settings_ = settings;
}

void Attempt::record(const AttemptProgress& progress) {
  fs_.replace_text(*this / "progress.json", record_text(progress) + "\n");
  progress_ = progress;
}

void Attempt::remove() {
  // These two last: a process that ends here leaves a complete attempt, or nothing that counts.
  const std::string progress = *this / "progress.json", settings = *this / "settings.json";
  for (const std::string& name : fs_.list(folder_))
    if (const std::string path = *this / name; path != progress && path != settings) fs_.remove_tree(path);
  if (fs_.exists(progress)) fs_.remove_file(progress);
  progress_.reset();
  if (fs_.exists(settings)) fs_.remove_file(settings);
  fs_.remove_directory(folder_);
}

}  // namespace data
}  // namespace trainctl
