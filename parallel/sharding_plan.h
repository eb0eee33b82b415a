// How ShardedParams lays a rank's parameters out: groups, chunks in flat order, owners, places in the arenas.
// Pure; what the plan adds up and what the constructor takes come from here.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "parallel/exchange_choice.h"
#include "parallel/group_key.h"
#include "parallel/lanes.h"
#include "parallel/layout.h"
#include "parallel/sharded_params.h"

namespace trainctl::parallel::sharding {

/// The place of a use in the weight and gradient arenas.
struct Placement {
  int64_t rows = 0, cols = 0;
  int group = 0;
  int weight_of = 0;  // the use whose compute copy it reads: another of the parameter that is here, too
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
  int64_t block_offset = 0;  // likewise, blocks of its moments
  int64_t first_block = 0;   // of its parameter's blocks, in the order of the grid
  int owner = 0;       // rank of the group's line
  int part = 0;        // from ZeRO-2 on: of its use, since a part's chunks go together; else 0
};

/// Chunks [begin, end) of a group, exchanged together.
struct Bucket {
  size_t begin = 0, end = 0;
  Exchange exchange = Exchange::halving;
};

/// The uses with one key.
struct GroupPlan {
  GroupKey key;
  int line = 0;  ///< of Plan::lines: the ranks to which its chunks are dealt out
  int state_of =
      0;  ///< the group that has the optimizer state: itself, or that of an earlier use that is here
  std::vector<AxisSet> sums;  ///< GroupKey::sum_axes
  bool repeats_sums = false;  ///< GroupKey::repeats_sums
  /// Its sums take the place of its gradients, which lie in flat order; otherwise they have memory of their
  /// own.
  bool in_place = false;
  std::vector<FlatChunk> chunks;
  /// In the order in which gradients become ready: as many chunks of one FlatChunk::part as fit into
  /// ShardingOptions::bucket_elements, at least one. A rank may own nothing of a bucket.
  std::vector<Bucket> buckets;
  std::vector<int64_t> owner_begin;  // [ranks of the line + 1] flat elements
  std::vector<int64_t> block_begin;  // likewise, blocks of the moments of chunks
  int64_t size() const { return owner_begin.empty() ? 0 : owner_begin.back(); }
  int64_t own(int r) const { return owner_begin[size_t(r) + 1] - owner_begin[size_t(r)]; }
  int64_t blocks() const { return block_begin.empty() ? 0 : block_begin.back(); }
  int64_t own_blocks(int r) const { return block_begin[size_t(r) + 1] - block_begin[size_t(r)]; }
};

/// The sizes from which the ring's buffers follow.
struct LargestBucket {
  int buckets = 0;               ///< of the ring: BucketRing::kBuckets, or all if there are fewer
  int64_t elements = 0;
  // Of buckets whose sums the transport does not make:
  int64_t direct = 0;            ///< elements of the largest that is exchanged directly
  int64_t half = 0;              ///< of one that is halved, the most that ranks with equal lowest bit own
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

/// The ranks along an axis with lanes, among which the chunks of groups are dealt out.
struct LaneLine {
  AxisSet axis = 0;  ///< 0: no other rank
  int ranks = 1;
  /// Ranks of the first line that have one rank of this one: neighbours, whose lanes all come to it.
  int sharing = 1;
  int lanes = 1;     ///< of all of them
  int subtrees = 1;  ///< of all of them: what their lanes of one reduction consist of
  int64_t gradient_elements = 0;  ///< of one level; of two parts where they take turns
  LargestBucket largest;
  int rank_of(int first_rank) const { return first_rank / sharing; }  ///< of a rank of the first line
};

/// The layout of all ranks along the axes with lanes.
struct Plan {
  std::vector<LaneLine> lines;     ///< at least one; the first one is the longest, the others divide it
  std::vector<Placement> places;   ///< [use]
  std::vector<GroupPlan> groups;   ///< in the order of their keys
  size_t weight_bytes = 0;         ///< of two parts where they take turns
  GatherRing gather_ring;
  MuonScratch muon;
  size_t state_part = 0;  ///< most bytes of a part of the state in a file (StatePlaces); 0: none is in one
  /// From ZeRO-2 on, of more than one rank, and of lanes with parts: the lanes of one time are reduced as
  /// soon as they are complete.
  bool reduces_lanes = false;
  int parts_of_lane = 1;  ///< of ShardingOptions
  /// Lanes that all ranks compute at one time, where lanes are reduced.
  int lanes_at_once() const { return lines.front().ranks * parts_of_lane; }
  /// Of the sums of own chunks. Its times are the reductions of a step: one, or one for each time.
  OwnerLevels owner;
  const LaneLine& line_of(int group) const { return lines[size_t(groups[size_t(group)].line)]; }
};

/// Whether compute copies of a line are kept by their owners alone, and gathered for each use (ZeRO-3).
bool shards_weights(const ShardingOptions& options, int ranks);

/// The ranks of `lines` have no meaning, but the one along the tensor axis.
Plan make_plan(const std::vector<ParamUse>& uses, const std::vector<std::vector<Box>>& grids,
               const ShardingOptions& options, const AxisLines& lines);

/// What a rank has of a group.
struct GroupShare {
  int64_t own = 0;                ///< elements
  int64_t blocks = 0;             ///< of its chunks' moments
  int levels = 1;                 ///< of the owner's sums
};
/// The memory of a group on one rank, in bytes; 0: none.
struct GroupBytes {
  size_t weights = 0;    ///< own compute copies, apart from the places of parts (ZeRO-3)
  std::vector<size_t> states;  ///< [row of GroupKey::states]; empty: its state is another group's
  StateHome home = StateHome::memory;  ///< of its state
  size_t summed = 0;     ///< own sums in flat order (ZeRO-0: everyone's; ZeRO-2, 3: all levels)
  std::vector<std::pair<AxisSet, size_t>> received;  ///< to add the sums over each of GroupPlan::sums
  size_t most_received() const;
};
GroupBytes group_bytes(const Plan& plan, int group, const ShardingOptions& options, const AxisLines& lines,
                       const GroupShare& share);

/// A chunk whose optimizer state is on this rank.
struct OwnedChunk {
  int group = 0;
  FlatChunk chunk;
  bool saved_here = false;   ///< this rank writes it to checkpoints (exactly one rank does)
};

/// This rank among those of a LaneLine.
struct LaneShare {
  int rank = 0;
  /// Its lanes: of the line's, or 0, 1, .. of those that come to it one after another (from ZeRO-2 on).
  LaneRun lanes;
  LaneLevels levels = {};       ///< of its gradients, of all lanes that are added here before a reduction
  int64_t gradients_begin = 0;  ///< elements of the gradients of the lines before
};

/// One rank's parameters as a value: which uses it has, where each lies, what it owns, saves and takes.
/// ShardedParams is this and the memory, the device and the peers. Pure.
struct Layout {
  std::vector<ParamUse> uses;
  ShardingOptions options;
  AxisLines lines;
  Plan plan;
  std::vector<LaneShare> shares;  ///< [Plan::lines]
  BucketRing ring;

  const GroupPlan& group(int g) const { return plan.groups[size_t(g)]; }
  int groups() const { return int(plan.groups.size()); }
  const LaneLine& line_of(int g) const { return plan.line_of(g); }
  const LaneShare& share_of(int g) const { return shares[size_t(group(g).line)]; }
  /// Of any group, and of group `g`.
  bool shards_weights() const { return sharding::shards_weights(options, plan.lines.front().ranks); }
  bool shards_weights(int g) const { return sharding::shards_weights(options, line_of(g).ranks); }
  bool reduces_lanes() const { return plan.reduces_lanes; }
  int reductions() const { return plan.owner.times(); }
  /// Of all lines and levels.
  int64_t gradient_elements() const;

  GroupBytes group_bytes(int group) const;
  ShardingBytes bytes() const;
  /// Elements from the beginning of a group's state to what this rank holds of it.
  int64_t state_begin(int group) const;
  int64_t state_block_begin(int group) const;  ///< likewise, blocks of moments
  /// Group by group, in flat order.
  std::vector<OwnedChunk> owned_chunks() const;
};
/// Along each axis with lanes, this rank is where LaneLine::rank_of its rank along the first one is.
Layout make_layout(std::vector<ParamUse> uses, const std::vector<std::vector<Box>>& grids,
                   const ShardingOptions& options, AxisLines lines);

/// Where the state of a rank's owned chunks is, if some of it is in a file: parts of the file, each with all
/// rows of a run of owned chunks. Parts come into memory one after another.
struct StatePlaces {
  // Of a part, unless a chunk has more: that many bytes, or fewer where there would be few parts.
  static constexpr size_t kPartBytes = size_t{16} << 20;
  static constexpr size_t kFewestParts = 16;
  static constexpr size_t kAligned = 4096;  ///< of parts, for a disk
  static constexpr int kPartsInMemory = 3;
  /// Chunks [begin, end) of Layout::owned_chunks.
  struct Part {
    size_t begin = 0, end = 0;
    bool in_file = false;
  };
  std::vector<Part> parts;                  ///< all owned chunks, in order
  std::vector<uint64_t> begins;             ///< in the file, of each part there, and the end
  std::vector<std::vector<uint64_t>> rows;  ///< [owned chunk][row]: in the file; empty: in memory
  uint64_t bytes() const { return begins.empty() ? 0 : begins.back(); }
};
StatePlaces place_states(const Layout& layout);
/// Of the state of a group. That of balances stays in memory, since a step reads it.
StateHome home_of(const GroupKey& key, const ShardingOptions& options);
/// Plan::state_part of a plan that has the chunks of its groups.
size_t largest_state_part(const Plan& plan, const ShardingOptions& options);

/// Ranks that take the same memory: they own as many elements and as many chunks of each group.
struct RankClass {
  int first_rank = 0;  ///< the lowest rank of the class along the first axis with lanes; LaneLine::rank_of
                       ///< says where that is along the others
  ShardingBytes bytes;
};
/// The classes of all ranks along the axes with lanes, in the order of their first ranks. One plan is made
/// for all of them, so the work does not grow with the ranks times the number of chunks.
std::vector<RankClass> rank_classes(const std::vector<ParamUse>& uses,
                                    const std::vector<std::vector<Box>>& grids,
                                    const ShardingOptions& options, const AxisLines& lines);

/// Whether the transport adds a group's gradients. It never does where ranks must make the same sums: those
/// of different lines may add in different orders.
bool adds_in_transport(const GroupPlan& group, const ShardingOptions& options, int ranks);

/// Whether the group's compute copies must be brought from their owners.
bool gathers_params(const Layout& layout, int group);

/// Whether a group's optimizer state is its own: that of a later use is with the first one that is here.
inline bool owns_state(const Plan& plan, int group) { return plan.groups[size_t(group)].state_of == group; }

/// What every rank receives along an axis of `ranks` ranks to add `elements` sums.
size_t sum_received_bytes(int ranks, int64_t elements);

}  // namespace trainctl::parallel::sharding
