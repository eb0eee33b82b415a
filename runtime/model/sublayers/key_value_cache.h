// KeyValueCache holds the keys and values of the tokens that a model has read, for each attention of the
// model, so that a pass over the tokens behind them computes those alone. One sequence; one rank of the
// tensor axis.
#pragma once
#include <map>
#include <memory>
#include <span>

#include "kernels/backend.h"

namespace trainctl {

class KeyValueCache {
 public:
  /// Of at most `capacity` tokens. The memory of an attention is taken at its first pass. The backend
  /// computes queries behind keys (AttentionMask::query_offset) and must outlive the cache.
  KeyValueCache(kernels::Backend& backend, int64_t capacity) : backend_(backend), capacity_(capacity) {}

  /// The next pass is over the tokens from `begin` on; earlier passes held those before it.
  void pass_from(int64_t begin) { begin_ = begin; }
  int64_t begin() const { return begin_; }
  int64_t capacity() const { return capacity_; }

  /// Holds the op's keys and values, and lets its queries see them behind all that are held. `attention`:
  /// whose they are; one pass holds each once.
  void extend(kernels::Stream& stream, const void* attention, kernels::AttentionForward& op);

 private:
  struct Held {
    std::unique_ptr<kernels::Buffer> memory;
    kernels::Matrix keys, values;  ///< [capacity, G * D] each
  };
  Held& of(const void* attention, const kernels::Matrix& like);

  kernels::Backend& backend_;
  const int64_t capacity_;
  int64_t begin_ = 0;
  std::map<const void*, Held> held_;
};

/// The rows of one sequence among those of a pass: the tokens behind those that its cache holds.
struct CachedRows {
  KeyValueCache* cache;
  int64_t count;
};
/// Runs `op`, whose rows are those of the sequences one after another, for each behind its own keys.
void attend_behind(std::span<const CachedRows> sequences, kernels::Backend& backend, kernels::Stream& stream,
                   const void* attention, const kernels::AttentionForward& op);

}  // namespace trainctl
