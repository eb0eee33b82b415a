// What each way of exchanging a bucket costs where many buckets follow one another, as they do in a step, and
// the choice between them. Pure.
#pragma once
#include "parallel/exchange_choice.h"

namespace trainctl::parallel {

/// A bucket among those of a step.
struct BucketLoad {
  BucketSize size;
  double passed_on = 0;  ///< bytes that are not in the slice of their owner, which a direct exchange sends on
  int under_way = 1;     ///< buckets that are exchanged at one time, it included; they have other owners
};

struct ExchangeCost {
  /// By how much the bucket lengthens the exchange of all: its share of the buckets under way, and at least
  /// what its bytes and messages take on the links of an average rank.
  double seconds = 0;
  double bytes = 0;  ///< that an average rank sends
};
/// Halved, ranks send what any exchange must send. A bucket with few owners is slow along the way to them,
/// but most links are then free for the next one. `ranks`: a power of two.
ExchangeCost halving_cost(const BucketLoad& bucket, int ranks, const GroupLinks& links);
/// Directly, they send up to 1 / (ranks - 1) more: what is passed on.
ExchangeCost direct_cost(const BucketLoad& bucket, int ranks, const GroupLinks& links);

/// The direct exchange must take less than this share of the halving's time, if it sends more bytes.
inline constexpr double kWorthItsBytes = 0.95;

/// `ranks` that are no power of two exchange directly, whatever is asked for. Otherwise `automatic` takes
/// what takes less time, and where that is about the same (kWorthItsBytes) what sends fewer bytes.
///   fits   as for a bucket alone (exchange_choice.h)
Exchange exchange_of(const BucketLoad& bucket, int ranks, const GroupLinks& links, ExchangeChoice asked,
                     bool fits);

}  // namespace trainctl::parallel
