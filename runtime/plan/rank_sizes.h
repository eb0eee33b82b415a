// The memory of a rank in addition to its model and state, as functions of the job. The plan counts it, the
// trainer allocates it.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/model/batch.h"

namespace trainctl {

/// The device memory of a TokenFeed, in bytes: two buffers for the rows of `sequences` sequences, of
/// which a rank has `seq_len` tokens each.
inline size_t token_bytes(const BatchRows& rows, int64_t sequences, int64_t seq_len) {
  return 2 * size_t(sequences * seq_len) * rows.bytes_per_token();
}

/// The largest amount of pinned memory that a rank takes for saving and loading.
constexpr size_t kStagingBytes = size_t(256) << 20;

/// The pinned memory of a rank with `state_bytes` of state on its device: as much as the state needs, at most
/// `most`.
inline size_t staging_bytes(size_t state_bytes, size_t most = kStagingBytes) {
  constexpr size_t kAlignment = 128;   // of each half
  return std::min(most, state_bytes + 2 * kAlignment) / (2 * kAlignment) * (2 * kAlignment);
}

}  // namespace trainctl
