#include "runtime/train/token_feed.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace trainctl {

namespace {

int64_t weight_of(const SampleTokens& sample) {
  int64_t sum = 0;
  for (size_t t = 0; t + 1 < sample.tokens.size(); ++t) sum += sample.weight(t);
  return sum;
}

}  // namespace

TokenFeed::TokenFeed(const BatchRows& rows, int64_t sequences, int64_t seq_len, bool counts_boundaries,
                     kernels::Backend& backend)
    : rows_(rows),
      sequences_(sequences),
      seq_len_(seq_len),
      counts_boundaries_(counts_boundaries),
      backend_(backend),
      copies_(backend.create_stream()) {
  const size_t bytes = token_bytes(rows, sequences, seq_len) / 2;
  for (Half& half : halves_) {
    half.host = backend.allocate_host(bytes);
    half.device = backend.allocate(bytes);
    half.copied = backend.create_event();
  }
}

template <typename Each>
void TokenFeed::for_each_row(Each each) const {
  size_t begin = 0;
  for (const BatchRow& row : kBatchRows)
    if (rows_.has(row))
      each(row, std::exchange(begin, begin + size_t(sequences_ * seq_len_) * size_of(row.dtype)));
}

void TokenFeed::upload(const data::SampleBatch& samples, kernels::Stream& stream) {
  const size_t t = size_t(seq_len_), tokens = samples.tokens.size(), n = tokens / (t + 1);
  ENSURE(n <= size_t(sequences_) && n * (t + 1) == tokens, "{} tokens for {} sequences of {}", tokens,
         sequences_, seq_len_);
  ENSURE(samples.document_starts.size() == (rows_.documents ? tokens : 0), "documents of {} tokens of {}",
         samples.document_starts.size(), tokens);
  ENSURE(samples.weights.size() == tokens || (samples.weights.empty() && !rows_.weights),
         "weights of {} tokens of {}", samples.weights.size(), tokens);
  const auto sample = [&](size_t i) {
    SampleTokens of{.tokens = std::span(samples.tokens).subspan(i * (t + 1), t + 1),
                    .counts_boundaries = counts_boundaries_};
    if (rows_.documents) of.document_start = std::span(samples.document_starts).subspan(i * (t + 1), t + 1);
    if (!samples.weights.empty()) of.weights = std::span(samples.weights).subspan(i * (t + 1), t + 1);
    return of;
  };
  targets_weight_ = 0;
  for (size_t i = 0; i < n; ++i) targets_weight_ += weight_of(sample(i));
  newest_ = 1 - newest_;
  Half& half = halves_[newest_];
  half.copied->synchronize();   // the host memory is being read until then
  for_each_row([&](const BatchRow& row, size_t begin) {
    for (size_t i = 0; i < n; ++i)
      row.fill(sample(i), reinterpret_cast<int32_t*>(static_cast<char*>(half.host->data()) + begin +
                                                     i * t * size_of(row.dtype)));
  });
  backend_.copy_to_device(*copies_, half.device->data(), half.host->data(), half.host->bytes());
  copies_->record(*half.copied);
  stream.wait(*half.copied);
}

PerField<const void*> TokenFeed::arrays(int64_t index) const {
  PerField<const void*> arrays;
  for_each_row([&](const BatchRow& row, size_t begin) {
    arrays[row.field] = static_cast<const char*>(halves_[newest_].device->data()) + begin +
                        size_t(index * seq_len_) * size_of(row.dtype);
  });
  return arrays;
}

}  // namespace trainctl
