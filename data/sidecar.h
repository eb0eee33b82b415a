// The sidecar PREFIX.json of token files that `trainctl data tokenize` has written: their tokenizer and their
// inputs.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/file_source.h"

namespace trainctl::data {

struct Sidecar {
  std::string tokenizer;         ///< "bytes", or the path of a SentencePiece model as it was given
  std::string tokenizer_sha256;  ///< hash of the model file; "" for bytes
  int64_t vocab_size = 0;
  int32_t end_of_text = 0;
  std::string format;            ///< a name_of(Format)
  uint64_t tokens = 0, documents = 0, text_bytes = 0;
  std::string fingerprint;       ///< of the token files, as TokenSource::fingerprint
  std::vector<std::string> inputs;
};

std::string sidecar_json(const Sidecar& sidecar);
/// The sidecar of a token file or prefix. nullopt if there is none: other programs write none, and a .json of
/// another kind is ignored. Error(kData) if it is marked as a sidecar and cannot be read.
std::optional<Sidecar> read_sidecar(const std::string& token_path);
std::string sidecar_path(const std::string& token_path);

/// Error(kData) if the sidecar of one of the files has a larger vocabulary than `vocab_size`. `name`: of the
/// source, for the message.
void check_sidecars(const FileSource& source, const std::string& name, int64_t vocab_size);

}  // namespace trainctl::data
