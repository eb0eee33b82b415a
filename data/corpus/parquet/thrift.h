// Thrift's compact protocol, as far as the metadata of Parquet files needs it.
// Source: the "Thrift compact protocol encoding" of Apache Thrift, doc/specs/thrift-compact-protocol.md
// there.
#pragma once
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace trainctl::data::parquet {

/// The bytes are no such message, in one phrase.
class ThriftError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
/// They end too early: more bytes could complete the message.
class ThriftEnd : public ThriftError {
 public:
  ThriftEnd() : ThriftError("the metadata ends too early") {}
};

/// Reads values from the front of a text. Every length is compared with what is left; values nest at most
/// 32 deep. Not thread-safe. Throws ThriftError.
class ThriftReader {
 public:
  enum class Type : uint8_t { stop, yes, no, byte, i16, i32, i64, real, binary, list, set, map, structure };

  explicit ThriftReader(std::string_view bytes) : bytes_(bytes) {}
  size_t position() const { return at_; }

  /// Reads a struct: calls on_field for each field, which reads its value or leaves it to be skipped.
  void structure(const std::function<void(int16_t id, Type type)>& on_field);
  /// Reads a list or set whose elements are of `element`: calls on_element for each, which must read it.
  void list(Type type, Type element, const std::function<void()>& on_element);

  // The value of a field of that type; another type is an error.
  static void need_structure(Type type) { need(type, Type::structure); }
  int32_t i32(Type type);
  int64_t i64(Type type);
  bool boolean(Type type);
  std::string_view binary(Type type);

 private:
  uint8_t byte();
  uint64_t varint();
  int64_t zigzag();
  uint64_t count(size_t bytes_each);
  static void need(Type type, Type wanted);
  void skip(Type type);
  void skip_element(Type type);

  std::string_view bytes_;
  size_t at_ = 0;
  int depth_ = 0;
  bool value_read_ = false;  // of the present field
};

}  // namespace trainctl::data::parquet
