// A column of strings, or of lists of strings, in the footer of a Parquet file.
#pragma once
#include <string>

#include "data/corpus/parquet/metadata.h"
#include "runtime/base/file_system.h"

namespace trainctl::data::parquet {

/// The footer of a file, checked against its size. `path`: for messages. Error(kData): no Parquet file,
/// truncated, damaged, or encrypted.
FileMetadata read_metadata(File& file, const std::string& path);

struct Column {
  std::string name, path;  ///< path: of the leaf in the schema
  size_t index = 0;        ///< in RowGroup::columns
  bool is_list = false;
  /// A value is there at this definition level; below it, it or one that holds it is null.
  uint32_t present_level = 0;
};
/// The column at the top of the schema with this name. Error(kData) if there is none, or it holds no strings.
Column find_column(const FileMetadata& metadata, const std::string& path, const std::string& name);
/// Error(kData), with the name of the column and of what is not known, if its data in one of the groups of
/// rows cannot be read: codec, encoding, encryption, places outside of the file.
void check_column(const FileMetadata& metadata, const Column& column, uint64_t file_bytes,
                  const std::string& path);

}  // namespace trainctl::data::parquet
