// TextInput reads text to tokenize from plain files (one document per file) and JSON lines (one document per
// line).
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/mapped_file.h"

namespace trainctl::data {

struct TextDocument {
  std::string_view text;  ///< valid until the next call of next()
  bool whole_file;        ///< the document is a plain file
};

/// Reads the documents of several files in order. Not thread-safe.
class TextInput {
 public:
  /// Files with the endings `.jsonl`, `.ndjson` and `.json` have one JSON object per line, with the text
  /// under `text_key`. Other files are plain text. Error(kData): no files, or a file is missing or
  /// compressed.
  TextInput(std::vector<std::string> paths, std::string text_key);
  /// Reads the next document that is not empty. Returns false at the end. Error(kData) with file and line.
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
  MappedFile file_;            // the current file
  std::string_view rest_;      // JSON lines: the part of the file that was not read yet
  uint64_t line_ = 0;
  std::string text_;           // JSON lines: the text of the current document
};

}  // namespace trainctl::data
