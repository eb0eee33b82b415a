#include "runtime/train/token_feed.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl {

TokenFeed::TokenFeed(int64_t sequences, int64_t seq_len, kernels::Backend& backend)
    : sequences_(sequences), seq_len_(seq_len), backend_(backend), copies_(backend.create_stream()) {
  for (Half& half : halves_) {
    half.host = backend.allocate_host(bytes(sequences, seq_len));
    half.device = backend.allocate(bytes(sequences, seq_len));
    half.copied = backend.create_event();
  }
}

void TokenFeed::upload(std::span<const int32_t> samples, kernels::Stream& stream) {
  const size_t t = size_t(seq_len_), n = samples.size() / (t + 1);
  ENSURE(n <= size_t(sequences_) && n * (t + 1) == samples.size(), "{} tokens for {} sequences of {}", samples.size(), sequences_,
         seq_len_);
  newest_ = 1 - newest_;
  Half& half = halves_[newest_];
  half.copied->synchronize();   // the host memory is being read until then
  int32_t* inputs = static_cast<int32_t*>(half.host->data());
  int32_t* targets = inputs + size_t(sequences_) * t;
  for (size_t i = 0; i < n; ++i) {
    std::copy_n(samples.begin() + ptrdiff_t(i * (t + 1)), t, inputs + i * t);
    std::copy_n(samples.begin() + ptrdiff_t(i * (t + 1) + 1), t, targets + i * t);
  }
  backend_.copy_to_device(*copies_, half.device->data(), half.host->data(), half.host->bytes());
  copies_->record(*half.copied);
  stream.wait(*half.copied);
}

}  // namespace trainctl
