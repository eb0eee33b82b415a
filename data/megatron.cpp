// The IndexedDataset of Megatron-LM. Layout, all little-endian and packed, so that arrays start at odd offsets:
//
//   0   9 bytes  "MMIDIDX\0\0"         18  u64  S, sequences         34            i32[S]  tokens of each sequence
//   9   u64      version, 1            26  u64  D, documents + 1     34 + 4S       i64[S]  byte offset in the .bin
//   17  u8       code of the dtype                                   34 + 12S      i64[D]  first sequence of each document
//                                                                    34 + 12S + 8D i8[S]   modes, only in multimodal sets
#include <algorithm>

#include "data/token_file.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

Element element_of_code(const std::string& path, int code) {
  switch (code) {
    case 1: return Element::u8;
    case 2: return Element::i8;
    case 3: return Element::i16;
    case 4: return Element::i32;
    case 5: return Element::i64;
    case 8: return Element::u16;
    default: break;
  }
  throw Error(ErrorCode::kData,
              fmt::format("{}: dtype code {} at byte 17 is {}; token files have 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64) "
                          "or 8 (u16)", path, code, code == 6 || code == 7 ? "a floating-point type" : "unknown"));
}

struct HeaderCounts {
  uint64_t sequences, documents;  // documents: entries of the index, one more than real documents
};

/// Checks everything up to the arrays, and that the arrays fill the file.
HeaderCounts check_header(const MappedFile& index) {
  const std::string& path = index.path();
  const auto bytes = index.bytes();
  if (bytes.size() < kMegatronHeaderBytes)
    throw Error(ErrorCode::kData, fmt::format("{} has {} bytes, less than the header of {}; it is truncated or no Megatron "
                                              "index", path, bytes.size(), kMegatronHeaderBytes));
  if (std::memcmp(bytes.data(), kMegatronMagic, sizeof kMegatronMagic) != 0)
    throw Error(ErrorCode::kData, fmt::format("{} does not begin with MMIDIDX and is no Megatron index", path));
  if (const auto version = load<uint64_t>(bytes, 9); version != 1)
    throw Error(ErrorCode::kData, fmt::format("{}: version {} at byte 9; this program reads version 1", path, version));
  const HeaderCounts n{load<uint64_t>(bytes, 18), load<uint64_t>(bytes, 26)};
  const bool sane = n.sequences <= bytes.size() / 12 && n.documents <= bytes.size() / 8;
  const uint64_t expected = sane ? kMegatronHeaderBytes + 12 * n.sequences + 8 * n.documents : 0;
  if (!sane || (bytes.size() != expected && bytes.size() != expected + n.sequences))
    throw Error(ErrorCode::kData,
                fmt::format("{} has {} bytes, but its header announces {} sequences and {} document entries{}; it is {}", path,
                            bytes.size(), n.sequences, n.documents, sane ? fmt::format(", {} bytes", expected) : "",
                            sane && bytes.size() > expected ? "corrupt" : "truncated or corrupt"));
  return n;
}

void check_documents(const MappedFile& index, HeaderCounts n) {
  const uint64_t base = kMegatronHeaderBytes + 12 * n.sequences;
  int64_t previous = 0;
  for (uint64_t i = 0; i < n.documents; ++i) {
    const auto start = load<int64_t>(index.bytes(), base + 8 * i);
    if (i == 0 ? start != 0 : start < previous || uint64_t(start) > n.sequences)
      throw Error(ErrorCode::kData,
                  fmt::format("{}: document {} starts at sequence {} (byte {}), after {} and of {} sequences", index.path(), i,
                              start, base + 8 * i, previous, n.sequences));
    previous = start;
  }
  if (n.documents == 0 || uint64_t(previous) != n.sequences)
    throw Error(ErrorCode::kData, fmt::format("{}: the document index ends at sequence {} of {}", index.path(), previous,
                                              n.sequences));
}

/// The index of documents, behind the arrays of sequences.
struct DocumentIndex {
  std::span<const std::byte> bytes;
  uint64_t sequences;
  uint64_t first_sequence(uint64_t document) const {
    return load<uint64_t>(bytes, kMegatronHeaderBytes + 12 * sequences + 8 * document);
  }
  uint64_t length(uint64_t document) const {
    uint64_t tokens = 0;
    for (uint64_t s = first_sequence(document), end = first_sequence(document + 1); s < end; ++s)
      tokens += uint64_t(load<int32_t>(bytes, kMegatronHeaderBytes + 4 * s));
    return tokens;
  }
};

/// Fills segments, token_count and document_marks, and checks every length and pointer against the size of
/// the .bin.
void scan_sequences(TokenFile& file, HeaderCounts n, const std::function<void(uint64_t bytes)>& on_checked) {
  constexpr uint64_t kSequencesPerReport = 1 << 20, kBytesPerSequence = 12;
  const MappedFile& index = *file.index_map;
  const auto bytes = index.bytes();
  const uint64_t width = uint64_t(size_of(file.element)), bin_size = file.tokens_map.size();
  const DocumentIndex documents{bytes, n.sequences};
  uint64_t next_byte = 0, document = 0;
  for (uint64_t i = 0; i < n.sequences; ++i) {
    for (; document + 1 < n.documents && documents.first_sequence(document) == i; ++document)
      if (document % kDocumentsPerMark == 0) file.document_marks.push_back(file.token_count);
    const uint64_t length_at = kMegatronHeaderBytes + 4 * i, pointer_at = kMegatronHeaderBytes + 4 * n.sequences + 8 * i;
    const auto length = load<int32_t>(bytes, length_at);
    const auto pointer = load<int64_t>(bytes, pointer_at);
    if (length < 0)
      throw Error(ErrorCode::kData, fmt::format("{}: sequence {} has length {} (byte {}); the index is corrupt", index.path(), i,
                                                length, length_at));
    const uint64_t size = uint64_t(length) * width;
    if (pointer < 0 || uint64_t(pointer) > bin_size || size > bin_size - uint64_t(pointer))
      throw Error(ErrorCode::kData,
                  fmt::format("{}: sequence {} is {} bytes at {} (byte {} of the index), but {} ends at {}; one of the two is "
                              "truncated or corrupt", index.path(), i, size, pointer, pointer_at, file.path(), bin_size));
    if (length > 0 && (file.segments.empty() || uint64_t(pointer) != next_byte))
      file.segments.push_back({file.token_count, uint64_t(pointer)});
    if (length > 0) next_byte = uint64_t(pointer) + size;
    file.token_count += uint64_t(length);
    if (on_checked && (i + 1) % kSequencesPerReport == 0) on_checked(kSequencesPerReport * kBytesPerSequence);
  }
  for (; document + 1 < n.documents; ++document)  // without tokens, at the end
    if (document % kDocumentsPerMark == 0) file.document_marks.push_back(file.token_count);
  // Writers store sequences without gaps from byte 0; only then do trailing bytes mean that the two files
  // do not belong together.
  const bool contiguous = file.segments.size() <= 1 && (file.segments.empty() || file.segments[0].byte_offset == 0);
  if (contiguous && bin_size != next_byte)
    throw Error(ErrorCode::kData, fmt::format("{} has {} bytes, but {} describes {}; the two do not belong together",
                                              file.path(), bin_size, index.path(), next_byte));
}

}  // namespace

TokenFile open_megatron(const std::string& prefix, const std::function<void(uint64_t bytes)>& on_checked) {
  TokenFile file;
  file.index_map.emplace(prefix + ".idx");
  const HeaderCounts n = check_header(*file.index_map);
  file.element = element_of_code(file.index_map->path(), load<uint8_t>(file.index_map->bytes(), 17));
  check_documents(*file.index_map, n);
  file.tokens_map = MappedFile(prefix + ".bin");
  scan_sequences(file, n, on_checked);
  file.document_count = n.documents - 1;
  file.index_map->drop_pages();
  if (file.token_count == 0)
    throw Error(ErrorCode::kData, fmt::format("{}.idx describes {} sequences without a single token; tokenize again", prefix,
                                              n.sequences));
  return file;
}

std::vector<uint64_t> document_lengths(const TokenFile& file, uint64_t limit, uint64_t first) {
  ENSURE(file.index_map.has_value(), "{} has no index", file.path());
  const auto bytes = file.index_map->bytes();
  const DocumentIndex documents{bytes, load<uint64_t>(bytes, 18)};
  std::vector<uint64_t> lengths;
  const uint64_t end = file.document_count - first > limit ? first + limit : file.document_count;
  for (uint64_t d = first; d < end; ++d) lengths.push_back(documents.length(d));
  return lengths;
}

void for_each_document_begin(const TokenFile& file, uint64_t begin, uint64_t end,
                             const std::function<void(uint64_t token)>& each) {
  ENSURE(file.index_map.has_value(), "{} has no index", file.path());
  const auto bytes = file.index_map->bytes();
  const DocumentIndex documents{bytes, load<uint64_t>(bytes, 18)};
  const std::vector<uint64_t>& marks = file.document_marks;
  const auto behind = std::lower_bound(marks.begin(), marks.end(), begin);
  const uint64_t mark = behind == marks.begin() ? 0 : uint64_t(behind - marks.begin()) - 1;
  uint64_t document = mark * kDocumentsPerMark, token = marks.empty() ? 0 : marks[mark];
  for (; document < file.document_count && token < end; ++document) {
    if (token >= begin) each(token);
    token += documents.length(document);
  }
}

}  // namespace trainctl::data
