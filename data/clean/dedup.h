// `trainctl data dedup`: keeps the first of texts that are equal, or nearly so.
#pragma once
#include "data/clean/cleaning.h"

namespace trainctl::data {

struct DedupOptions {
  CleaningOptions cleaning;
  /// Remove also texts whose word sequences are nearly those of an earlier text.
  bool near = false;
  double threshold = 0.8;               ///< the least Jaccard similarity that counts as near, 0.3 to 1
  int shingle_words = 5;                ///< words of a sequence
  uint64_t memory = uint64_t(1) << 30;  ///< bytes that the command may need
};

/// The most bytes that each kept document needs while a deduplication runs. Removed ones need none.
double dedup_bytes_per_document(bool near, double threshold);

/// A text counts as equal to an earlier one if 128 bits of hash of their bytes are (of JSON lines: of the
/// string that the line has, not of the line). With `near` it is removed also if the similarity with a kept text,
/// estimated from MinHash signatures, is at least the threshold: see data/clean/min_hash.h. A text without
/// words has no near ones. The first of equal texts is kept, so the files depend on the order of the inputs
/// and not on the threads.
/// Reasons: "exact", and with `near` "near". Error(kUsage): options out of range, or the kept documents do not fit into
/// `memory`; nothing is written then. Errors of clean_corpus.
CleaningResult dedup(const DedupOptions& options);

}  // namespace trainctl::data
