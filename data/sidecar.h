// The sidecar PREFIX.json next to tokens that `trainctl data tokenize` wrote: which tokenizer made them, and of what.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/file_source.h"

namespace trainctl::data {

struct Sidecar {
  std::string tokenizer;         ///< "bytes", or the path of a SentencePiece model as it was given
  std::string tokenizer_sha256;  ///< of the model file; "" for bytes
  int64_t vocab_size = 0;
  int32_t end_of_text = 0;
  std::string format;            ///< as name_of(Format)
  uint64_t tokens = 0, documents = 0, text_bytes = 0;
  std::string fingerprint;       ///< of the token files, as TokenSource::fingerprint
  std::vector<std::string> inputs;
};

std::string sidecar_json(const Sidecar& sidecar);
/// The sidecar of a token file or prefix. Nothing if there is none (other programs write none, and a .json that is not a
/// sidecar is somebody else's); Error(kData) if it claims to be one and cannot be read.
std::optional<Sidecar> read_sidecar(const std::string& token_path);
std::string sidecar_path(const std::string& token_path);

/// Error(kData) if a file's sidecar says that its vocabulary is larger than `vocab_size`.
void check_sidecars(const FileSource& source, const std::string& name, int64_t vocab_size);

}  // namespace trainctl::data
