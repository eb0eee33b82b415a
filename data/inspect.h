// What is in a token set, and whether all of it is sound: `trainctl data inspect` and `trainctl data verify`.
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
  uint64_t tokens = 0, documents = 0;  ///< documents: 0 where unknown
  int64_t largest_id = 0;              ///< of those looked at
  uint64_t looked_at = 0;              ///< tokens; all, or about a million spread over the source
  std::string fingerprint;
  std::optional<Sidecar> sidecar;      ///< of the first file
  std::string tokenizer;               ///< used for `first_documents`; "" if none is known
  std::vector<std::string> first_documents;  ///< up to three, their first 200 tokens decoded
  std::vector<std::string> warnings;
};
/// `tokenizer`: as open_tokenizer, or "" to take the sidecar's. Error(kData) as open_source.
Inspection inspect(const SourceOptions& source, const std::string& tokenizer);

struct Verification {
  uint64_t tokens = 0, documents = 0, bytes = 0;
  int64_t largest_id = 0;
  int64_t vocab_size = 0;              ///< that ids were held against; 0: unknown, only checked not to be negative
  std::string hash;                    ///< xxh3 over every byte of every file, in order
  std::string fingerprint;
  uint64_t shortest_document = 0, median_document = 0, longest_document = 0;  ///< tokens; 0 where unknown
  double seconds = 0;
};
/// Reads every byte. `vocab_size`: 0 takes the sidecar's. Error(kData) with file and offset of the first fault.
Verification verify(const SourceOptions& source, int64_t vocab_size);

}  // namespace trainctl::data
