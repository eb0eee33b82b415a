#include "ckpt/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"

namespace trainctl::ckpt {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct DTypeBits {
  const char* name;
  unsigned bits;
};
constexpr DTypeBits kDTypes[] = {
    {"BOOL", 8},       {"F4", 4},          {"F6_E2M3", 6},  {"F6_E3M2", 6},      {"U8", 8},
    {"I8", 8},         {"F8_E5M2", 8},     {"F8_E4M3", 8},  {"F8_E8M0", 8},      {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},       {"U16", 16},     {"F16", 16},         {"BF16", 16},
    {"I32", 32},       {"U32", 32},        {"F32", 32},     {"C64", 64},         {"F64", 64},
    {"I64", 64},       {"U64", 64},
};

/// Bits of one element; 0 for a dtype that the format does not have.
unsigned bits_of(const std::string& dtype) {
  for (const DTypeBits& known : kDTypes)
    if (dtype == known.name) return known.bits;
  return 0;
}

/// The checks of one file's header. Every refusal names the file.
class HeaderReader {
 public:
  explicit HeaderReader(std::string path) : path_(std::move(path)) {}

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorCode::kCheckpoint, fmt::format("{} is not a valid safetensors file: {}", path_,
                                                    fmt::format(format, std::forward<Args>(args)...)));
  }

  void refuse_stand_in(File& file, uint64_t file_bytes) const {
    std::string begin(std::min<uint64_t>(file_bytes, 200), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(begin)));
    if (const std::string what = stand_in(begin); !what.empty())
      throw Error(ErrorCode::kCheckpoint, fmt::format("{} is {}", path_, what));
  }

  /// Checks the length field, reads the header text.
  std::string read_text(File& file, uint64_t file_bytes) const {
    refuse_stand_in(file, file_bytes);
    if (file_bytes < 8) refuse("it has {} bytes, fewer than the 8 of the header length", file_bytes);
    unsigned char raw[8];
    file.read_at(0, std::as_writable_bytes(std::span(raw)));
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | raw[i];
    if (length > kMaxHeaderBytes)
      refuse("its header length {} exceeds the format's limit of {}", length, kMaxHeaderBytes);
    if (8 + length > file_bytes)
      refuse("its header length {} reaches beyond the file's {} bytes", length, file_bytes);
    std::string text(length, '\0');
    file.read_at(8, std::as_writable_bytes(std::span(text)));
    return text;
  }

  /// Parses and refuses duplicate keys.
  Json parse(const std::string& text) const {
    // The JSON library takes a NUL for the end of the text and ignores the rest.
    if (text.find('\0') != std::string::npos) refuse("its header holds a NUL byte");
    Json header;
    try {
      header = Json::parse(text, Keys::unique);
    } catch (const DuplicateKey& twice) {
      refuse("the key \"{}\" occurs twice in its header", twice.key);
    } catch (const JsonError& error) {
      refuse("its header is not JSON in UTF-8 ({})", error.what());
    }
    if (!header.is_object()) refuse("its header is no JSON object");
    return header;
  }

  std::map<std::string, std::string> metadata(const Json& value) const {
    if (value.is_null()) return {};
    if (!value.is_object()) refuse("__metadata__ is no object");
    std::map<std::string, std::string> result;
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) refuse("__metadata__ \"{}\" is no string", key);
      result[key] = text.get<std::string>();
    }
    return result;
  }

  /// Offsets of the result are still relative to the data section.
  SafetensorsEntry entry(const std::string& name, const Json& value) const {
    if (!value.is_object()) refuse("tensor \"{}\" is no object", name);
    for (const char* key : {"dtype", "shape", "data_offsets"})
      if (!value.contains(key)) refuse("tensor \"{}\" has no {}", name, key);
    const Json& dtype = value["dtype"];
    const Json& shape = value["shape"];
    const Json& offsets = value["data_offsets"];
    if (!dtype.is_string()) refuse("the dtype of tensor \"{}\" is no string", name);
    SafetensorsEntry entry{.name = name, .dtype = dtype.get<std::string>()};
    const uint64_t bits = bits_of(entry.dtype);
    if (bits == 0) refuse("tensor \"{}\" has the unknown dtype \"{}\"", name, entry.dtype);
    if (!shape.is_array()) refuse("the shape of tensor \"{}\" is no list", name);
    uint64_t count = 1;
    for (const Json& dimension : shape) {
      if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() > uint64_t(INT64_MAX))
        refuse("tensor \"{}\" has the dimension {}", name, dump_json(dimension));
      entry.shape.push_back(dimension.get<int64_t>());
      if (__builtin_mul_overflow(count, dimension.get<uint64_t>(), &count))
        refuse("the shape of tensor \"{}\" overflows", name);
    }
    if (__builtin_mul_overflow(count, bits, &count)) refuse("the size of tensor \"{}\" overflows", name);
    if (count % 8 != 0) refuse("tensor \"{}\" has {} bits, no whole number of bytes", name, count);
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned())
      refuse("the data_offsets of tensor \"{}\" are not two unsigned numbers", name);
    const uint64_t begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
    if (end < begin) refuse("tensor \"{}\" ends at {}, before its begin {}", name, end, begin);
    if (end - begin != count / 8)
      refuse("tensor \"{}\" has {} bytes, but its dtype and shape need {}", name, end - begin, count / 8);
    entry.offset = begin;
    entry.bytes = end - begin;
    return entry;
  }

  /// No holes, no overlaps, nothing beyond the last tensor.
  void check_cover(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) const {
    uint64_t end = 0;
    for (const SafetensorsEntry& entry : entries) {
      if (entry.offset != end)
        refuse("tensor \"{}\" begins at data byte {}, but what stands before it ends at {}", entry.name,
               entry.offset, end);
      end += entry.bytes;
    }
    if (end < data_bytes) refuse("{} bytes follow its last tensor", data_bytes - end);
    if (end > data_bytes) refuse("it ends {} bytes before its last tensor does", end - data_bytes);
  }

 private:
  std::string path_;
};

}  // namespace

SafetensorsFile open_safetensors(FileSystem& fs, const std::string& path) {
  return open_safetensors(fs.open_read(path), path);
}

SafetensorsFile open_safetensors(std::unique_ptr<File> file, const std::string& path) {
  const HeaderReader reader(path);
  SafetensorsFile result;
  result.file = std::move(file);
  const uint64_t file_bytes = result.file->size();
  const std::string text = reader.read_text(*result.file, file_bytes);
  const Json header = reader.parse(text);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__")
      result.metadata = reader.metadata(value);
    else
      result.entries.push_back(reader.entry(name, value));
  }
  std::sort(result.entries.begin(), result.entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tuple(a.offset, a.bytes, a.name) < std::tuple(b.offset, b.bytes, b.name);
  });
  const uint64_t data_begin = 8 + text.size();
  reader.check_cover(result.entries, file_bytes - data_begin);
  for (SafetensorsEntry& entry : result.entries) entry.offset += data_begin;
  return result;
}

std::string safetensors_header(const std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + dump_json(Json(metadata));
  uint64_t offset = 0;
  for (const SafetensorsEntry& entry : entries) {
    ENSURE(bits_of(entry.dtype) != 0, "dtype {}", entry.dtype);
    fmt::format_to(std::back_inserter(text),
                   "{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                   text.size() > 1 ? "," : "", json_string(entry.name), entry.dtype,
                   fmt::join(entry.shape, ","), offset, offset + entry.bytes);
    offset += entry.bytes;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeaderBytes)
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("a safetensors header of {} bytes exceeds the format's limit of {}; write "
                            "fewer tensors into one file",
                            text.size(), kMaxHeaderBytes));
  std::string result;
  for (uint64_t i = 0, length = text.size(); i < 8; ++i, length >>= 8) result += char(length & 0xff);
  return result + text;
}

}  // namespace trainctl::ckpt
