// What the footer of a Parquet file says: its columns, and where their pages are.
// Source: parquet.thrift of Apache Parquet, format version 2.10.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::data::parquet {

/// As the format numbers them; other values occur in files of later versions.
enum class PhysicalType { boolean, int32, int64, int96, real32, real64, byte_array, fixed_len_byte_array };
enum class Codec { uncompressed, snappy, gzip, lzo, brotli, lz4, zstd, lz4_raw };
enum class Encoding { plain = 0, plain_dictionary = 2, rle = 3, bit_packed = 4, rle_dictionary = 8 };
enum class Repetition { required, optional, repeated };
/// The name that the format gives it, "type 12" of an unknown one.
std::string name_of(PhysicalType type);
std::string name_of(Codec codec);
std::string name_of(Encoding encoding);

struct SchemaElement {
  std::string name;
  PhysicalType type = PhysicalType::boolean;
  Repetition repetition = Repetition::required;
  int32_t children = 0;
  bool is_list = false;  ///< annotated as one
};

/// The part of a column in one group of rows.
struct ColumnChunk {
  std::string path;  ///< names of the schema, joined with '.'
  std::string file;  ///< not empty: the data are in another file
  PhysicalType type = PhysicalType::boolean;
  Codec codec = Codec::uncompressed;
  std::vector<Encoding> encodings;             ///< of its pages and levels
  int64_t values = 0, bytes = 0;               ///< bytes: of its pages, as stored
  int64_t data_page = 0, dictionary_page = 0;  ///< bytes of the file; 0: none
  bool has_metadata = false, encrypted = false;
};

struct RowGroup {
  std::vector<ColumnChunk> columns;
  int64_t rows = 0;
};

struct FileMetadata {
  std::vector<SchemaElement> schema;  ///< the tree, parents first
  std::vector<RowGroup> groups;
  int64_t rows = 0;
  bool encrypted = false;
};

/// Error(kData), ThriftError.
FileMetadata parse_metadata(std::string_view footer);

struct PageHeader {
  enum class Kind { data, index, dictionary, data_v2 };
  Kind kind = Kind::data;
  int32_t stored_bytes = -1, bytes = -1;  ///< without the header; bytes: unpacked
  bool has_crc = false;
  uint32_t crc = 0;
  int32_t values = -1;
  Encoding encoding = Encoding::plain;
  Encoding definition_encoding = Encoding::rle, repetition_encoding = Encoding::rle;
  // Of data_v2.
  int32_t rows = -1, definition_bytes = 0, repetition_bytes = 0;
  bool is_packed = true;
  size_t header_bytes = 0;
};
/// The header at the start of `bytes`. ThriftEnd if it needs more bytes; ThriftError.
PageHeader parse_page_header(std::string_view bytes);

}  // namespace trainctl::data::parquet
