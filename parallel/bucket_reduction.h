// BucketReduction adds one bucket of gradients over the ranks of its line, in buffers that are used again for
// the next bucket. Each rank ends with the sums of its own chunks.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "parallel/buckets.h"
#include "parallel/lane_group.h"
#include "parallel/reduction_rounds.h"
#include "parallel/sharded_memory.h"

namespace trainctl::parallel::sharding {

/// All ranks of the group begin the same buckets in the same order. One thread.
class BucketReduction {
 public:
  /// slot: of the ring's buffers. sums: the stream of the additions. All must outlive this object.
  BucketReduction(const ShardedMemory& memory, int slot, LaneGroups& lines, kernels::Backend& backend,
                  kernels::Stream& stream, kernels::Stream& sums);

  bool is_under_way() const { return group_ >= 0; }
  /// Copies the bucket's gradients, which must be complete on `stream`, and starts to exchange them. The
  /// bucket before must have ended. time: which reduction of the step; its results go to the levels of the
  /// own sums that Plan::owner says.
  void begin(int group, Bucket bucket, int time);
  /// When the bucket's gradients are copied; on the stream of the additions.
  kernels::Event& copied() const { return *copied_; }
  /// Goes on as far as it can without a wait. may_write: also where the own sums are written, to the end.
  void poll(bool may_write);
  /// Waits until the own sums are enqueued on the stream of the additions.
  void finish();

 private:
  struct Line {
    Line(LaneGroup& g, const Layout& layout, int line, kernels::Backend& backend, kernels::Stream& sums)
        : group(g), ways(layout, line, backend, sums), places(g.size()) {}
    LaneGroup& group;
    const ReductionWays ways;
    BucketPlaces places;
  };
  void pack(int time);
  bool adds_in_transport() const;
  void start_reduce();
  void end_reduce();
  void start_round();
  void end_round();
  void finish_exchange();
  const Line& line() const { return *line_; }
  ReductionRounds& rounds() const { return line().ways.of(line().places.exchange()); }
  bool writes_next() const { return adds_in_transport() || round_ >= rounds().last_before_own(); }

  const ShardedMemory& memory_;
  const int slot_;
  kernels::Backend& backend_;
  kernels::Stream &stream_, &sums_;
  const std::unique_ptr<kernels::Event> copied_;
  const std::unique_ptr<kernels::Event> complete_;  // the gradients of the bucket, on stream_

  std::deque<Line> lines_;  // of the plan
  Line* line_ = nullptr;    // of the bucket under way
  int group_ = -1;          // of the bucket under way; -1: none
  PackedBucket packed_;
  int round_ = 0;
  int tag_ = 0;
  std::vector<Transfer> messages_;  // of a round
  Ticket ticket_;
};

}  // namespace trainctl::parallel::sharding
