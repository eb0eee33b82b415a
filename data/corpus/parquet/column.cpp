#include "data/corpus/parquet/column.h"

#include <cstring>
#include <set>

#include "data/corpus/parquet/thrift.h"
#include "data/corpus/parquet/unpack.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace trainctl::data::parquet {
namespace {

constexpr uint64_t kTailBytes = 8, kHeadBytes = 4;  // the tail: length of the footer, then the mark
constexpr uint64_t kLargestFooter = uint64_t(256) << 20;
constexpr int kDeepestSchema = 32;

std::string read_bytes(File& file, uint64_t offset, uint64_t bytes) {
  std::string text(bytes, '\0');
  file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

/// The schema as a tree: where each subtree ends, and how many leaves are before each element.
class Schema {
 public:
  Schema(const std::vector<SchemaElement>& elements, const std::string& path)
      : elements_(elements), path_(path) {
    ends_.resize(elements.size());
    leaves_.resize(elements.size());
    if (elements.empty() || visit(0, 0) != elements.size()) damaged();
  }

  std::vector<size_t> children(size_t parent) const {
    std::vector<size_t> found;
    for (size_t i = parent + 1; i < ends_[parent]; i = ends_[i]) found.push_back(i);
    return found;
  }
  bool is_leaf(size_t i) const { return elements_[i].children == 0; }
  size_t leaves_before(size_t i) const { return leaves_[i]; }

 private:
  [[noreturn]] void damaged() const {
    throw Error(ErrorCode::kData,
                fmt::format("{}: the schema in the footer is no tree; the file is damaged", path_));
  }
  size_t visit(size_t i, int depth) {
    if (i >= elements_.size() || depth > kDeepestSchema) damaged();
    leaves_[i] = count_;
    if (elements_[i].children < 0) damaged();
    if (i > 0 && elements_[i].children == 0) ++count_;
    size_t next = i + 1;
    for (int32_t c = 0; c < elements_[i].children; ++c) next = visit(next, depth + 1);
    return ends_[i] = next;
  }

  const std::vector<SchemaElement>& elements_;
  const std::string& path_;
  std::vector<size_t> ends_, leaves_;
  size_t count_ = 0;
};

std::string columns_text(const FileMetadata& metadata, const Schema& schema) {
  constexpr size_t kShown = 16;
  std::string names;
  size_t n = 0;
  for (const size_t i : schema.children(0))
    if (n++ < kShown) names += (names.empty() ? "" : ", ") + metadata.schema[i].name;
  return n > kShown ? names + ", ..." : names;
}

/// Sets the leaf of the column at `top`, its path and levels. Returns what the column is instead of
/// strings, or "". A list is `repeated binary`, or a group marked as a list of `repeated binary` or of
/// `repeated group { binary }`.
std::string resolve(const FileMetadata& metadata, const Schema& schema, size_t top, Column& column,
                    size_t& leaf) {
  leaf = top;
  const auto descend = [&] {  // to the only child
    const auto children = schema.children(leaf);
    if (children.size() != 1) return false;
    leaf = children[0];
    column.path += "." + metadata.schema[leaf].name;
    return true;
  };
  const auto is_repeated = [&] { return metadata.schema[leaf].repetition == Repetition::repeated; };
  const auto count_level = [&] {
    column.present_level += metadata.schema[leaf].repetition != Repetition::required;
  };
  column.path = metadata.schema[top].name;
  column.is_list = is_repeated();
  count_level();
  if (!schema.is_leaf(leaf)) {
    if (column.is_list || !metadata.schema[top].is_list) return "structs or maps";
    if (!descend() || !is_repeated()) return "structs";
    column.is_list = true;
    count_level();
    if (!schema.is_leaf(leaf)) {
      if (!descend()) return "lists of structs";
      if (!schema.is_leaf(leaf) || is_repeated()) return "lists of lists or of structs";
      count_level();
    }
  }
  const PhysicalType type = metadata.schema[leaf].type;
  if (type == PhysicalType::byte_array) return "";
  return (column.is_list ? "lists of " : "") + name_of(type);
}

/// Error(kData) if the data of a column cannot be read.
void check_chunk(const ColumnChunk& chunk, const Column& column, size_t group, uint64_t end_of_data,
                 const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kData, fmt::format("{}, column {}: {}", path, column.name, why));
  };
  if (chunk.encrypted || !chunk.has_metadata) refuse("it is encrypted; this program has no keys");
  if (!chunk.file.empty())
    refuse(fmt::format("its data are in another file, {}; give files that hold their data", chunk.file));
  if (!can_unpack(chunk.codec))
    refuse(fmt::format("it is packed with {}; this program reads UNCOMPRESSED, SNAPPY, GZIP and ZSTD",
                       name_of(chunk.codec)));
  for (const Encoding encoding : chunk.encodings)
    if (encoding > Encoding::bit_packed && encoding != Encoding::rle_dictionary)
      refuse(fmt::format(
          "its encoding is {}; this program reads PLAIN and dictionaries (PLAIN_DICTIONARY, RLE_DICTIONARY)",
          name_of(encoding)));
  if (chunk.path != column.path)
    refuse(fmt::format("group {} of rows has {} in its place; the footer is damaged", group, chunk.path));
  const int64_t begin =
      chunk.dictionary_page > 0 ? std::min(chunk.dictionary_page, chunk.data_page) : chunk.data_page;
  if (chunk.values < 0 || chunk.bytes < 0 || begin < int64_t(kHeadBytes) || uint64_t(begin) > end_of_data ||
      uint64_t(chunk.bytes) > end_of_data - uint64_t(begin))
    refuse(fmt::format(
        "group {} of rows has its {} values in {} bytes at byte {} of {}; the file is truncated or damaged",
        group, chunk.values, chunk.bytes, begin, end_of_data));
}

}  // namespace

FileMetadata read_metadata(File& file, const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kData, fmt::format("{} {}", path, why));
  };
  const uint64_t size = file.size();
  if (size < kHeadBytes + kTailBytes) refuse(fmt::format("has {} bytes and is no Parquet file", size));
  const std::string head = read_bytes(file, 0, kHeadBytes),
                    tail = read_bytes(file, size - kTailBytes, kTailBytes);
  if (tail.ends_with("PARE") || head == "PARE") refuse("has an encrypted footer; this program has no keys");
  if (head != "PAR1") refuse("does not begin with PAR1 and is no Parquet file");
  if (!tail.ends_with("PAR1"))
    refuse(fmt::format("is truncated: a Parquet file ends with PAR1, and this one ends at byte {} without",
                       size));
  uint32_t length = 0;
  std::memcpy(&length, tail.data(), sizeof length);
  if (length > size - kHeadBytes - kTailBytes || length > kLargestFooter)
    refuse(fmt::format("announces a footer of {} bytes at byte {} and has {}; it is damaged", length,
                       size - kTailBytes, size));
  try {
    FileMetadata metadata = parse_metadata(read_bytes(file, size - kTailBytes - length, length));
    int64_t rows = 0;
    for (const RowGroup& group : metadata.groups)
      if (group.rows < 0 || __builtin_add_overflow(rows, group.rows, &rows)) rows = -1;
    if (rows != metadata.rows)
      refuse(fmt::format("announces {} rows, and its groups of rows have {}; it is damaged", metadata.rows,
                         rows));
    return metadata;
  } catch (const ThriftError& e) {
    refuse(fmt::format("has a damaged footer of {} bytes at byte {}: {}", length, size - kTailBytes - length,
                       e.what()));
  }
  return {};
}

Column find_column(const FileMetadata& metadata, const std::string& path, const std::string& name) {
  const Schema schema(metadata.schema, path);
  Column column{.name = name};
  size_t top = 0;
  for (const size_t i : schema.children(0))
    if (metadata.schema[i].name == name) top = i;
  if (top == 0)
    throw Error(ErrorCode::kData,
                fmt::format("{} has no column \"{}\" (columns: {}); choose one with --text-key", path, name,
                            columns_text(metadata, schema)));
  size_t leaf = 0;
  const std::string other = resolve(metadata, schema, top, column, leaf);
  if (!other.empty())
    throw Error(
        ErrorCode::kData,
        fmt::format(
            "{}, column {}: it holds {}, neither strings nor lists of strings (columns: {}); choose one "
            "with --text-key",
            path, name, other, columns_text(metadata, schema)));
  column.index = schema.leaves_before(leaf);
  return column;
}

void check_column(const FileMetadata& metadata, const Column& column, uint64_t file_bytes,
                  const std::string& path) {
  for (size_t g = 0; g < metadata.groups.size(); ++g) {
    const auto& chunks = metadata.groups[g].columns;
    if (column.index >= chunks.size())
      throw Error(
          ErrorCode::kData,
          fmt::format("{}: group {} of rows has {} columns, and the schema has more; the footer is damaged",
                      path, g, chunks.size()));
    // Of a group without rows nothing is read.
    if (metadata.groups[g].rows > 0) check_chunk(chunks[column.index], column, g, file_bytes - kTailBytes, path);
  }
}

}  // namespace trainctl::data::parquet
