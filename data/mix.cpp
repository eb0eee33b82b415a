#include "data/mix.h"

#include "data/mixture.h"
#include "runtime/base/error.h"

namespace trainctl::data {

Mix mix_of(std::span<const MixSource> sources, uint64_t seq_len, uint64_t samples) {
  ENSURE(seq_len > 0, "a seq_len of 0");
  std::vector<double> weights;
  double sum = 0;
  for (const MixSource& source : sources) {
    if (!(source.weight >= 0 && source.weight <= kMostWeight))
      throw Error(ErrorCode::kUsage, fmt::format("the weight {} of source {} is no number from 0 to {:g}",
                                                 source.weight, source.name, kMostWeight));
    if (source.tokens < seq_len + 1 && source.samples == 0)
      throw Error(
          ErrorCode::kUsage,
          fmt::format(
              "source {} has {} tokens; one sample of {} tokens takes {}: give more text or a shorter "
              "sequence",
              source.name, source.tokens, seq_len, seq_len + 1));
    weights.push_back(source.weight);
    sum += source.weight;
  }
  if (!(sum > 0))
    throw Error(ErrorCode::kUsage, sources.empty()
                                       ? "there are no sources to mix"
                                       : "the weights of all sources are 0; give one of them more");
  const std::vector<uint64_t> counts = Mixture(weights).counts(samples);
  Mix mix{.seq_len = seq_len, .samples = samples};
  for (size_t i = 0; i < sources.size(); ++i) {
    const uint64_t own = sources[i].samples > 0
                             ? sources[i].samples
                             : (sources[i].tokens - 1) / seq_len;  // neighbours share a token
    mix.rows.push_back({.source = sources[i],
                        .share = weights[i] / sum,
                        .samples = counts[i],
                        .drawn_tokens = counts[i] * seq_len,
                        .epochs = double(counts[i]) / double(own)});
  }
  return mix;
}

}  // namespace trainctl::data
