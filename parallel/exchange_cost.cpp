#include "parallel/exchange_cost.h"

#include <algorithm>
#include <bit>

#include "runtime/base/error.h"

namespace trainctl::parallel {

ExchangeCost halving_cost(const BucketLoad& bucket, int ranks, const GroupLinks& links) {
  ENSURE(std::has_single_bit(unsigned(ranks)), "{} ranks", ranks);
  double busy_s = 0, half = bucket.size.bytes / 2;
  for (int bit = 1; bit < ranks; bit *= 2, half /= 2)
    busy_s += half / (bit < links.neighbours ? links.near : links.far).bytes_per_s + 2 * links.message_s;
  return {.seconds = std::max(halving_seconds(bucket.size, ranks, links) / bucket.under_way, busy_s),
          .bytes = bucket.size.bytes * (ranks - 1) / ranks};
}

ExchangeCost direct_cost(const BucketLoad& bucket, int ranks, const GroupLinks& links) {
  if (ranks == 1) return {};
  const double others = ranks - 1, near = std::min(links.neighbours, ranks) - 1, far = others - near;
  const double slice = bucket.size.bytes / ranks, passed_on = bucket.passed_on / ranks;
  const Link& farthest = far > 0 ? links.far : links.near;
  const double busy_s = near * slice / links.near.bytes_per_s + far * slice / links.far.bytes_per_s +
                        passed_on / farthest.bytes_per_s + 2 * others * links.message_s;
  return {.seconds = std::max(direct_seconds(bucket.size, ranks, links) / bucket.under_way, busy_s),
          .bytes = others * slice + passed_on};
}

Exchange exchange_of(const BucketLoad& bucket, int ranks, const GroupLinks& links, ExchangeChoice asked,
                     bool fits) {
  const Exchange alone = choose_exchange(bucket.size, ranks, links, asked, fits);
  const bool is_open =
      asked == ExchangeChoice::automatic && fits && ranks > 1 && std::has_single_bit(unsigned(ranks));
  if (!is_open) return alone;
  const ExchangeCost halving = halving_cost(bucket, ranks, links), direct = direct_cost(bucket, ranks, links);
  const double worth = direct.bytes > halving.bytes ? kWorthItsBytes : 1;
  return direct.seconds < worth * halving.seconds ? Exchange::direct : Exchange::halving;
}

}  // namespace trainctl::parallel
