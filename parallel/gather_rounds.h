// The messages by which a bucket of parameters goes from its owners to all ranks, round by round: for each
// Exchange the mirror of its reduction. Pure.
#pragma once
#include <vector>

#include "parallel/buckets.h"

namespace trainctl::parallel::sharding {

/// Elements of the bucket, sent to or received from a peer.
struct GatherMessage {
  bool is_send = false;
  int peer = 0;
  Elements elements;
};

int gather_round_count(Exchange exchange, int ranks);
/// The messages of `rank` in a round; none is empty. Of two ranks, both list the messages between them in one
/// order.
void add_gather_messages(const BucketPlaces& places, int rank, int ranks, int round,
                         std::vector<GatherMessage>& messages);

}  // namespace trainctl::parallel::sharding
