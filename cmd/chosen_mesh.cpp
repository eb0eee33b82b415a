#include "cmd/chosen_mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "cmd/plan_search.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/paths.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/plan/render_search.h"
#include "runtime/supervise/nodes/run_nodes.h"
#include "runtime/supervise/nodes/slurm_slots.h"
#include "runtime/supervise/start/launch.h"
#include "runtime/supervise/start/start.h"

namespace trainctl::cmd {
namespace {

constexpr const char* kOrigin = "auto, decided at launch";

/// "job.json:4:18: parallelism.mesh = auto": where the mesh is left to the program.
std::string place_of_auto(const ParsedJob& parsed) {
  const Diagnostic at = diagnostic_at(parsed, "parallelism.mesh", "", "");
  const std::string place = at.line > 0 ? fmt::format("{}:{}:{}", at.file, at.line, at.column) : at.file;
  return place + (place.empty() ? "" : ": ") + "parallelism.mesh = auto";
}

[[noreturn]] void unknown_ranks(const ParsedJob& parsed, const std::string& why) {
  throw Error(ErrorCode::kUsage, fmt::format("{}: {}; give parallelism.world_size, the number of ranks",
                                             place_of_auto(parsed), why));
}

int slots_of_nodes(const ParsedJob& parsed, const std::vector<ClusterNode>& nodes) {
  const JobSpec& job = parsed.job;
  int slots = 0;
  for (const ClusterNode& node : nodes) slots += node.slots;
  const bool all_given =
      std::all_of(job.launcher.hosts.begin(), job.launcher.hosts.end(),
                  [](const auto& host) { return parse_host(host, "launcher.hosts").slots > 0; });
  if (job.launcher.slots == 0 && (job.launcher.hosts.empty() || !all_given))
    unknown_ranks(parsed, "the nodes are named without their slots");
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
    unknown_ranks(parsed, fmt::format("Slurm job {} does not say how many CPUs it has", allocation.job_id));
  return slots;
}

/// The number of ranks that share the work.
int ranks_of(const ParsedJob& parsed, const DeviceModel& device, bool here) {
  const JobSpec& job = parsed.job;
  for (const EffectiveValue& value : parsed.values)
    if (value.path == "parallelism.world_size" && !value.is_auto) return job.parallelism.world_size;
  if (const auto nodes = listed_nodes(job, real_file_system()); !nodes.empty())
    return slots_of_nodes(parsed, nodes);
  if (here)
    if (const auto allocation = allocation_from_environment(process_variables()))
      return slots_of(parsed, *allocation);
  if (job.launcher.slurm.nodes > 0) {
    if (job.launcher.slots == 0)
      unknown_ranks(parsed, "launcher.slurm.nodes is given without launcher.slots");
    return job.launcher.slurm.nodes * job.launcher.slots;
  }
  if (device.cluster && device.cluster->devices > 0) return device.cluster->devices;
  if (!here) unknown_ranks(parsed, "the job's nodes are not here, and it does not say how many");
  if (job.launcher.slots > 0) return job.launcher.slots;
  if (device.is_host()) return ranks_on_cores(parsed, int(std::thread::hardware_concurrency()));
  const int gpus = gpus_here();
  if (gpus == 0) unknown_ranks(parsed, "this machine has no GPU");
  return gpus;
}

[[noreturn]] void nothing_fits(MeshSearch& search, const SearchResult& result, const ParsedJob& parsed,
                               const DeviceModel& device) {
  const std::string what =
      fmt::format("{}: no mesh of {}", place_of_auto(parsed), count_of(result.ranks, "rank"));
  if (result.least_bytes == 0)
    throw Error(ErrorCode::kPlan,
                fmt::format("{} keeps what the job gives and is legal; give another parallelism.world_size, "
                            "or fewer of the widths",
                            what));
  const int others = search.other_ranks(result.ranks);
  throw Error(ErrorCode::kPlan,
              fmt::format("{} fits: {}", what, render_missing(result, parsed.job, device, others)));
}

/// In two lines what was chosen and why, and a third one with what its bits depend on.
void print_chosen(const SearchResult& result, const DeviceModel& device) {
  const Proposal& best = result.front.front();
  const std::string next = next_best(result);
  fmt::print(stderr,
             "mesh        {}, {}: {:.3g} s a step predicted, {} of the {} that {} has, the fastest of {}\n"
             "            next best: {}; more: plan --alternatives 3\n"
             "            bits: those of {}\n",
             mesh_text(best.job.mesh()), rest_words(best.choice), best.time.step_s,
             memory_text(double(best.bytes)), memory_text(double(best.room)), device.name,
             count_of(int64_t(result.choices), "choice"), next.empty() ? "none" : next, bits_words(best.job));
}

/// The settings of the fastest mesh that keeps what the job gives.
std::vector<std::string> searched_settings(const ParsedJob& parsed, const JobArguments& arguments,
                                           const MeshChoosing& choosing, const Context& context) {
  JobSpec job = parsed.job;
  DeviceModel device = choosing.device_of(job);
  const int ranks = ranks_of(parsed, device, choosing.here);
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
  const SearchResult result = search.on(ranks, 2);
  if (result.front.empty()) nothing_fits(search, result, parsed, device);
  if (!context.quiet()) print_chosen(result, device);
  return result.front.front().settings;
}

/// Of the run that the job goes on with; nullopt: there is none.
std::optional<MeshChoice> settled_mesh(const JobSpec& job) {
  FileSystem& fs = real_file_system();
  if (job.observability.run_id.empty()) return std::nullopt;
  const RunDirectory run{absolute_path(job.observability.run_dir) + "/" + job.observability.run_id};
  if (!read_identity(fs, run)) return std::nullopt;
  const ParsedJob before =
      parse_job({.text = fs.read_text(run.job()), .file = run.job(), .overrides = {}, .environment = {}});
  return before.ok() ? std::optional(choice_of(before.job)) : std::nullopt;
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

MeshChoosing choosing_here(const JobSpec& job) {
  return {.device_of =
              [](const JobSpec& of) { return device_here(of, device_of_run(of, real_file_system()), true); },
          .ranks_on_node =
              [](const JobSpec& of, const DeviceModel&) {
                std::vector<ClusterNode> nodes = listed_nodes(of, real_file_system());
                if (const auto slurm = allocation_from_environment(process_variables());
                    nodes.empty() && slurm)
                  nodes = nodes_for(of, *slurm, 0);
                return nodes.size() > 1 ? nodes.front().slots : 0;
              },
          .settled = settled_mesh(job)};
}

MeshChoosing choosing_for(const JobSpec& job, const std::string& device, const std::string& command) {
  MeshChoosing choosing{.device_of =
                            [device](const JobSpec& of) {
                              return device_named(
                                  device, of,
                                  of.device == DeviceChoice::cpu ? DeviceKind::cpu : DeviceKind::cuda);
                            },
                        .ranks_on_node =
                            [](const JobSpec& of, const DeviceModel& on) {
                              if (of.launcher.slots > 0) return of.launcher.slots;
                              return on.cluster ? on.cluster->devices_of_node * of.launcher.ranks_per_gpu : 0;
                            },
                        .settled = settled_mesh(job),
                        .here = false};
  if (job.parallelism.mesh_from == MeshFrom::automatic && !choosing.settled && device.empty())
    throw Error(ErrorCode::kUsage,
                fmt::format("parallelism.mesh = auto: the job's nodes are not here; say what they have, for "
                            "example `{} --device h100`, or give a mesh",
                            command));
  return choosing;
}

Option add_nodes_device(CommandLine& command, std::string& device) {
  Option option = command.add_option(
      "--device", device, "what the job's nodes have, as for `plan`: a mesh that is `auto` is chosen for it");
  option.type_name("DEVICE");
  return option;
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
