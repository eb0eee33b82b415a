// What the reduction of gradients and the gathering of parameters share: the ranks of a line with lanes,
// among which chunks are dealt out, and the tags of their messages.
#pragma once
#include <deque>
#include <utility>

#include "parallel/axis_groups.h"
#include "parallel/communicator.h"
#include "parallel/sharding_plan.h"

namespace trainctl::parallel::sharding {

/// Priorities of streams (Backend::create_stream_before): the copies and sums of an exchange are short and
/// come between its messages; a gather is needed by the next computation, a reduction at the end of the step.
inline constexpr int kReductionPriority = 1, kGatherPriority = 2;

/// What a LaneGroup is used for. Buckets of both may be under way at one time and begin in another order on
/// each rank, so that they have tags of their own.
enum class LaneTags { reductions, gathers };

/// The ranks of one line. Every member takes the same tags in the same order.
class LaneGroup {
 public:
  /// comm: null where there is no other rank.
  LaneGroup(Communicator* comm, LaneTags tags)
      : comm_(comm),
        first_tag_(tags == LaneTags::reductions ? kFirstTag : kMiddleTag),
        last_tag_(tags == LaneTags::reductions ? kMiddleTag - 1 : kLastTag) {}
  Communicator& comm() const {
    ENSURE(comm_);
    return *comm_;
  }
  int rank() const { return comm_ ? comm_->rank() : 0; }
  int size() const { return comm_ ? comm_->size() : 1; }
  bool waits_on_device() const { return comm_ && comm_->waits_on_device(); }
  /// A bucket's rounds begin at different times on different ranks, so that its tag must be its own. Those
  /// below kFirstTag are left to collectives of the group.
  int take_tag() { return std::exchange(next_tag_, next_tag_ == last_tag_ ? first_tag_ : next_tag_ + 1); }

 private:
  static constexpr int kFirstTag = 16, kMiddleTag = 512, kLastTag = 1023;
  Communicator* const comm_;
  const int first_tag_, last_tag_;
  int next_tag_ = first_tag_;
};

/// A group for each of Plan::lines.
using LaneGroups = std::deque<LaneGroup>;
inline LaneGroups make_lane_groups(const Plan& plan, const AxisGroups& groups, LaneTags tags) {
  LaneGroups result;
  const bool gathers = tags == LaneTags::gathers;
  for (const LaneLine& line : plan.lines)
    result.emplace_back(line.axis == 0 ? nullptr
                        : gathers      ? groups.find_gathers(line.axis)
                                       : groups.find(line.axis),
                        tags);
  return result;
}

}  // namespace trainctl::parallel::sharding
