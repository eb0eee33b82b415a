// A CPU backend that is broken as a core or its memory may be.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/backend.h"

namespace trainctl::test {

struct Spoil {
  /// One bit of the result of each so many products is flipped; 0: none.
  int every_product = 0;
  int64_t element = 0;
  int bit = 9;  ///< of the lower two bytes
  /// A byte of buffers of so many bytes in which `stuck_bit` is always 0.
  size_t stuck_buffer_bytes = 0, stuck_byte = 0;
  int stuck_bit = 0;
};
std::unique_ptr<kernels::Backend> make_spoiling_backend(const Spoil& spoil);

}  // namespace trainctl::test
