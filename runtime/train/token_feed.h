// TokenFeed uploads the tokens of a step to the device, in one copy on its own stream, while the previous
// step computes.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "runtime/plan/rank_sizes.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

class TokenFeed {
 public:
  /// Allocates two buffers for `sequences` sequences of `seq_len` inputs and targets: one in use, one being
  /// filled.
  TokenFeed(int64_t sequences, int64_t seq_len, kernels::Backend& backend);

  /// Uploads samples: at most `sequences` sequences of seq_len + 1 tokens. Work enqueued on `stream` from now
  /// on sees them. They stay valid until the call after the next one; before that call, the work of `stream`
  /// that uses them must be done.
  void upload(std::span<const int32_t> samples, kernels::Stream& stream);
  /// The inputs and targets of the newest upload from sequence `index` on, in device memory.
  const int32_t* inputs(int64_t index) const { return device_tokens() + index * seq_len_; }
  const int32_t* targets(int64_t index) const { return device_tokens() + (sequences_ + index) * seq_len_; }

 private:
  static size_t bytes(int64_t sequences, int64_t seq_len) { return token_bytes(sequences, seq_len) / 2; }
  const int32_t* device_tokens() const { return static_cast<const int32_t*>(halves_[newest_].device->data()); }

  struct Half {
    std::unique_ptr<kernels::Buffer> host, device;
    std::unique_ptr<kernels::Event> copied;
  };
  int64_t sequences_, seq_len_;
  kernels::Backend& backend_;
  std::unique_ptr<kernels::Stream> copies_;
  Half halves_[2];
  int newest_ = 1;
};

}  // namespace trainctl
