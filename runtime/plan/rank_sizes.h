// Memory that a rank takes besides its model and its state, as functions of the job: the plan adds it up, the trainer takes it.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace trainctl {

/// Device memory for `sequences` sequences of `seq_len` inputs and as many targets, twice: one in use, one being filled.
constexpr size_t token_bytes(int64_t sequences, int64_t seq_len) { return 2 * size_t(2 * sequences * seq_len) * sizeof(int32_t); }

/// The most pinned memory that a rank takes for saving and loading.
constexpr size_t kStagingBytes = size_t(256) << 20;

/// What a rank takes whose state on a device has `state_bytes`: all that is useful, at most `most`.
inline size_t staging_bytes(size_t state_bytes, size_t most = kStagingBytes) {
  constexpr size_t kAlignment = 128;   // of each half
  return std::min(most, state_bytes + 2 * kAlignment) / (2 * kAlignment) * (2 * kAlignment);
}

}  // namespace trainctl
