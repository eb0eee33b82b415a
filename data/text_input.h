// TextInput reads text to tokenize from plain files (one document per file) and JSON lines (one document per
// line).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/mapped_file.h"

namespace trainctl::data {

struct TextDocument {
  std::string_view text;  ///< valid until the next call of next()
  bool whole_file;        ///< the document is a plain file
};

/// A part of the input that can be read without the others: a plain file, or some lines of JSON.
struct TextBlock {
  std::shared_ptr<const MappedFile> file;  ///< has `text`
  std::string_view text;
  bool whole_file = false;
  uint64_t first_line = 0;  ///< of JSON lines: the number of the first line in the file
};

/// Reads the documents of a block of JSON lines. Not thread-safe; several blocks may be read at once.
class JsonLines {
 public:
  JsonLines() = default;
  JsonLines(TextBlock block, std::string text_key);
  /// Reads the text of the next line that is not empty; false at the end. Error(kData) with file and line.
  bool next(std::string& text);
  uint64_t empty_documents() const { return empty_documents_; }

 private:
  TextBlock block_;
  std::string text_key_;
  std::string_view rest_;
  uint64_t line_ = 0, empty_documents_ = 0;
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
  /// Reads the next block: a plain file, which may be empty, or lines of JSON of about `limit` bytes.
  /// Returns false at the end. Use either this or next().
  bool next_block(TextBlock& block, size_t limit);
  void rewind();
  const std::string& text_key() const { return text_key_; }
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  std::vector<std::string> paths_;
  std::string text_key_;
  uint64_t total_bytes_ = 0;
  size_t next_path_ = 0;
  TextBlock rest_;     // of JSON lines: the part of the file that was not read yet
  TextBlock current_;  // of next()
  JsonLines lines_;    // of next()
  std::string text_;   // of next(): the text of the current line
};

}  // namespace trainctl::data
