// Goal: a stage's memory is measured and placed alike, and rows that would share the sets of a cache stand apart.
// Method: the same requests to an arena without memory and to one with it; bytes and strides are compared.
#include "runtime/model/sublayers/arena.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

using namespace trainctl;

TEST_CASE("an arena places what it has measured") {
  std::vector<char> memory(1 << 20);
  Arena measure, place(memory.data());
  for (Arena* arena : {&measure, &place}) {
    arena->take(DType::f32, 3, 5);
    arena->take_alone(DType::f32, 3, 1024);
    arena->take_bytes(1);
  }
  CHECK(measure.used() == 64 + 3 * (4096 + 64) + 64);
  CHECK(place.used() == measure.used());
}

TEST_CASE("rows of f32 at multiples of 4096 bytes get a gap, others none") {
  std::vector<char> memory(1 << 20);
  Arena arena(memory.data());
  for (const int64_t cols : {1024, 3072}) {
    const kernels::Matrix apart = arena.take_alone(DType::f32, 2, cols);
    CHECK((apart.rows == 2 && apart.cols == cols && apart.stride == cols + 16));
    CHECK(arena.take(DType::f32, 2, cols).stride == cols);
    CHECK(arena.take_alone(DType::bf16, 2, 2 * cols).stride == 2 * cols);
  }
  CHECK(arena.take_alone(DType::f32, 2, 1408).stride == 1408);
}
