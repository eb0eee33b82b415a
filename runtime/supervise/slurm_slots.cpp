#include "runtime/supervise/slurm_slots.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/supervise/run_nodes.h"
#include "runtime/supervise/slurm_nodes.h"

namespace trainctl {
namespace {

int ranks_of(const std::vector<ClusterNode>& nodes, int group) {
  int ranks = 0;
  for (const ClusterNode& node : nodes) ranks += ranks_on(node.slots, group, {});
  return ranks;
}

/// "16 nodes with 4 CPUs each", "2 nodes with 4 and 8 CPUs".
std::string what_it_has(const SlurmAllocation& allocation) {
  std::vector<int> cpus;
  for (const SlurmNode& node : allocation.nodes) cpus.push_back(node.cpus);
  std::sort(cpus.begin(), cpus.end());
  const std::string nodes = count_of(int64_t(cpus.size()), "node");
  if (cpus.front() == 0) return nodes;
  if (cpus.front() == cpus.back())
    return fmt::format("{} with {}{}", nodes, count_of(cpus.front(), "CPU"), cpus.size() > 1 ? " each" : "");
  return fmt::format("{} with {} to {} CPUs", nodes, cpus.front(), cpus.back());
}

/// Where the widest run that fits is narrower than the job and the job may not become narrower by itself.
void refuse_if_too_small(const JobSpec& job, const SlurmAllocation& allocation, int room) {
  const ParallelSpec& p = job.parallelism;
  const int ranks = job.mesh().world_size(), replica = ranks / p.data;
  const int data = std::min(p.data, room / replica);
  const auto may_be = [&](int width) {
    return width == p.data || (job.fault_tolerance.elastic && p.lanes % width == 0);
  };
  for (int width = data; width >= 1; --width)
    if (may_be(width)) return;
  const std::string more = "ask Slurm for more nodes or CPUs (--exclusive), raise launcher.slots to share CPUs";
  throw Error(ErrorCode::kPlan,
              fmt::format("the mesh needs {} and Slurm job {} ({}) has room for {} in whole tensor groups of {}; {}{}",
                          count_of(ranks, "rank"), allocation.job_id, what_it_has(allocation), room,
                          p.tensor, more,
                          data > 0 ? fmt::format(", or take -s parallelism.data={} -s parallelism.world_size={}, "
                                                 "which fits",
                                                 data, data * replica)
                                   : fmt::format(", or make tensor and pipeline smaller: one replica alone has {}",
                                                 count_of(replica, "rank"))));
}

}  // namespace

std::vector<ClusterNode> nodes_for(const JobSpec& job, const SlurmAllocation& allocation, int spares) {
  const int group = job.launcher.tensor_across_nodes ? 1 : job.parallelism.tensor;
  const int count = int(allocation.nodes.size());
  const int even = even_slots(job, std::max(1, count - spares));
  std::vector<ClusterNode> nodes;
  bool enough_cpus = true;
  for (const SlurmNode& node : allocation.nodes) {
    nodes.push_back({.name = node.name, .switch_path = node.name == allocation.this_node ? allocation.switch_path : ""});
    enough_cpus = enough_cpus && (node.cpus == 0 || ranks_on(node.cpus, group, {}) >= even);
  }
  const std::optional<int> gpus = job.device == "cpu" ? std::nullopt : allocation.gpus_on_this_node;
  for (int i = 0; i < count; ++i) {
    const int cpus = allocation.nodes[size_t(i)].cpus;
    nodes[size_t(i)].slots = job.launcher.slots > 0 ? job.launcher.slots
                             : gpus && *gpus > 0    ? *gpus * job.launcher.ranks_per_gpu
                             : enough_cpus          ? even
                                                    : cpus;
  }
  refuse_if_too_small(job, allocation, ranks_of(nodes, group));
  return nodes;
}

}  // namespace trainctl
