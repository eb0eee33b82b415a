// The communicators of a rank's groups in the mesh, and what ranks exchange along them.
#pragma once
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "runtime/model/executor.h"
#include "runtime/plan/rank_plan.h"

namespace trainctl {

/// A number of ranks.
struct Count {
  int64_t value = 0;
  void add(const Count& other) { value += other.value; }
};

/// Subgroups of the world. Each may have only one member.
struct MeshCommunicators {
  parallel::PerAxis<std::unique_ptr<parallel::Communicator>> axes;  ///< null: an axis that the job does not have (cp)
  std::unique_ptr<parallel::Communicator> experts, expert_data;     ///< null: each rank has all experts
  /// The data-parallel group and `expert_data` again, for gathers of weights; null: they take turns there.
  std::unique_ptr<parallel::Communicator> gathers, expert_gathers;
  std::unique_ptr<parallel::Communicator> tied;                     ///< first and last stage, or null
  PipelineEdges edges;
  /// Groups through which every rank reaches every other, one after another.
  template <typename Each>
  void for_each_axis(Each each) const {
    for (const parallel::AxisRow& row : parallel::kAxes)
      if (axes[row.axis] && !row.is_within_next) each(*axes[row.axis]);
  }
  template <typename Each>
  void for_each(Each each) const {
    for (const parallel::AxisRow& row : parallel::kAxes)
      if (axes[row.axis]) each(*axes[row.axis]);
    for (const auto* group : {&experts, &expert_data, &gathers, &expert_gathers, &tied})
      if (*group) each(**group);
    edges.for_each(each);
  }
  /// Those along which parameters are shared.
  parallel::AxisGroups shared() const;
  /// Other ranks that compute the same layers. This object and `rehearses` must outlive the result.
  StagePeers peers(const bool& rehearses) const;
  void set_deadline(double seconds) const;
  /// Throws the error of a message that was cut off: the stream went on with whatever memory held.
  void check() const;
  /// Seconds that this rank has waited for peers so far.
  double waited_s() const;
  /// Of these, for the stages before and after its own.
  double waited_in_pipeline_s() const;
  /// Adds the values of all ranks, on every rank: an axis at a time, so that a rank sends a number of
  /// messages that grows with the logarithm of the number of ranks. Collective.
  ///   T  trivially copyable; add(const T&) must not depend on the order (ExactSum, Count)
  template <typename T>
  void sum(T& value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T scratch;
    const auto add = [](void* own, const void* other, size_t) {
      static_cast<T*>(own)->add(*static_cast<const T*>(other));
    };
    for_each_axis([&](parallel::Communicator& axis) {
      parallel::all_combine(axis, &value, &scratch, sizeof(T), add, 0, "sum");
    });
  }
  /// The same of numbers each of which is 0 on all ranks but one, so that nothing is rounded. Collective.
  void sum_parts(std::span<float> parts) const;
  /// Whether something is true on any rank, given whether it is true here. Collective.
  bool is_any(bool here) const {
    Count ranks{here};
    sum(ranks);
    return ranks.value > 0;
  }
};

/// The groups and edges of a rank's plan. Where a transport connects members, Communicator::connect does, and
/// PipelineEdges::connect: later, so that the streams of the groups are made one after another. Hardware
/// queues are handed out in that order, and a library that starts makes streams of its own.
MeshCommunicators make_mesh_communicators(const RankGroups& groups, parallel::Communicator& world);

}  // namespace trainctl
