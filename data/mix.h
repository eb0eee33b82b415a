// Mix: what a mixture of sources draws from each of them for a budget of tokens.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trainctl::data {

struct MixSource {
  std::string name;
  uint64_t tokens = 0;  ///< that it has
  double weight = 1;    ///< >= 0
  uint64_t samples = 0;  ///< of an epoch, where they are packed; 0: as many as its tokens fill
  double padding = 0;    ///< the share of packed samples that is padding
};

struct Mix {
  struct Row {
    MixSource source;
    double share = 0;           ///< its weight over the sum of weights
    uint64_t samples = 0;       ///< that are drawn from it
    uint64_t drawn_tokens = 0;  ///< samples * seq_len
    double epochs = 0;          ///< samples over those that the source has
  };
  uint64_t seq_len = 0, samples = 0;
  std::vector<Row> rows;  ///< in the order of the sources
  uint64_t tokens() const { return samples * seq_len; }
};

/// Up to four epochs of the same tokens are worth almost as much as new ones (Muennighoff et al. 2023,
/// arXiv:2305.16264).
inline constexpr double kGoodEpochs = 4;

/// As data.train.N.weight of a job has it: sums of such weights are finite.
inline constexpr double kMostWeight = 1e12;

/// The first `samples` samples of a run with these sources, exactly as Dataset draws them (data/dataset.h).
/// Pure. seq_len > 0. Error(kUsage): no sources, a weight beyond 0 to kMostWeight, weights that are all 0, or a
/// source with less than seq_len + 1 tokens that is not packed.
Mix mix_of(std::span<const MixSource> sources, uint64_t seq_len, uint64_t samples);

}  // namespace trainctl::data
