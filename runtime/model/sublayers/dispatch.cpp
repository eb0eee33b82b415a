#include "runtime/model/sublayers/dispatch.h"

#include <cmath>

namespace trainctl {
namespace {

double choices(int64_t n, int64_t k) {
  if (k < 0 || k > n) return 0;
  double ways = 1;
  for (int64_t i = 0; i < k; ++i) ways *= double(n - i) / double(i + 1);
  return ways;
}

/// How likely it is that of k different ones of `all`, `hits` are among `own`.
double likelihood(int64_t all, int64_t own, int64_t k, int64_t hits) {
  return choices(own, hits) * choices(all - own, k - hits) / choices(all, k);
}

}  // namespace

double Dispatch::share_of_tokens(int64_t tokens, int ranks) const {
  if (tokens == 0) return 0;
  const int64_t here = experts / ranks, of_group = experts / groups;
  const double dropped = 1 - double(rows(tokens)) / double(tokens * top_k);
  // A token with `own` of the experts here among those of its groups has all of its rows elsewhere.
  const auto without = [&](int64_t own) {
    double sum = 0;
    for (int64_t hits = 0; hits <= top_k; ++hits)
      sum += likelihood(of_group * top_groups, own, top_k, hits) * std::pow(dropped, double(hits));
    return sum;
  };
  const int64_t groups_here = std::max<int64_t>(here / of_group, 1);
  double share = 1;
  for (int64_t met = 0; met <= top_groups; ++met)
    share -= likelihood(groups, groups_here, top_groups, met) * without(met * std::min(here, of_group));
  return share;
}

}  // namespace trainctl
