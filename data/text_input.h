// Text to be tokenized: plain files, one document each, and JSON lines, one document per line.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/mapped_file.h"

namespace trainctl::data {

struct TextDocument {
  std::string_view text;  ///< lives until the next call of next()
  bool whole_file;        ///< a plain file
};

/// The documents of several files in order. Not thread-safe.
class TextInput {
 public:
  /// `.jsonl`, `.ndjson` and `.json` hold one JSON object per line, the text under `text_key`. Everything else is plain text.
  /// Error(kData): no files, a missing or compressed one.
  TextInput(std::vector<std::string> paths, std::string text_key);
  /// The next document that is not empty; false at the end. Error(kData) naming file and line.
  bool next(TextDocument& document);
  void rewind();
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t consumed_bytes() const { return consumed_bytes_; }
  uint64_t empty_documents() const { return empty_documents_; }

 private:
  bool next_line(TextDocument& document);

  std::vector<std::string> paths_;
  std::string text_key_;
  uint64_t total_bytes_ = 0, consumed_bytes_ = 0, empty_documents_ = 0;
  size_t next_path_ = 0;
  MappedFile file_;            // under way
  std::string_view rest_;      // JSON lines: what is not read yet
  uint64_t line_ = 0;
  std::string text_;           // JSON lines: the document handed out
};

}  // namespace trainctl::data
