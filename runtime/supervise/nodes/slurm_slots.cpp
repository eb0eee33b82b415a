#include "runtime/supervise/nodes/slurm_slots.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/supervise/nodes/run_nodes.h"
#include "runtime/supervise/slurm/slurm_nodes.h"

namespace trainctl {
namespace {

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

}  // namespace

std::vector<ClusterNode> nodes_for(const NodeNeed& need, const SlurmAllocation& allocation, int spares) {
  const int group = need.group();
  const int count = int(allocation.nodes.size());
  const int even = even_slots(need.parallelism, std::max(1, count - spares));
  std::vector<ClusterNode> nodes;
  bool enough_cpus = true;
  for (const SlurmNode& node : allocation.nodes) {
    nodes.push_back({.name = node.name, .switch_path = node.name == allocation.this_node ? allocation.switch_path : ""});
    enough_cpus = enough_cpus && (node.cpus == 0 || ranks_on(node.cpus, group, {}) >= even);
  }
  const int gpus = need.use.choice == DeviceChoice::cpu ? 0 : allocation.gpus_on_this_node.value_or(0);
  for (int i = 0; i < count; ++i) {
    const int cpus = allocation.nodes[size_t(i)].cpus;
    nodes[size_t(i)].slots = need.launcher.slots > 0 ? need.launcher.slots
                             : gpus > 0              ? gpus * need.use.ranks_per_gpu
                             : enough_cpus           ? even
                                                     : cpus;
  }
  const std::string place = fmt::format("Slurm job {} ({})", allocation.job_id, what_it_has(allocation));
  const Problem problem =
      too_small(need, nodes, place,
                "ask Slurm for more nodes or CPUs (--exclusive), raise launcher.slots to share CPUs");
  if (problem.exists()) throw Error(ErrorCode::kPlan, problem.text());
  return nodes;
}

}  // namespace trainctl
