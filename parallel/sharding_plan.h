// How ShardedParams lays a rank's parameters out: groups, chunks in flat order, owners, places in the arenas.
// Pure; what the plan adds up and what the constructor takes come from here.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "parallel/lanes.h"
#include "parallel/layout.h"
#include "parallel/sharded_params.h"

namespace trainctl::parallel::sharding {

/// The groups of uses. The members of a group have the same dtype of compute copies and the same rule for
/// sums.
enum Group { cut_matrices, cut_vectors, replicated, replicated_partial, tied_embedding, tied_head, kGroups };
const char* name_of(Group group);   ///< "cut matrices"

/// The place of a use in the weight and gradient arenas.
struct Placement {
  int64_t rows = 0, cols = 0;
  int weight_of = 0;           // the use whose compute copy it reads: another where a tied one is here, too
  size_t weight_offset = 0;    // bytes
  int64_t gradient_offset = 0; // elements
};

/// A chunk of a group. The list has the chunks of the last layer first, in the order in which gradients
/// become ready. Flat order is owner by owner, and in the order of the list for each owner. So an owner's
/// part of any range of the list is contiguous.
struct FlatChunk {
  int use = 0;
  LocalChunk where;
  int64_t offset = 0;  // elements from the start of the group, in flat order
  int owner = 0;       // dp rank
  int part = 0;        // from ZeRO-2 on: of its use, since a part's chunks go together; else 0
};

struct GroupPlan {
  std::vector<FlatChunk> chunks;
  std::vector<int64_t> owner_begin;  // [dp + 1] flat elements
  DType dtype = DType::f32;
  int64_t size() const { return owner_begin.empty() ? 0 : owner_begin.back(); }
  int64_t own(int r) const { return owner_begin[size_t(r) + 1] - owner_begin[size_t(r)]; }
  int64_t largest_share() const {
    int64_t most = 0;
    for (size_t r = 0; r + 1 < owner_begin.size(); ++r) most = std::max(most, own(int(r)));
    return most;
  }
};

/// The sizes from which the ring's buffers follow.
struct LargestBucket {
  int buckets = 0;               ///< of the ring: BucketRing::kBuckets, or all if there are fewer
  int64_t elements = 0;
  int64_t summed_here = 0;       ///< elements of the largest whose sums the transport does not make
  int64_t half = 0;              ///< of such a bucket, the most that ranks with equal lowest bit own
  size_t gathered_bytes = 0;     ///< the largest of compute copies that goes through this ring
};

/// The buffers through which buckets go: of gradients while they are reduced, later of compute copies while
/// they are gathered. A bucket of gradients needs one for this rank's sums, as many as it has subtrees of the
/// lanes' tree, and one for what comes from peers.
struct BucketRing {
  static constexpr int kBuckets = 2;   ///< under way at one time
  int buckets = 0;
  // Bytes of one bucket:
  size_t sums = 0;      ///< of the largest, all subtrees together
  size_t received = 0;  ///< the most that a rank receives at one time
  size_t root = 0;      ///< the sums of a slice in f32, where the others are not
  size_t of_bucket() const { return sums + received + root; }
  size_t bytes() const { return size_t(buckets) * of_bucket(); }
  auto operator<=>(const BucketRing&) const = default;
};

/// ZeRO-3: the buffers through which compute copies are gathered while gradients go through BucketRing.
struct GatherRing {
  int buckets = 0;
  size_t bucket_bytes = 0;   ///< of the largest bucket
  size_t bytes() const { return size_t(buckets) * bucket_bytes; }
};

/// The layout of all ranks of a dp group.
struct Plan {
  std::vector<Placement> places;
  std::array<GroupPlan, kGroups> groups;
  size_t weight_bytes = 0;         ///< of two parts where they take turns
  int64_t gradient_elements = 0;   ///< of one level; of two parts where they take turns
  int lanes = 1;       ///< of all ranks
  int subtrees = 1;    ///< of all ranks: what their runs of lanes consist of
  LargestBucket largest;
  GatherRing gather_ring;
};

/// Whether each lane is reduced as soon as it is complete.
bool reduces_lanes(const ShardingOptions& options, int dp);

/// Whether compute copies are kept by their owners alone, and gathered for each use (ZeRO-3).
bool shards_weights(const ShardingOptions& options, int dp);

Plan make_plan(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids, const ShardingOptions& options, int dp);

/// What a rank has of a group.
struct GroupShare {
  int dp = 1;
  int64_t own = 0, largest = 0;   ///< elements: this rank's, and the most that a dp rank has
  bool has_tied_peer = false;
  int levels = 1;                 ///< of the owner's sums
};
/// The memory of a group on one rank, in bytes; 0: none.
struct GroupBytes {
  size_t weights = 0;    ///< own compute copies, apart from the places of parts (ZeRO-3)
  size_t moment = 0;     ///< each of master weights, first and second moment
  size_t summed =
      0;  ///< own gradients, summed over dp, in flat order (ZeRO-0: everyone's; ZeRO-2, 3: all levels)
  size_t partial = 0;    ///< to add over tp
  size_t tied = 0;       ///< the other use's gradients
};
GroupBytes group_bytes(const Plan& plan, int group, const ShardingOptions& options, const GroupShare& share);

/// A chunk whose optimizer state is on this rank.
struct OwnedChunk {
  int group = 0;
  FlatChunk chunk;
  bool saved_here = false;   ///< this rank writes it to checkpoints (exactly one rank does)
};

/// One rank's parameters as a value: which uses it has, where each lies, what it owns, saves and takes.
/// ShardedParams is this and the memory, the device and the peers. Pure.
struct Layout {
  std::vector<ParamUse> uses;
  ShardingOptions options;
  int dp = 1, dp_rank = 0;
  bool has_tied_peer = false;
  Plan plan;
  LaneRun
      lanes;  ///< of this rank: of the run's, or 0, 1, .. of those that it computes at such times (ZeRO-2)
  BucketRing ring;
  bool shards_weights() const { return sharding::shards_weights(options, dp); }
  /// Lanes are reduced one by one (from ZeRO-2 on), not all at once.
  bool reduces_lanes() const { return sharding::reduces_lanes(options, dp); }
  int reductions() const { return reduces_lanes() ? lanes.count() : 1; }   ///< of a step
  /// Gradients of the whole model, and own sums: as many as exist at one time while lanes are added.
  int gradient_levels() const { return reduces_lanes() ? 1 : sums_at_once(lanes); }
  int own_levels() const { return reduces_lanes() ? sums_at_once(lanes) : 1; }

  GroupBytes group_bytes(int group) const;
  ShardingBytes bytes() const;
  /// Elements from the beginning of a group's state to what this rank holds of it.
  int64_t state_begin(int group) const;
  /// Group by group, in flat order.
  std::vector<OwnedChunk> owned_chunks() const;
};
Layout make_layout(std::vector<ParamUse> uses, const std::vector<std::vector<Box>>& grids,
                   const ShardingOptions& options, int dp, int dp_rank, bool has_tied_peer);

/// Ranks of one dp group that take the same memory: they own as many elements and as many chunks of each
/// group.
struct RankClass {
  int first_rank = 0;     ///< the lowest dp rank of the class
  ShardingBytes bytes;
};
/// The classes of all ranks of a dp group, in the order of their first ranks. One layout is made for the
/// whole group, so the work does not grow with dp times the number of chunks.
std::vector<RankClass> rank_classes(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids,
                                    const ShardingOptions& options, int dp, bool has_tied_peer);

/// Whether the transport adds a group's gradients. It never does for parameters that tensor-parallel ranks
/// replicate: the replicas must stay equal, and the dp groups of these ranks may add in different orders.
bool adds_in_transport(int group, const ShardingOptions& options, int dp);

/// The sums of a group's gradients have memory of their own unless they can be used in the gradients' place.
bool packs_gradients(int group, int dp);

/// Whether the group's compute copies must be brought from their owners.
bool gathers_params(const Layout& layout, int group);

/// Whether a group's optimizer state is here: a tied head's is with the embedding when both are here.
bool owns_state(const Plan& plan, int group);

}  // namespace trainctl::parallel::sharding
