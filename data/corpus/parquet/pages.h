// PageReader: the pages of a column, one after the other, unpacked and divided into levels and values.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus/parquet/column.h"
#include "data/corpus/parquet/runs.h"

namespace trainctl::data::parquet {

inline constexpr int64_t kLargestPage = int64_t(1) << 30;  ///< bytes, as stored and unpacked

/// The values of one column chunk. Not thread-safe; outlived by the file. Memory: one page as stored and
/// unpacked, and the dictionary. Error(kData): damage, with file, column and byte; a part of the format
/// that is not known.
class PageReader {
 public:
  PageReader(File& file, std::string path, const Column& column, const ColumnChunk& chunk);
  PageReader(const PageReader&) = delete;

  struct Entry {
    bool continues_row = false;  ///< another element of the row's list
    bool is_present = false;
    std::string_view value;  ///< valid until the next call of next()
  };
  /// Reads the next entry; false at the end of the chunk.
  bool next(Entry& entry);
  /// The byte of the file up to which pages were read.
  uint64_t position() const { return at_; }

 private:
  [[noreturn]] void fail(const std::string& why) const;
  bool load_page();
  PageHeader read_header() const;
  std::string_view read_body(const PageHeader& header);
  void load_dictionary(const PageHeader& header, std::string_view packed);
  void load_data(const PageHeader& header, std::string_view packed);
  void load_data_v2(const PageHeader& header, std::string_view packed);
  std::string_view take(std::string_view& bytes, uint64_t n, const char* what) const;
  std::string_view take_levels(std::string_view& bytes, Encoding encoding) const;
  void start_values(Encoding encoding, std::string_view values);
  void unpack(std::string_view packed, int64_t bytes, std::string& out) const;
  std::string_view next_value();

  File& file_;
  const std::string path_;
  const Column& column_;
  const Codec codec_;
  uint64_t at_, end_, page_at_ = 0;  // bytes of the file
  int64_t values_left_;              // of the chunk, in pages that were not read
  int32_t entries_left_ = 0;         // of the page
  std::string stored_, page_, dictionary_bytes_;
  std::vector<std::string_view> dictionary_;
  bool has_dictionary_ = false, uses_dictionary_ = false;
  RunReader repetition_, definition_, indices_;
  std::string_view plain_;
};

}  // namespace trainctl::data::parquet
