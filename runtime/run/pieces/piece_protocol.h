// The messages between remote_memory and the PieceServer. Both ends run the same version of the program on
// machines of one kind, so messages are sent as they lie in memory.
//
//   open   the file of a rank for reading; its size is Answer::bytes
//   make   the same for writing, with Request::bytes bytes
//   read   Request::bytes bytes from Request::offset, which follow the answer
//   write  the same, which follow the request; no answer
//   sync   answered when all writes before are in place
//
// An answer that is not `ok` is followed by a sentence of Answer::bytes bytes, and the connection ends.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace trainctl::pieces {

enum class Op : uint32_t { open = 1, make, read, write, sync };

struct Request {
  uint32_t magic = kMagic;
  Op op = Op::open;
  int32_t rank = 0, ranks = 0;  ///< open, make
  uint64_t offset = 0, bytes = 0;
  uint64_t epoch = 0;                             ///< make: of the rank
  char token[32] = {};                            ///< open, make: of the server
  static constexpr uint32_t kMagic = 0x63656970;  // "piec"
};
struct Answer {
  uint32_t magic = Request::kMagic;
  uint32_t ok = 0;
  uint64_t bytes = 0;
};

/// The most bytes of one read or write.
inline constexpr uint64_t kMostBytes = uint64_t(64) << 20;
/// The longest sentence of a refusal.
inline constexpr uint64_t kMostText = 4096;

/// Sends or receives exactly these bytes over a non-blocking socket. Each wait for the peer ends after
/// `limit_s`. Throws Error(kIo): the peer does not answer, or has closed the connection.
void send_all(int fd, std::span<const std::byte> data, double limit_s);
void receive_all(int fd, std::span<std::byte> data, double limit_s);

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
T receive(int fd, double limit_s) {
  T value;
  receive_all(fd, std::as_writable_bytes(std::span(&value, 1)), limit_s);
  return value;
}

}  // namespace trainctl::pieces
