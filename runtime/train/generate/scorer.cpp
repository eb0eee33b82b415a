#include "runtime/train/generate/scorer.h"

#include <fmt/format.h>

#include "runtime/base/ensure.h"

namespace trainctl {

namespace {

template <typename Value>
int first_of_largest(const std::vector<Likelihood>& endings, Value value) {
  size_t best = 0;
  for (size_t i = 1; i < endings.size(); ++i)
    if (value(endings[i]) > value(endings[best])) best = i;
  return int(best);
}

}  // namespace

int best_by_mean(const std::vector<Likelihood>& endings) {
  return first_of_largest(endings, [](const Likelihood& l) { return l.mean(); });
}
int best_by_sum(const std::vector<Likelihood>& endings) {
  return first_of_largest(endings, [](const Likelihood& l) { return l.log; });
}

bool Scorer::add(std::vector<int32_t> tokens, size_t first, Likelihood& result) {
  const size_t most = size_t(generator_.seq_len());
  ENSURE(first >= 1 && first < tokens.size());
  const bool cut = tokens.size() - 1 > most;
  if (cut) {
    const size_t away = tokens.size() - 1 - most;
    ENSURE(first > away, "{} tokens from {}", tokens.size(), first);
    tokens.erase(tokens.begin(), tokens.begin() + ptrdiff_t(away));
    first -= away;
  }
  const size_t inputs = tokens.size() - 1;
  if (tokens_.size() + inputs > most) flush();
  const size_t begin = tokens_.size();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end() - 1);
  targets_.insert(targets_.end(), first - 1, -1);
  targets_.insert(targets_.end(), tokens.begin() + ptrdiff_t(first), tokens.end());
  starts_.insert(starts_.end(), inputs, int32_t(begin));
  waiting_.push_back({&result, begin + first - 1, begin + inputs});
  return cut;
}

void Scorer::flush() {
  if (waiting_.empty()) return;
  const std::vector<float> losses = generator_.losses(tokens_, targets_, starts_);
  for (const Waiting& w : waiting_) {
    *w.result = {.tokens = int64_t(w.end - w.begin)};
    for (size_t t = w.begin; t < w.end; ++t) w.result->log -= double(losses[t]);
  }
  tokens_.clear(), targets_.clear(), starts_.clear(), waiting_.clear();
}

}  // namespace trainctl
