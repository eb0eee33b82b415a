#include "data/corpus/parquet/metadata.h"

#include <fmt/format.h>

#include "data/corpus/parquet/thrift.h"

namespace trainctl::data::parquet {
namespace {

using Type = ThriftReader::Type;

template <size_t kCount>
std::string name_from(const char* const (&names)[kCount], int value, const char* kind) {
  if (value >= 0 && value < int(kCount)) return names[value];
  return fmt::format("{} {}", kind, value);
}

constexpr int32_t kConvertedList = 3;
constexpr int16_t kLogicalList = 3;

SchemaElement read_element(ThriftReader& in) {
  SchemaElement element;
  in.structure([&](int16_t id, Type type) {
    switch (id) {
      case 1: element.type = PhysicalType(in.i32(type)); break;
      case 3: element.repetition = Repetition(in.i32(type)); break;
      case 4: element.name = std::string(in.binary(type)); break;
      case 5: element.children = in.i32(type); break;
      case 6: element.is_list = in.i32(type) == kConvertedList || element.is_list; break;
      case 10:  // the logical type, a union
        in.need_structure(type);
        in.structure([&](int16_t kind, Type) { element.is_list = kind == kLogicalList || element.is_list; });
        break;
      default: break;
    }
  });
  return element;
}

void read_column_metadata(ThriftReader& in, ColumnChunk& chunk) {
  chunk.has_metadata = true;
  in.structure([&](int16_t id, Type type) {
    switch (id) {
      case 1: chunk.type = PhysicalType(in.i32(type)); break;
      case 2:
        in.list(type, Type::i32, [&] { chunk.encodings.push_back(Encoding(in.i32(Type::i32))); });
        break;
      case 3:
        in.list(type, Type::binary, [&] {
          if (!chunk.path.empty()) chunk.path += '.';
          chunk.path += in.binary(Type::binary);
        });
        break;
      case 4: chunk.codec = Codec(in.i32(type)); break;
      case 5: chunk.values = in.i64(type); break;
      case 7: chunk.bytes = in.i64(type); break;
      case 9: chunk.data_page = in.i64(type); break;
      case 11: chunk.dictionary_page = in.i64(type); break;
      default: break;
    }
  });
}

ColumnChunk read_chunk(ThriftReader& in) {
  ColumnChunk chunk;
  in.structure([&](int16_t id, Type type) {
    switch (id) {
      case 1: chunk.file = std::string(in.binary(type)); break;
      case 3:
        in.need_structure(type);
        read_column_metadata(in, chunk);
        break;
      case 8:
      case 9: chunk.encrypted = true; break;
      default: break;
    }
  });
  return chunk;
}

RowGroup read_group(ThriftReader& in) {
  RowGroup group;
  in.structure([&](int16_t id, Type type) {
    if (id == 1) in.list(type, Type::structure, [&] { group.columns.push_back(read_chunk(in)); });
    if (id == 3) group.rows = in.i64(type);
  });
  return group;
}

void read_data_header(ThriftReader& in, PageHeader& header) {
  in.structure([&](int16_t id, Type type) {
    switch (id) {
      case 1: header.values = in.i32(type); break;
      case 2: header.encoding = Encoding(in.i32(type)); break;
      case 3: header.definition_encoding = Encoding(in.i32(type)); break;
      case 4: header.repetition_encoding = Encoding(in.i32(type)); break;
      default: break;
    }
  });
}

void read_dictionary_header(ThriftReader& in, PageHeader& header) {
  in.structure([&](int16_t id, Type type) {
    if (id == 1) header.values = in.i32(type);
    if (id == 2) header.encoding = Encoding(in.i32(type));
  });
}

void read_data_v2_header(ThriftReader& in, PageHeader& header) {
  in.structure([&](int16_t id, Type type) {
    switch (id) {
      case 1: header.values = in.i32(type); break;
      case 3: header.rows = in.i32(type); break;
      case 4: header.encoding = Encoding(in.i32(type)); break;
      case 5: header.definition_bytes = in.i32(type); break;
      case 6: header.repetition_bytes = in.i32(type); break;
      case 7: header.is_packed = in.boolean(type); break;
      default: break;
    }
  });
}

}  // namespace

std::string name_of(PhysicalType type) {
  static const char* const kNames[] = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                       "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
  return name_from(kNames, int(type), "type");
}

std::string name_of(Codec codec) {
  static const char* const kNames[] = {"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO",
                                       "BROTLI",       "LZ4",    "ZSTD", "LZ4_RAW"};
  return name_from(kNames, int(codec), "codec");
}

std::string name_of(Encoding encoding) {
  static const char* const kNames[] = {
      "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
      "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
      "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
  return name_from(kNames, int(encoding), "encoding");
}

FileMetadata parse_metadata(std::string_view footer) {
  FileMetadata metadata;
  ThriftReader in(footer);
  in.structure([&](int16_t id, Type type) {
    switch (id) {
      case 2: in.list(type, Type::structure, [&] { metadata.schema.push_back(read_element(in)); }); break;
      case 3: metadata.rows = in.i64(type); break;
      case 4: in.list(type, Type::structure, [&] { metadata.groups.push_back(read_group(in)); }); break;
      case 8: metadata.encrypted = true; break;
      default: break;
    }
  });
  return metadata;
}

PageHeader parse_page_header(std::string_view bytes) {
  PageHeader header;
  ThriftReader in(bytes);
  in.structure([&](int16_t id, Type type) {
    switch (id) {
      case 1: header.kind = PageHeader::Kind(in.i32(type)); break;
      case 2: header.bytes = in.i32(type); break;
      case 3: header.stored_bytes = in.i32(type); break;
      case 4:
        header.has_crc = true;
        header.crc = uint32_t(in.i32(type));
        break;
      case 5: in.need_structure(type), read_data_header(in, header); break;
      case 7: in.need_structure(type), read_dictionary_header(in, header); break;
      case 8: in.need_structure(type), read_data_v2_header(in, header); break;
      default: break;
    }
  });
  header.header_bytes = in.position();
  return header;
}

}  // namespace trainctl::data::parquet
