#include "data/corpus/parquet/pages.h"

#include <zlib.h>

#include <bit>
#include <cstring>

#include "data/corpus/parquet/thrift.h"
#include "data/corpus/parquet/unpack.h"
#include "runtime/base/error.h"

namespace trainctl::data::parquet {
namespace {

constexpr size_t kHeaderGuess = 1024, kLargestHeader = size_t(16) << 20;

uint32_t length_at(std::string_view bytes) {
  uint32_t value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace

PageReader::PageReader(File& file, std::string path, const Column& column, const ColumnChunk& chunk)
    : file_(file), path_(std::move(path)), column_(column), codec_(chunk.codec), values_left_(chunk.values) {
  const int64_t begin =
      chunk.dictionary_page > 0 ? std::min(chunk.dictionary_page, chunk.data_page) : chunk.data_page;
  at_ = uint64_t(begin);
  end_ = at_ + uint64_t(chunk.bytes);
}

void PageReader::fail(const std::string& why) const {
  throw Error(ErrorCode::kData,
              fmt::format("{}, column {}, page at byte {}: {}", path_, column_.name, page_at_, why));
}

bool PageReader::next(Entry& entry) {
  while (entries_left_ == 0)
    if (!load_page()) return false;
  --entries_left_;
  uint32_t repetition = 0, definition = column_.present_level;
  if (column_.is_list && !repetition_.next(repetition)) fail("it has fewer repetition levels than values");
  if (column_.present_level > 0 && !definition_.next(definition))
    fail("it has fewer definition levels than values");
  if (repetition > 1 || definition > column_.present_level)
    fail(fmt::format("a repetition level of {} or a definition level of {} is too high", repetition,
                     definition));
  entry.continues_row = repetition > 0;
  entry.is_present = definition == column_.present_level;
  entry.value = entry.is_present ? next_value() : std::string_view();
  return true;
}

std::string_view PageReader::next_value() {
  if (uses_dictionary_) {
    uint32_t index = 0;
    if (!indices_.next(index)) fail("it has fewer values than it announces");
    if (index >= dictionary_.size())
      fail(fmt::format("value {} of a dictionary of {}", index, dictionary_.size()));
    return dictionary_[index];
  }
  if (plain_.size() < 4) fail("it has fewer values than it announces");
  const uint32_t length = length_at(plain_);
  plain_.remove_prefix(4);
  if (length > plain_.size()) fail(fmt::format("a value of {} bytes in {}", length, plain_.size()));
  const std::string_view value = plain_.substr(0, length);
  plain_.remove_prefix(length);
  return value;
}

PageHeader PageReader::read_header() const {
  std::string bytes;
  for (size_t size = kHeaderGuess;; size *= 8) {
    bytes.resize(size_t(std::min<uint64_t>(size, end_ - at_)));
    file_.read_at(at_, std::as_writable_bytes(std::span(bytes)));
    try {
      return parse_page_header(bytes);
    } catch (const ThriftEnd& e) {
      if (bytes.size() == end_ - at_ || size > kLargestHeader) fail(e.what());
    } catch (const ThriftError& e) {
      fail(fmt::format("its header is damaged: {}", e.what()));
    }
  }
}

std::string_view PageReader::read_body(const PageHeader& header) {
  if (header.stored_bytes < 0 || header.bytes < 0 || header.values < 0)
    fail("its header is damaged: a size is missing");
  if (header.stored_bytes > kLargestPage || header.bytes > kLargestPage)
    fail(
        fmt::format("it has {} bytes, {} unpacked; this program reads pages of up to {}: write the file with "
                    "smaller ones",
                    header.stored_bytes, header.bytes, kLargestPage));
  at_ += header.header_bytes;
  if (uint64_t(header.stored_bytes) > end_ - at_)
    fail(fmt::format("it has {} bytes and the column ends after {}", header.stored_bytes, end_ - at_));
  stored_.resize(size_t(header.stored_bytes));
  if (!stored_.empty()) file_.read_at(at_, std::as_writable_bytes(std::span(stored_)));
  at_ += stored_.size();
  if (header.has_crc &&
      crc32(0, reinterpret_cast<const Bytef*>(stored_.data()), uInt(stored_.size())) != header.crc)
    fail("its checksum is wrong: the file is damaged");
  return stored_;
}

bool PageReader::load_page() {
  if (at_ >= end_) {
    if (values_left_ > 0) fail(fmt::format("the column ends {} values early", values_left_));
    return false;
  }
  page_at_ = at_;
  PageHeader header = read_header();
  if (header.kind == PageHeader::Kind::index) header.values = 0;
  const std::string_view packed = read_body(header);
  switch (header.kind) {
    case PageHeader::Kind::data: load_data(header, packed); return true;
    case PageHeader::Kind::index: return true;
    case PageHeader::Kind::dictionary: load_dictionary(header, packed); return true;
    case PageHeader::Kind::data_v2: load_data_v2(header, packed); return true;
  }
  fail(fmt::format("it is of the unknown kind {}", int(header.kind)));
}

std::string_view PageReader::take(std::string_view& bytes, uint64_t n, const char* what) const {
  if (n > bytes.size()) fail(fmt::format("its {} have {} bytes, and {} are left", what, n, bytes.size()));
  const std::string_view taken = bytes.substr(0, size_t(n));
  bytes.remove_prefix(size_t(n));
  return taken;
}

std::string_view PageReader::take_levels(std::string_view& bytes, Encoding encoding) const {
  if (encoding != Encoding::rle)
    fail(fmt::format("its levels are encoded as {}; this program reads RLE", name_of(encoding)));
  const std::string_view length = take(bytes, 4, "levels");
  return take(bytes, length_at(length), "levels");
}

void PageReader::unpack(std::string_view packed, int64_t bytes, std::string& out) const {
  const std::string why = unpack_page(codec_, packed, size_t(bytes), out);
  if (!why.empty()) fail(why + "; the file is damaged");
}

void PageReader::load_dictionary(const PageHeader& header, std::string_view packed) {
  if (header.encoding != Encoding::plain && header.encoding != Encoding::plain_dictionary)
    fail(fmt::format("its dictionary is encoded as {}; this program reads PLAIN", name_of(header.encoding)));
  if (has_dictionary_) fail("a second dictionary");
  has_dictionary_ = true;
  unpack(packed, header.bytes, dictionary_bytes_);
  uses_dictionary_ = false;
  plain_ = dictionary_bytes_;
  if (uint64_t(header.values) > dictionary_bytes_.size() / 4) fail("it has fewer values than it announces");
  dictionary_.reserve(size_t(header.values));
  for (int32_t i = 0; i < header.values; ++i) dictionary_.push_back(next_value());
}

void PageReader::start_values(Encoding encoding, std::string_view values) {
  uses_dictionary_ = encoding == Encoding::rle_dictionary || encoding == Encoding::plain_dictionary;
  if (!uses_dictionary_) {
    if (encoding != Encoding::plain)
      fail(fmt::format(
          "its encoding is {}; this program reads PLAIN and dictionaries (PLAIN_DICTIONARY, RLE_DICTIONARY)",
          name_of(encoding)));
    plain_ = values;
    return;
  }
  if (!has_dictionary_) fail("its dictionary is missing");
  if (values.empty()) {
    indices_ = {};
    return;
  }
  constexpr int kWidest = 32;
  const int width = uint8_t(values.front());
  if (width > kWidest) fail(fmt::format("indices of {} bits", width));
  indices_ = RunReader(values.substr(1), width);
}

void PageReader::load_data(const PageHeader& header, std::string_view packed) {
  if (header.values > values_left_)
    fail(fmt::format("it has {} values, and the column {} more", header.values, values_left_));
  unpack(packed, header.bytes, page_);
  std::string_view rest = page_;
  if (column_.is_list) repetition_ = RunReader(take_levels(rest, header.repetition_encoding), 1);
  if (column_.present_level > 0)
    definition_ =
        RunReader(take_levels(rest, header.definition_encoding), std::bit_width(column_.present_level));
  start_values(header.encoding, rest);
  entries_left_ = header.values;
  values_left_ -= header.values;
}

void PageReader::load_data_v2(const PageHeader& header, std::string_view packed) {
  if (header.values > values_left_)
    fail(fmt::format("it has {} values, and the column {} more", header.values, values_left_));
  if (header.repetition_bytes < 0 || header.definition_bytes < 0 ||
      int64_t(header.repetition_bytes) + header.definition_bytes > header.bytes)
    fail("its header is damaged: the levels are longer than the page");
  // The levels are never packed, and stay in stored_ while the page is read.
  const std::string_view repetition = take(packed, uint64_t(header.repetition_bytes), "levels"),
                         definition = take(packed, uint64_t(header.definition_bytes), "levels");
  if (column_.is_list) repetition_ = RunReader(repetition, 1);
  if (column_.present_level > 0) definition_ = RunReader(definition, std::bit_width(column_.present_level));
  const int64_t bytes = int64_t(header.bytes) - header.repetition_bytes - header.definition_bytes;
  // A page of nulls may have nothing to unpack.
  if (header.is_packed && !packed.empty())
    unpack(packed, bytes, page_);
  else
    page_.assign(packed);
  start_values(header.encoding, page_);
  entries_left_ = header.values;
  values_left_ -= header.values;
}

}  // namespace trainctl::data::parquet
