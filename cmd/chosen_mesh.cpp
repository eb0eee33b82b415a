#include "cmd/chosen_mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "cmd/plan_search.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/plan/search.h"
#include "runtime/supervise/nodes/run_nodes.h"
#include "runtime/supervise/start/start.h"

namespace trainctl::cmd {
namespace {

constexpr const char* kOrigin = "auto, decided at launch";

[[noreturn]] void unknown_ranks(const std::string& why) {
  throw Error(
      ErrorCode::kUsage,
      fmt::format("parallelism.mesh = auto: {}; give parallelism.world_size, the number of ranks", why));
}

int slots_of_nodes(const JobSpec& job, const std::vector<ClusterNode>& nodes) {
  int slots = 0;
  for (const ClusterNode& node : nodes) slots += node.slots;
  const bool all_given =
      std::all_of(job.launcher.hosts.begin(), job.launcher.hosts.end(),
                  [](const auto& host) { return parse_host(host, "launcher.hosts").slots > 0; });
  if (job.launcher.slots == 0 && (job.launcher.hosts.empty() || !all_given))
    unknown_ranks("the nodes are named without their slots");
  return slots;
}

int slots_of(const ParsedJob& parsed, const SlurmAllocation& allocation) {
  const JobSpec& job = parsed.job;
  const int gpus = job.device == DeviceChoice::cpu ? 0 : allocation.gpus_on_this_node.value_or(0);
  int slots = 0;
  for (const SlurmNode& node : allocation.nodes)
    slots += job.launcher.slots > 0 ? job.launcher.slots
             : gpus > 0             ? gpus
             : node.cpus > 0        ? ranks_on_cores(parsed, node.cpus)
                                    : 0;
  if (slots == 0)
    unknown_ranks(fmt::format("Slurm job {} does not say how many CPUs it has", allocation.job_id));
  return slots;
}

/// The number of ranks that share the work.
int ranks_of(const ParsedJob& parsed, const DeviceModel& device) {
  const JobSpec& job = parsed.job;
  for (const EffectiveValue& value : parsed.values)
    if (value.path == "parallelism.world_size" && !value.is_auto) return job.parallelism.world_size;
  if (const auto nodes = listed_nodes(job, real_file_system()); !nodes.empty())
    return slots_of_nodes(job, nodes);
  if (const auto allocation = allocation_from_environment(process_variables()))
    return slots_of(parsed, *allocation);
  if (job.launcher.slurm.nodes > 0) {
    if (job.launcher.slots == 0) unknown_ranks("launcher.slurm.nodes is given without launcher.slots");
    return job.launcher.slurm.nodes * job.launcher.slots;
  }
  if (device.cluster && device.cluster->devices > 0) return device.cluster->devices;
  if (job.launcher.slots > 0) return job.launcher.slots;
  if (device.is_host()) return ranks_on_cores(parsed, int(std::thread::hardware_concurrency()));
  const int gpus = gpus_here();
  if (gpus == 0) unknown_ranks("this machine has no GPU");
  return gpus;
}

[[noreturn]] void nothing_fits(const SearchResult& result, const DeviceModel& device) {
  throw Error(
      ErrorCode::kPlan,
      result.least_bytes == 0
          ? fmt::format("parallelism.mesh = auto: no mesh of {} keeps what the job gives and is legal; give "
                        "another parallelism.world_size, or fewer of the widths",
                        count_of(result.ranks, "rank"))
          : fmt::format("parallelism.mesh = auto: no mesh of {} fits: the smallest needs {} of each {}, "
                        "which has {}; give more ranks, or a smaller model",
                        count_of(result.ranks, "rank"), memory_text(double(result.least_bytes)), device.name,
                        memory_text(double(result.room))));
}

/// The settings of the fastest mesh that keeps what the job gives.
std::vector<std::string> searched_settings(const ParsedJob& parsed, const JobArguments& arguments,
                                           const MeshChoosing& choosing, const Context& context) {
  JobSpec job = parsed.job;
  DeviceModel device = choosing.device_of(job);
  const int ranks = ranks_of(parsed, device);
  // The memory of a machine is shared by its ranks.
  JobSpec wide = job;
  wide.parallelism.data = wide.parallelism.world_size = ranks;
  device = choosing.device_of(wide);
  refuse_unsearchable(job, device);
  const ParseInput input = job_input(arguments);
  MeshSearch search(input, job, device, [&](const MeshChoice& of) {
    return choosing.ranks_on_node(with_choice(job, of), device);
  });
  search.keep(keeps_given(parsed));
  const SearchResult result = search.on(ranks, 1);
  if (result.front.empty()) nothing_fits(result, device);
  const Proposal& best = result.front.front();
  if (!context.quiet())
    fmt::print(stderr, "mesh        {}, chosen of {} choices: {:.3g} s a step predicted\n",
               mesh_text(best.job.mesh()), result.choices, best.time.step_s);
  return best.settings;
}

}  // namespace

int ranks_on_cores(const ParsedJob& parsed, int cores) {
  int threads = 1;
  for (const EffectiveValue& value : parsed.values)
    if (value.path == "parallelism.threads_per_rank" && !value.is_auto)
      threads = parsed.job.parallelism.threads_per_rank;
  return std::max(1, cores / threads);
}

std::optional<ParsedJob> with_chosen_mesh(ParsedJob parsed, JobArguments& arguments,
                                          const MeshChoosing& choosing, const Context& context) {
  if (parsed.job.parallelism.mesh_from == MeshFrom::given) return parsed;
  if (!arguments.no_data) parsed = with_data_decided(parsed, real_file_system());
  std::vector<std::string> settings =
      choosing.settled ? settings_of(parsed.job.parallelism, choice_of(parsed.job), *choosing.settled)
                       : searched_settings(parsed, arguments, choosing, context);
  settings.push_back("parallelism.mesh=given");
  arguments.overrides.insert(arguments.overrides.end(), settings.begin(), settings.end());
  const std::optional<ParsedJob> chosen = load_job(arguments, context);
  if (!chosen) return std::nullopt;
  return with_decided(*chosen, settings, kOrigin);
}

void require_mesh(MeshFrom mesh, const std::string& command) {
  if (mesh == MeshFrom::given) return;
  throw Error(
      ErrorCode::kUsage,
      fmt::format("{} needs the mesh, and parallelism.mesh is auto: `trainctl plan JOB --device DEVICE -s "
                  "parallelism.world_size=N` chooses one; give its settings with -s, and "
                  "parallelism.mesh=given",
                  command));
}

}  // namespace trainctl::cmd
