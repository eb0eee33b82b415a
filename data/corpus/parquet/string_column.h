// StringColumn: the texts of one column of a Parquet file, row by row.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/corpus/parquet/pages.h"

namespace trainctl::data::parquet {

/// Known are columns of strings, optional or not, and of lists of strings, in pages of version 1 and 2,
/// encoded PLAIN or by a dictionary, packed with SNAPPY, GZIP, ZSTD or not at all. Anything else is refused
/// with its name and that of the column. Not thread-safe. Memory: one page (at most 1 GiB, as stored and
/// unpacked) and one dictionary.
class StringColumn {
 public:
  /// `path`: for messages. `longest_row`: a longer text is cut there. Error(kData).
  StringColumn(std::unique_ptr<File> file, const std::string& path, const std::string& column,
               uint64_t longest_row);

  uint64_t row_count() const { return uint64_t(metadata_.rows); }
  /// Goes to a row. Only before the first read.
  void seek(uint64_t row);
  /// Appends the text of the next row to `text`: a null is nothing; the strings of a list are joined by
  /// newlines, without nulls. False at the end. Error(kData).
  bool next(std::string& text);
  /// The byte of the file up to which pages were read.
  uint64_t position() const { return pages_ ? pages_->position() : 0; }

 private:
  bool open_group();
  bool peek();

  std::unique_ptr<File> file_;
  const std::string path_;
  const uint64_t longest_row_;
  FileMetadata metadata_;
  Column column_;
  size_t group_ = 0;       // the next one to open
  int64_t rows_left_ = 0;  // of the open one
  std::unique_ptr<PageReader> pages_;
  PageReader::Entry entry_;  // the next one, if has_entry_
  bool has_entry_ = false;
};

}  // namespace trainctl::data::parquet
