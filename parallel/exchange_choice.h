// Chooses the faster of two algorithms that exchange a bucket: halving or slices. Both add in the order of the
// lanes' tree, so the choice never changes a bit. Pure: every rank of a group makes the same choice from the
// same numbers.
#pragma once
#include <span>

#include "runtime/base/words.h"

namespace trainctl::parallel {

enum class Exchange {
  halving,  ///< a power of two of ranks: log2(ranks) rounds, each with one peer (parallel/halving.h)
  direct    ///< any number of ranks: two rounds, each with all others, in slices (parallel/slices.h)
};

/// What a job asks for.
enum class ExchangeChoice { automatic, halving, direct };

/// One way of a message between two ranks.
struct Link {
  double latency_s = 0, bytes_per_s = 1;
};
/// What lies between the ranks of a group.
struct GroupLinks {
  int neighbours = 1 << 30;  ///< aligned runs of so many ranks, a power of two, are on one node
  Link near, far;            ///< within a node; between nodes
  double message_s = 0;      ///< what a message costs its sender and its receiver, besides its bytes
};

/// Assumed of ranks on CPUs, whose messages go through MPI or the memory of a process, and of GPUs over NCCL.
GroupLinks links_of_hosts();
GroupLinks links_of_gpus();

/// The largest number of which aligned runs of ranks (0.., n.., 2n..) are each on one node, given the ranks
/// of each node in order; 0: all ranks are on one.
int ranks_on_node(std::span<const int> ranks_of_nodes);
/// GroupLinks::neighbours of `ranks` ranks whose world ranks are `stride` apart. on_node: of ranks_on_node.
int neighbours_on_node(int ranks, int stride, int on_node);

struct BucketSize {
  double bytes = 0;          ///< on the wire
  double largest_chunk = 0;  ///< bytes of its largest chunk, which has one owner
};
/// Estimates of the time from the first message of a bucket to the last sum; 0 for one rank.
double halving_seconds(BucketSize bucket, int ranks, const GroupLinks& links);
double direct_seconds(BucketSize bucket, int ranks, const GroupLinks& links);

/// `ranks` that are no power of two exchange directly, whatever is asked for.
///   fits   the memory for what halved buckets receive is enough for a direct exchange; otherwise it must be
///          asked for
Exchange choose_exchange(BucketSize bucket, int ranks, const GroupLinks& links, ExchangeChoice asked,
                         bool fits);

}  // namespace trainctl::parallel

template <>
struct trainctl::Words<trainctl::parallel::ExchangeChoice> {
  static constexpr std::string_view list[] = {"auto", "halving", "direct"};
};
