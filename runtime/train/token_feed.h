// The tokens of a step on the device: uploaded in one piece on a stream of their own, while the step before computes.
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
  /// Room for `sequences` sequences of `seq_len` inputs and as many targets, twice: one in use, one being filled.
  TokenFeed(int64_t sequences, int64_t seq_len, kernels::Backend& backend);

  /// samples: whole sequences of seq_len + 1 tokens, at most as many as there is room for. Work given to `stream` from now on sees
  /// them; they stay until the call after the next. Before that call, `stream` must have finished with them.
  void upload(std::span<const int32_t> samples, kernels::Stream& stream);
  /// Inputs and targets from sequence `index` of the newest upload on, on the device.
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
