#include "data/corpus/parquet/thrift.h"

namespace trainctl::data::parquet {
namespace {

constexpr int kDeepestValue = 32;

}  // namespace

uint8_t ThriftReader::byte() {
  if (at_ == bytes_.size()) throw ThriftEnd();
  return uint8_t(bytes_[at_++]);
}

uint64_t ThriftReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t b = byte();
    value |= uint64_t(b & 0x7f) << shift;
    if (b < 0x80) return value;
  }
  throw ThriftError("a number of more than 64 bits");
}

int64_t ThriftReader::zigzag() {
  const uint64_t value = varint();
  return int64_t(value >> 1) ^ -int64_t(value & 1);
}

uint64_t ThriftReader::count(size_t bytes_each) {
  const uint64_t n = varint();
  if (n > (bytes_.size() - at_) / bytes_each) throw ThriftEnd();
  return n;
}

void ThriftReader::need(Type type, Type wanted) {
  if (type != wanted) throw ThriftError("a field has another type than its number says");
}

void ThriftReader::structure(const std::function<void(int16_t, Type)>& on_field) {
  if (++depth_ > kDeepestValue) throw ThriftError("values nest too deep");
  int16_t id = 0;
  while (true) {
    const uint8_t head = byte();
    const Type type = Type(head & 0x0f);
    if (type == Type::stop) break;
    if (type > Type::structure) throw ThriftError("an unknown type of a field");
    id = head >> 4 != 0 ? int16_t(id + (head >> 4)) : int16_t(zigzag());
    value_read_ = false;
    on_field(id, type);
    if (!value_read_) skip(type);
  }
  --depth_;
  value_read_ = true;
}

void ThriftReader::list(Type type, Type element, const std::function<void()>& on_element) {
  if (type != Type::set) need(type, Type::list);
  if (++depth_ > kDeepestValue) throw ThriftError("values nest too deep");
  const uint8_t head = byte();
  uint64_t n = head >> 4;
  if (n == 15) n = varint();
  if (n > bytes_.size() - at_) throw ThriftEnd();
  if (n > 0) need(Type(head & 0x0f), element);
  for (uint64_t i = 0; i < n; ++i) on_element();
  --depth_;
  value_read_ = true;
}

int32_t ThriftReader::i32(Type type) {
  need(type, Type::i32);
  value_read_ = true;
  const int64_t value = zigzag();
  if (value != int32_t(value)) throw ThriftError("a number of more than 32 bits");
  return int32_t(value);
}

int64_t ThriftReader::i64(Type type) {
  need(type, Type::i64);
  value_read_ = true;
  return zigzag();
}

bool ThriftReader::boolean(Type type) {
  if (type != Type::yes) need(type, Type::no);
  value_read_ = true;
  return type == Type::yes;
}

std::string_view ThriftReader::binary(Type type) {
  need(type, Type::binary);
  value_read_ = true;
  const size_t n = size_t(count(1));
  at_ += n;
  return bytes_.substr(at_ - n, n);
}

void ThriftReader::skip(Type type) {
  constexpr uint64_t kRealBytes = 8;
  switch (type) {
    case Type::stop:
    case Type::yes:
    case Type::no: return;
    case Type::byte: byte(); return;
    case Type::i16:
    case Type::i32:
    case Type::i64: varint(); return;
    case Type::real:
      if (bytes_.size() - at_ < kRealBytes) throw ThriftEnd();
      at_ += kRealBytes;
      return;
    case Type::binary: binary(type); return;
    case Type::structure: return structure([](int16_t, Type) {});
    case Type::list:
    case Type::set: {
      const uint8_t element = at_ < bytes_.size() ? uint8_t(bytes_[at_]) & 0x0f : 0;
      return list(type, Type(element), [&] { skip_element(Type(element)); });
    }
    case Type::map: {
      if (++depth_ > kDeepestValue) throw ThriftError("values nest too deep");
      const uint64_t n = count(1);
      const uint8_t types = n > 0 ? byte() : 0;
      for (uint64_t i = 0; i < n; ++i) {
        skip_element(Type(types >> 4));
        skip_element(Type(types & 0x0f));
      }
      --depth_;
      return;
    }
  }
  throw ThriftError("an unknown type of a value");
}

void ThriftReader::skip_element(Type type) {
  if (type == Type::stop) throw ThriftError("an unknown type of an element");
  // A boolean has no byte as a field, and one as an element.
  if (type == Type::yes || type == Type::no)
    byte();
  else
    skip(type);
}

}  // namespace trainctl::data::parquet
