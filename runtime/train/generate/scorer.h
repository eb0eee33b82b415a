// Scorer: the likelihood of texts, several of them in one sequence, each a document of its own.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/train/generate/generate.h"

namespace trainctl {

struct Likelihood {
  double log = 0;      ///< natural, of all tokens that count
  int64_t tokens = 0;  ///< so many
  double mean() const { return log / double(tokens); }
};

/// The ending with the largest mean, or sum; of equals the first.
int best_by_mean(const std::vector<Likelihood>& endings);
int best_by_sum(const std::vector<Likelihood>& endings);

class Scorer {
 public:
  explicit Scorer(Generator& generator) : generator_(generator) {}

  /// `result` gets the likelihood of the tokens from `first` (>= 1) on, each by those before it, at the latest
  /// in flush(). Of a text longer than a sequence, the end is taken; returns whether that was so. What counts
  /// must fit.
  bool add(std::vector<int32_t> tokens, size_t first, Likelihood& result);
  void flush();

 private:
  struct Waiting {
    Likelihood* result;
    size_t begin, end;  // of its targets that count
  };
  Generator& generator_;
  std::vector<int32_t> tokens_, targets_, starts_;
  std::vector<Waiting> waiting_;
};

}  // namespace trainctl
