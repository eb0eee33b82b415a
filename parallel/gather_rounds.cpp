#include "parallel/gather_rounds.h"

#include "parallel/halving.h"
#include "parallel/slices.h"

namespace trainctl::parallel::sharding {
namespace {

void add(std::vector<GatherMessage>& messages, bool is_send, int peer, Elements elements) {
  if (elements.count() > 0) messages.push_back({is_send, peer, elements});
}

/// Round 0: owners deal their parts out to the ranks of the slices. Round 1: each rank sends its slice to
/// all.
void add_slices(const BucketPlaces& places, int rank, int ranks, int round,
                std::vector<GatherMessage>& messages) {
  const auto slice = [&](int of) { return slice_of(places.count(), of, ranks); };
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    add(messages, true, peer, round == 0 ? intersection(places.part(rank), slice(peer)) : slice(rank));
    add(messages, false, peer, round == 0 ? intersection(places.part(peer), slice(rank)) : slice(peer));
  }
}

}  // namespace

int gather_round_count(Exchange exchange, int ranks) {
  return exchange == Exchange::halving ? int(halving_rounds(0, ranks).size()) : 2;
}

void add_gather_messages(const BucketPlaces& places, int rank, int ranks, int round,
                         std::vector<GatherMessage>& messages) {
  if (places.exchange() == Exchange::direct) return add_slices(places, rank, ranks, round, messages);
  const std::vector<HalvingRound> rounds = halving_rounds(rank, ranks);
  const HalvingRound& last_first = rounds[rounds.size() - 1 - size_t(round)];
  add(messages, true, last_first.peer, places.places(last_first.keep.begin, last_first.keep.end));
  add(messages, false, last_first.peer, places.places(last_first.give.begin, last_first.give.end));
}

}  // namespace trainctl::parallel::sharding
