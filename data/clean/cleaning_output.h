// CleaningOutput: the files that a cleaning writes, and what it counts.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/clean/cleaning.h"
#include "data/clean/line_writer.h"
#include "data/clean/output_folder.h"

namespace trainctl::data {

/// The names of the files of kept records, one for each input: "a.jsonl" of "x/a.txt.gz", or "a.jsonl.zst".
/// Where names would be equal, and for removed.jsonl, the later ones are "a-2.jsonl", "a-3.jsonl". Pure.
std::vector<std::string> output_names(const std::vector<std::string>& inputs, bool zstd);

/// A record of the corpus, as it is written down.
struct CleanedRecord {
  uint32_t file = 0;      ///< index of the input
  std::string_view unit;  ///< "line", "document" or "row"
  uint64_t number = 0;    ///< in the file, from 1
  uint64_t offset = 0;    ///< see Document::offset
  std::string_view line;  ///< without newline: what is written if it is kept
  uint64_t text_bytes = 0;
  bool is_replaced = false;  ///< see CleaningResult::replaced_documents
};

/// One thread. Files are written in the order of the inputs; one is open at a time, and removed.jsonl.
class CleaningOutput {
 public:
  CleaningOutput(const CleaningOptions& options, std::vector<std::string> reasons);
  void keep(const CleanedRecord& record);
  void remove(const CleanedRecord& record, const Removal& why);
  void count_empty(uint64_t documents) { result_.empty_documents += documents; }
  void leave_out(const LeftOut& record);
  /// Gives all files their names. The last call.
  CleaningResult publish();

 private:
  void go_to(size_t file);

  FileSystem& fs_;
  const CleaningOptions& options_;
  OutputFolder folder_;
  CleaningResult result_;
  std::vector<std::string> names_;
  size_t next_file_ = 0;                // whose file is not made yet
  std::unique_ptr<LineWriter> writer_;  // of the file before it
  LineWriter removed_;
};

}  // namespace trainctl::data
