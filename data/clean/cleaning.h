// A cleaning: a corpus is read, each record is kept as it is or removed, and both are written down. What
// `data dedup` and `data filter` have in common.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "data/corpus/document.h"
#include "data/corpus/progress.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {

struct CleaningOptions {
  CorpusOptions corpus;
  std::string out;    ///< the folder to make; it may exist and be empty
  bool zstd = false;  ///< pack the files of kept records
  int threads = 0;    ///< that examine records; 0: one for each core. The files do not depend on it
  FileSystem* file_system = nullptr;  ///< null: that of this machine
  /// Called from time to time. May be empty.
  std::function<void(const CorpusProgress&)> progress;
};

/// Why a record was removed.
struct Removal {
  size_t reason = 0;    ///< index in CleaningResult::reasons
  std::string details;  ///< members of a JSON object, each after a comma: `,"similarity":0.93`
};

struct CleaningResult {
  struct FileCounts {
    std::string input, output;
    uint64_t documents = 0, kept = 0;  ///< without those that are empty or could not be read
  };
  struct Reason {
    std::string name;
    uint64_t documents = 0, text_bytes = 0;
  };
  std::string out, removed_file;
  std::vector<FileCounts> files;
  std::vector<Reason> reasons;
  uint64_t documents = 0, kept = 0, text_bytes = 0, kept_text_bytes = 0;
  uint64_t empty_documents = 0;
  uint64_t replaced_documents = 0;  ///< kept, of text or tables, with bytes that are no UTF-8: now U+FFFD
  uint64_t left_out_count = 0;      ///< records that could not be read
  std::vector<LeftOut> left_out;    ///< the first ten of them
  double seconds = 0;
  uint64_t removed() const { return documents - kept; }
};

}  // namespace trainctl::data
