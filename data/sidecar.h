// The sidecar PREFIX.json of token files that `trainctl data tokenize` has written: their tokenizer and their
// inputs.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/file_source.h"
#include "data/tokenizer_choice.h"
#include "runtime/base/file_system.h"
#include "runtime/base/problem.h"

namespace trainctl::data {

struct Sidecar {
  TokenizerChoice tokenizer;     ///< a file's path is relative to the folder of the sidecar, or absolute
  std::string tokenizer_sha256;  ///< hash of the model file; "" for bytes
  int64_t vocab_size = 0;
  int32_t end_of_text = 0;
  std::string format;            ///< a name_of(Format)
  uint64_t tokens = 0, documents = 0, text_bytes = 0;
  std::string fingerprint;       ///< of the token files, as TokenSource::fingerprint
  std::vector<std::string> inputs;
  /// Of sets with a loss file: the tokens whose weight is not 0; and how conversations became text.
  std::optional<uint64_t> loss_tokens;
  std::optional<std::string> chat_template;
  static constexpr const char* kMark = "trainctl_tokens";
  static constexpr int kVersion = 1;
  static void fields(auto& f, auto& r) {
    f.written(kMark, kVersion);
    f("tokenizer", r.tokenizer);
    f("tokenizer_sha256", r.tokenizer_sha256);
    f("vocab_size", r.vocab_size);
    f("end_of_text", r.end_of_text);
    f("format", r.format);
    f("tokens", r.tokens);
    f("documents", r.documents);
    f("text_bytes", r.text_bytes);
    f("fingerprint", r.fingerprint);
    f("inputs", r.inputs);
    f.maybe("loss_tokens", r.loss_tokens);
    f.maybe("chat_template", r.chat_template);
  }
};

std::string sidecar_json(const Sidecar& sidecar);
/// The sidecar with this content. `path`: for messages. nullopt if it is a JSON of another kind. Error(kData).
std::optional<Sidecar> parse_sidecar(const std::string& text, const std::string& path);
/// The sidecar of a token file or prefix. nullopt if there is none: other programs write none, and a .json of
/// another kind is ignored. Error(kData) if it is marked as a sidecar and cannot be read.
std::optional<Sidecar> read_sidecar(const std::string& token_path);
std::string sidecar_path(const std::string& token_path);

/// The tokenizer of the sidecar of `token_path`, with the file's path as seen from here.
TokenizerChoice tokenizer_of(const Sidecar& sidecar, const std::string& token_path);

/// Why `choice` is not the tokenizer that made these tokens, one sentence; no problem where it is not given,
/// or its file is not there.
Problem other_tokenizer(FileSystem& fs, const Sidecar& sidecar, const std::string& token_path,
                        const TokenizerChoice& choice);
/// Why the vocabulary of these tokens is not one of `vocab_size`, one sentence.
Problem larger_vocabulary(const Sidecar& sidecar, const std::string& token_path, int64_t vocab_size);

/// Error(kData) if the sidecar of one of the files has a larger vocabulary than `vocab_size`. `name`: of the
/// source, for the message.
void check_sidecars(const FileSource& source, const std::string& name, int64_t vocab_size);

}  // namespace trainctl::data
