// A batch as rows: the arrays that belong to its tokens. A stage of the pipeline has those that it reads;
// all of them are made from samples where they are read, and none travels between stages.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "runtime/base/dtype.h"

namespace trainctl {

enum class BatchField : uint8_t { tokens, targets };

/// One array, with an element for each token.
struct BatchRow {
  BatchField field;
  DType dtype;
  bool on_first, on_last;  ///< read by the stage with the embedding; by the one with the head
  /// Writes its elements of one sample, which has a token more than the sequence.
  void (*fill)(std::span<const int32_t> sample, void* out);
};
inline constexpr BatchRow kBatchRows[] = {
    {BatchField::tokens, DType::i32, true, false,
     [](std::span<const int32_t> sample, void* out) {
       std::copy(sample.begin(), sample.end() - 1, static_cast<int32_t*>(out));
     }},
    {BatchField::targets, DType::i32, false, true, [](std::span<const int32_t> sample, void* out) {
       std::copy(sample.begin() + 1, sample.end(), static_cast<int32_t*>(out));
     }}};

/// A value for each field.
template <typename T>
class PerField {
 public:
  T& operator[](BatchField field) { return values_[size_t(field)]; }
  const T& operator[](BatchField field) const { return values_[size_t(field)]; }

 private:
  std::array<T, std::size(kBatchRows)> values_{};
};

/// The rows that a rank reads.
struct BatchRows {
  bool first = false, last = false;  ///< it has the first virtual stage; the last
  bool has(const BatchRow& row) const { return (first && row.on_first) || (last && row.on_last); }
  bool empty() const { return bytes_per_token() == 0; }
  size_t bytes_per_token() const {
    size_t bytes = 0;
    for (const BatchRow& row : kBatchRows) bytes += has(row) ? size_of(row.dtype) : 0;
    return bytes;
  }
};

/// A micro-batch of this rank: its number in the step, and its lane among the rank's lanes.
struct MicroBatch {
  int index = 0, lane = 0;
  bool first_of_lane = true, last_of_lane = true;
  /// Device [M], of the rows that the rank reads; unchanged until backward is done.
  PerField<const void*> arrays = {};
  const int32_t* ids(BatchField field) const { return static_cast<const int32_t*>(arrays[field]); }
};

/// Sets all rows to one array of i32, which is so long: for passes whose values do not matter, and for
/// generation.
inline MicroBatch with_ids(MicroBatch mb, const int32_t* ids) {
  for (const BatchRow& row : kBatchRows) mb.arrays[row.field] = ids;
  return mb;
}

}  // namespace trainctl
