// Attempt: the folder PREFIX.partial, in which `data tokenize` works until a token set is complete.
//
//   settings.json   everything that decides the bytes of the token set
//   progress.json   how far the work is; replaced every ten seconds, after the tokens are durable
//   train.bin, train.lengths, train.loss, val.bin, ...   tokens; of them counts what progress.json names
//   model           a tokenizer that was trained first
//   train.idx, train.json, ...   when the work is done; then all files get their names, and the folder goes
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenize/encode_all.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {

/// What is read: its content is known by its size, and by its time or its version.
struct InputIdentity {
  std::string path;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;  ///< 0: unknown
  std::string version;      ///< as TokenizeOptions::input_versions; "": unknown
  static void fields(auto& f, auto& r) {
    f("path", r.path), f("bytes", r.bytes), f("modified_ns", r.modified_ns);
    f.later("version", r.version);
  }
};

/// What decides the bytes of a token set.
struct AttemptSettings {
  int program_version = 2;  ///< another one if this program would make other tokens or files of the same text
  std::vector<InputIdentity> inputs;
  std::string text_key, separator, format, tokenizer,
      tokenizer_sha256;    ///< sha256: "" of bytes, and if it is trained
  std::string train_kind;  ///< "": no tokenizer is trained
  std::string chat;  ///< "": texts; otherwise records with answers, and the name of their template or "none"
  int64_t train_vocab = 0, train_share = 1, val_share = 0;
  static void fields(auto& f, auto& r) {
    f("program_version", r.program_version), f("tokenizer", r.tokenizer),
        f("tokenizer_sha256", r.tokenizer_sha256);
    f("train_kind", r.train_kind), f("train_vocab", r.train_vocab), f("train_share", r.train_share);
    f("val_share", r.val_share), f("format", r.format), f("text_key", r.text_key),
        f("separator", r.separator);
    f.later("chat", r.chat);
    f("inputs", r.inputs);
  }
};
/// The first thing in which they differ, "the tokenizer (a.json, now b.json)"; "" if they are equal.
std::string difference(const AttemptSettings& before, const AttemptSettings& now);

/// What progress.json holds.
struct AttemptProgress {
  bool complete = false;  ///< all files are there; they only need their names
  EncodingState encoding;
  bool skip_bad = false;  ///< with which it was made, like longest_document
  uint64_t longest_document = 0;
  double seconds = 0;  ///< of work
};

/// Holds the lock of the folder. Not thread-safe. Errors: Error(kIo).
class Attempt {
 public:
  /// Makes the folder if it is absent. Error(kData): another process works in it.
  Attempt(FileSystem& fs, std::string folder);
  ~Attempt();
  Attempt(const Attempt&) = delete;

  const std::string& folder() const { return folder_; }
  std::string operator/(const std::string& name) const { return folder_ + "/" + name; }
  /// What an earlier process has left; nullopt: nothing, or files that cannot be read.
  const std::optional<AttemptSettings>& settings() const { return settings_; }
  const std::optional<AttemptProgress>& progress() const { return progress_; }

  /// Removes what is in the folder and writes the settings.
  void begin(const AttemptSettings& settings);
  void record(const AttemptProgress& progress);
  /// Removes the folder.
  void remove();

 private:
  FileSystem& fs_;
  std::string folder_;
  int lock_ = -1;
  std::optional<AttemptSettings> settings_;
  std::optional<AttemptProgress> progress_;
};

}  // namespace trainctl::data
