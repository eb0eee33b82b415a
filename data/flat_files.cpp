// Token files without an index: the shards of llm.c and the headerless memmaps of nanoGPT.
#include "data/token_file.h"
#include "runtime/base/error.h"

namespace trainctl::data {

TokenFile open_llmc(const std::string& path) {
  TokenFile file;
  file.tokens_map = MappedFile(path);
  const auto bytes = file.tokens_map.bytes();
  if (bytes.size() < kLlmcHeaderBytes)
    throw Error(ErrorCode::kData, fmt::format("{} has {} bytes, less than the {} of an llm.c header; it is truncated or of "
                                              "another format", path, bytes.size(), kLlmcHeaderBytes));
  const auto magic = load<int32_t>(bytes, 0), version = load<int32_t>(bytes, 4), count = load<int32_t>(bytes, 8);
  if (magic == kLlmcMagicEval)
    throw Error(ErrorCode::kData, fmt::format("{} is an llm.c evaluation shard (magic {}), which holds questions and not "
                                              "a stream of tokens to train on", path, magic));
  if (magic != kLlmcMagicU16 && magic != kLlmcMagicU32)
    throw Error(ErrorCode::kData,
                fmt::format("{} begins with {}, not with {} or {} of an llm.c shard; if it was written without a header, say "
                            "\"format\": \"raw\", \"dtype\": \"uint16\", else prepare the data again", path, magic, kLlmcMagicU16,
                            kLlmcMagicU32));
  const int32_t expected_version = magic == kLlmcMagicU16 ? 1 : 7;
  if (version != expected_version)
    throw Error(ErrorCode::kData, fmt::format("{}: version {} at byte 4; shards with magic {} have version {}", path, version,
                                              magic, expected_version));
  file.element = magic == kLlmcMagicU16 ? Element::u16 : Element::u32;
  const uint64_t width = uint64_t(size_of(file.element));
  if (count < 0 || bytes.size() != kLlmcHeaderBytes + uint64_t(count) * width)
    throw Error(ErrorCode::kData,
                fmt::format("{} has {} bytes, but its header announces {} tokens of {} bytes, {} in all; it is truncated or corrupt",
                            path, bytes.size(), count, width, int64_t(kLlmcHeaderBytes) + int64_t(count) * int64_t(width)));
  if (count == 0) throw Error(ErrorCode::kData, fmt::format("{} holds no tokens", path));
  file.token_count = uint64_t(count);
  file.segments = {{0, kLlmcHeaderBytes}};
  return file;
}

TokenFile open_raw(const std::string& path, DType dtype) {
  TokenFile file;
  switch (dtype) {
    case DType::u16: file.element = Element::u16; break;
    case DType::u32: file.element = Element::u32; break;
    case DType::i32: file.element = Element::i32; break;
    default:
      throw Error(ErrorCode::kData, fmt::format("{}: tokens cannot be {}; say \"dtype\": \"uint16\" or \"uint32\"", path,
                                                name_of(dtype)));
  }
  file.tokens_map = MappedFile(path);
  const uint64_t width = uint64_t(size_of(file.element)), size = file.tokens_map.size();
  if (size == 0) throw Error(ErrorCode::kData, fmt::format("{} is empty", path));
  if (size % width != 0)
    throw Error(ErrorCode::kData, fmt::format("{} has {} bytes, no multiple of the {} of a {} token; it is truncated or of "
                                              "another dtype", path, size, width, name_of(file.element)));
  file.token_count = size / width;
  file.segments = {{0, 0}};
  return file;
}

}  // namespace trainctl::data
