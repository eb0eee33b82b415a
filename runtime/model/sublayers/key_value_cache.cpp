#include "runtime/model/sublayers/key_value_cache.h"

#include "runtime/base/error.h"

namespace trainctl {

using kernels::Matrix;

KeyValueCache::Held& KeyValueCache::of(const void* attention, const Matrix& like) {
  Held& held = held_[attention];
  if (!held.memory) {
    const size_t bytes = size_t(capacity_ * like.cols) * size_of(like.dtype);
    const size_t second = (bytes + 63) / 64 * 64;
    held.memory = backend_.allocate(second + bytes);
    auto* at = static_cast<char*>(held.memory->data());
    held.keys = kernels::matrix(at, like.dtype, capacity_, like.cols);
    held.values = kernels::matrix(at + second, like.dtype, capacity_, like.cols);
  }
  return held;
}

void KeyValueCache::extend(kernels::Stream& stream, const void* attention, kernels::AttentionForward& op) {
  const int64_t count = op.k.rows, keys = begin_ + count;
  ENSURE(op.shape.batch == 1 && keys <= capacity_, "{} keys of {} sequences for a cache of {}", keys,
         op.shape.batch, capacity_);
  const Held& held = of(attention, op.k);
  backend_.run(stream, kernels::Copy{.src = op.k, .dst = held.keys.row_range(begin_, count)});
  backend_.run(stream, kernels::Copy{.src = op.v, .dst = held.values.row_range(begin_, count)});
  op.k = held.keys.row_range(0, keys);
  op.v = held.values.row_range(0, keys);
  op.shape.seq_len = count;
  op.shape.keys = keys;
  op.shape.mask.query_offset = begin_;
}

void attend_behind(std::span<const CachedRows> sequences, kernels::Backend& backend, kernels::Stream& stream,
                   const void* attention, const kernels::AttentionForward& op) {
  int64_t begin = 0;
  for (const CachedRows& rows : sequences) {
    kernels::AttentionForward own = op;
    for (Matrix* of : {&own.q, &own.k, &own.v, &own.out}) *of = of->row_range(begin, rows.count);
    own.lse += begin * op.shape.heads;
    rows.cache->extend(stream, attention, own);
    backend.run(stream, own);
    begin += rows.count;
  }
  ENSURE(begin == op.q.rows, "{} rows of {}", begin, op.q.rows);
}

}  // namespace trainctl
