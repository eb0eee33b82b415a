#include "runtime/train/token_feed.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace trainctl {

TokenFeed::TokenFeed(const BatchRows& rows, int64_t sequences, const parallel::SequenceCut& cut,
                     bool counts_boundaries, kernels::Backend& backend)
    : rows_(rows),
      sequences_(sequences),
      cut_(cut),
      tokens_(cut.exists() ? cut.tokens_of(cut.rank) : std::vector<int32_t>{}),
      counts_boundaries_(counts_boundaries),
      backend_(backend),
      copies_(backend.create_stream()) {
  const size_t bytes = token_bytes(rows, sequences, cut.tokens_here()) / 2;
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
      each(row, std::exchange(begin, begin + size_t(sequences_ * cut_.tokens_here()) * size_of(row.dtype)));
}

SampleTokens TokenFeed::sample(const data::SampleBatch& samples, size_t i) const {
  const size_t width = size_t(cut_.seq_len) + 1;
  SampleTokens of{.tokens = std::span(samples.tokens).subspan(i * width, width),
                  .counts_boundaries = counts_boundaries_};
  if (rows_.documents) of.document_start = std::span(samples.document_starts).subspan(i * width, width);
  if (!samples.weights.empty()) of.weights = std::span(samples.weights).subspan(i * width, width);
  return of;
}

void TokenFeed::count(const SampleTokens& sample, size_t token) {
  targets_.head += sample.weight(token);
  for (int i = 0; i < rows_.mtp; ++i) targets_.modules[size_t(i)] += sample.weight(token, size_t(i) + 1);
}

void TokenFeed::add_to_source(size_t sequence, int64_t targets) {
  if (sources_.empty()) return;
  const auto source = size_t(sources_[sequence]);
  if (targets_of_sources_.size() <= source) targets_of_sources_.resize(source + 1);
  targets_of_sources_[source] += targets;
}

void TokenFeed::count_targets(const data::SampleBatch& samples, size_t sequences) {
  targets_ = {};
  sources_ = samples.sources;
  targets_of_sources_.assign(targets_of_sources_.size(), 0);
  const size_t t = size_t(cut_.seq_len);
  if (tokens_.empty())
    for (size_t i = 0; i < sequences; ++i) {
      const SampleTokens all = sample(samples, i);
      const int64_t before = targets_.head;
      for (size_t token = 0; token < t; ++token) count(all, token);
      add_to_source(i, targets_.head - before);
    }
  for (size_t first = 0; !tokens_.empty() && first < sequences; first += size_t(cut_.sequences))
    for (const int32_t token : tokens_) {
      const size_t i = first + size_t(token) / t;
      const int64_t before = targets_.head;
      count(sample(samples, i), size_t(token) % t);
      add_to_source(i, targets_.head - before);
    }
}

template <typename OfSequence>
void TokenFeed::fill(size_t sequences, int32_t* out, OfSequence of_sequence) const {
  const size_t t = size_t(cut_.seq_len);
  if (tokens_.empty()) {
    for (size_t i = 0; i < sequences; ++i) of_sequence(i, out + i * t);
    return;
  }
  const size_t together = size_t(cut_.sequences);
  std::vector<int32_t> whole(together * t);
  for (size_t first = 0; first < sequences; first += together) {
    for (size_t i = 0; i < together; ++i) of_sequence(first + i, whole.data() + i * t);
    for (const int32_t token : tokens_) *out++ = whole[size_t(token)];
  }
}

template <typename OfSequence>
void TokenFeed::upload(size_t sequences, kernels::Stream& stream, OfSequence of_sequence) {
  ENSURE(sequences <= size_t(sequences_), "{} sequences of {}", sequences, sequences_);
  ENSURE(tokens_.empty() || sequences % size_t(cut_.sequences) == 0, "{} sequences in micro-batches of {}",
         sequences, cut_.sequences);
  newest_ = 1 - newest_;
  Half& half = halves_[newest_];
  half.copied->synchronize();   // the host memory is being read until then
  for_each_row([&](const BatchRow& row, size_t begin) {
    fill(sequences, reinterpret_cast<int32_t*>(static_cast<char*>(half.host->data()) + begin),
         [&](size_t i, int32_t* out) { of_sequence(row, i, out); });
  });
  backend_.copy_to_device(*copies_, half.device->data(), half.host->data(), half.host->bytes());
  copies_->record(*half.copied);
  stream.wait(*half.copied);
}

void TokenFeed::upload(const data::SampleBatch& samples, kernels::Stream& stream, int64_t counted) {
  const size_t width = size_t(cut_.seq_len) + 1, tokens = samples.tokens.size(), n = tokens / width;
  ENSURE(n * width == tokens, "{} tokens for sequences of {}", tokens, cut_.seq_len);
  ENSURE(samples.document_starts.size() == (rows_.documents ? tokens : 0), "documents of {} tokens of {}",
         samples.document_starts.size(), tokens);
  ENSURE(samples.weights.size() == tokens || (samples.weights.empty() && !rows_.weights),
         "weights of {} tokens of {}", samples.weights.size(), tokens);
  ENSURE(samples.sources.size() == n || samples.sources.empty(), "sources of {} samples of {}",
         samples.sources.size(), n);
  count_targets(samples, std::min(n, size_t(counted)));
  upload(n, stream, [&](const BatchRow& row, size_t i, int32_t* out) { row.fill(sample(samples, i), out); });
}

void TokenFeed::upload(const PerField<std::vector<int32_t>>& rows, size_t sequences,
                       kernels::Stream& stream) {
  const size_t t = size_t(cut_.seq_len);
  upload(sequences, stream, [&](const BatchRow& row, size_t i, int32_t* out) {
    const std::vector<int32_t>& all = rows[row.field];
    ENSURE(all.size() == sequences * t, "{} elements of {} sequences of {}", all.size(), sequences, t);
    std::copy_n(all.begin() + ptrdiff_t(i * t), t, out);
  });
}

PerField<const void*> TokenFeed::arrays(int64_t index) const {
  PerField<const void*> arrays;
  for_each_row([&](const BatchRow& row, size_t begin) {
    arrays[row.field] = static_cast<const char*>(halves_[newest_].device->data()) + begin +
                        size_t(index * cut_.tokens_here()) * size_of(row.dtype);
  });
  return arrays;
}

}  // namespace trainctl
