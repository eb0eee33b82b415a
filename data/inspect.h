// `trainctl data inspect` (the contents of token files) and `trainctl data verify` (a check of every byte).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/sidecar.h"

namespace trainctl::data {

struct Inspection {
  std::string format, element;         ///< element: "u16", ...
  std::vector<std::string> files;
  uint64_t tokens = 0, documents = 0;  ///< documents 0: unknown
  int64_t largest_id = 0;              ///< largest id of the tokens that were read
  /// Tokens that were read: all, or about a million spread over the source.
  uint64_t looked_at = 0;
  std::string fingerprint;
  std::optional<Sidecar> sidecar;      ///< of the first file
  TokenizerChoice tokenizer;           ///< of `first_documents`; none: not known
  std::vector<std::string> first_documents;  ///< the first 200 tokens of up to three documents, decoded
  std::vector<std::string> warnings;
  /// With a loss file: the tokens of all files whose weight is not 0, and the largest weight.
  std::optional<uint64_t> loss_tokens;
  int largest_weight = 0;
};
/// `tokenizer`: none: the sidecar's. Error(kData) as open_source.
Inspection inspect(const SourceOptions& source, const TokenizerChoice& tokenizer);

struct Verification {
  uint64_t tokens = 0, documents = 0, bytes = 0;
  int64_t largest_id = 0;
  int64_t vocab_size = 0;              ///< ids must be smaller; 0: unknown, ids must only not be negative
  std::string hash;                    ///< xxh3 over every byte of every file, loss files included, in order
  std::string fingerprint;
  std::optional<uint64_t> loss_tokens;  ///< with a loss file: whose weight is not 0
  uint64_t shortest_document = 0, median_document = 0, longest_document = 0;  ///< in tokens; 0: unknown
  double seconds = 0;
};
/// Reads and checks every byte. `vocab_size` 0: the sidecar's. Error(kData) with file and offset of the first
/// fault.
Verification verify(const SourceOptions& source, int64_t vocab_size);

}  // namespace trainctl::data
