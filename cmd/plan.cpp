// trainctl plan: what a job will need, whether that fits and how long it takes, before anything is started.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "cmd/chosen_mesh.h"
#include "cmd/cluster_argument.h"
#include "cmd/commands.h"
#include "cmd/output.h"
#include "cmd/plan_against.h"
#include "cmd/plan_search.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/machine/mpirun.h"
#include "runtime/observe/report/plan_view.h"
#include "runtime/plan/report.h"
#include "runtime/plan/savings.h"
#include "runtime/plan/schedule_table.h"
#include "runtime/predict/op_time.h"
#include "runtime/supervise/decide/placement.h"
#include "runtime/supervise/nodes/run_nodes.h"
#include "runtime/supervise/start/start.h"
#include "runtime/train/save/save_forecast.h"

namespace trainctl::cmd {
namespace {

struct PlanOptions {
  JobArguments job;
  std::string device, cluster;
  double mfu = 0;  // percent or a fraction; 0: the default
  double days = 0, tokens = 0;  // of the run that is asked for; 0: none, the job's
  int nodes = 0, slots = 0;  // of a cluster that is not here
  std::string switches;
  bool timeline = false, schedules = false, savings = false;
  int width = 110;
  AgainstOptions against;
  SearchOptions search;
};

DeviceModel device_of(const PlanOptions& options, const JobSpec& job) {
  DeviceModel device = options.device.empty() ? device_here(job, device_kind(job), true)
                                              : device_named(options.device, job, device_kind(job));
  if (options.cluster.empty()) return device;
  const predict::ClusterModel cluster = cluster_of(options.cluster);
  const std::vector<std::string> names = device_names();
  const bool is_named = std::find(names.begin(), names.end(), cluster.name) != names.end();
  // A number of GPUs of a known kind says what they are.
  if (options.device.empty() && is_named &&
      (cluster.devices > 0 || (!device.is_host() && device.memory_bytes == 0)))
    device = device_named(cluster.name, job, DeviceKind::cuda);
  device.cluster = cluster;
  if (device.is_host() && options.cluster != "cpu-core" && !predict::known_cluster_text(options.cluster).empty())
    throw Error(ErrorCode::kUsage,
                fmt::format("--cluster {} is of GPUs, and the job is planned for CPU cores; name the device, too: "
                            "--device h100, or --device 80GiB with -s device=cuda",
                            options.cluster));
  device.flops_per_s =
      predict::product_peak(device.cluster->device, job.compute == DType::f32, job.tf32 && !device.is_host());
  device.measured = false;
  return device;
}

/// The plan command again, with settings added, which replace earlier ones of the same field.
std::string plan_command(const PlanOptions& options, const std::vector<std::string>& settings) {
  std::vector<std::string> all = options.job.overrides;
  for (const std::string& setting : settings) {
    const std::string field = setting.substr(0, setting.find('=') + 1);
    std::erase_if(all, [&](const std::string& earlier) { return earlier.rfind(field, 0) == 0; });
    all.push_back(setting);
  }
  LaunchLine line;
  line.argv = {"trainctl", "plan", options.job.path};
  if (!options.device.empty()) line.argv.insert(line.argv.end(), {"--device", options.device});
  if (!options.cluster.empty()) line.argv.insert(line.argv.end(), {"--cluster", options.cluster});
  if (options.nodes > 0) line.argv.insert(line.argv.end(), {"--nodes", std::to_string(options.nodes)});
  if (options.slots > 0) line.argv.insert(line.argv.end(), {"--slots", std::to_string(options.slots)});
  if (!options.switches.empty()) line.argv.insert(line.argv.end(), {"--switches", options.switches});
  if (options.job.no_data) line.argv.emplace_back("--no-data");
  for (const std::string& setting : all) line.argv.insert(line.argv.end(), {"-s", setting});
  return shell_text(line);
}

/// What to do with this plan. Launching is advised only for what fits, and on the device that was planned
/// for.
std::string next_command(const PlanOptions& options, const PlanReport& report) {
  if (report.fit.known() && !report.fit.fits())
    return report.alternatives.empty() ? "" : plan_command(options, report.alternatives.front().settings);
  if (!report.fit.known()) {
    PlanOptions named = options;
    named.device = report.device.kind == DeviceKind::cuda ? "h100" : "64GiB";
    return plan_command(named, {});
  }
  JobArguments launched = options.job;
  if (report.device.kind == DeviceKind::cuda && report.job.device == DeviceChoice::cpu)
    launched.overrides.push_back("device=cuda");
  return launch_command(launched);
}

/// The nodes of --nodes, or of the spec; none: one machine.
std::vector<ClusterNode> nodes_of_plan(const PlanOptions& options, const JobSpec& job) {
  std::vector<ClusterNode> nodes;
  if (options.nodes == 0) nodes = listed_nodes(job, real_file_system());
  if (nodes.empty()) {
    // Slurm names its nodes only when the job starts.
    const int count = options.nodes > 0 ? options.nodes : job.launcher.slurm.nodes;
    const int slots = options.slots > 0 ? options.slots : job.launcher.slots;
    for (int i = 0; i < count; ++i)
      nodes.push_back({fmt::format("node{}", i), slots > 0 ? slots : even_slots(job.parallelism, count), ""});
  }
  if (options.switches.empty()) return nodes;
  const auto paths = parse_switch_file(real_file_system().read_text(options.switches), options.switches);
  for (ClusterNode& node : nodes)
    if (const auto path = paths.find(node.name); path != paths.end()) node.switch_path = path->second;
  std::vector<ClusterNode> ordered;
  for (const int i : order_by_switch(nodes)) ordered.push_back(nodes[size_t(i)]);
  return ordered;
}

/// Where no nodes are named, GPUs are taken to be eight a node, or as many as a node of the cluster has.
int node_count(const std::vector<ClusterNode>& nodes, const JobSpec& job, const DeviceModel& device) {
  const int gpus = device.cluster ? device.cluster->devices_of_node : 8;
  if (!nodes.empty()) return int(nodes.size());
  if (device.kind != DeviceKind::cuda) return 1;
  const int ranks = job.launcher.ranks_per_gpu * gpus;
  return (job.mesh().world_size() + ranks - 1) / ranks;
}

/// Where the ranks would run; nullopt: no nodes are named.
std::optional<PlacementResult> placement_of(const std::vector<ClusterNode>& nodes, const JobSpec& job) {
  if (nodes.empty()) return std::nullopt;
  return place(job.mesh(), nodes, {.tensor_across_nodes = job.launcher.tensor_across_nodes});
}

/// The number of ranks of each node, in the order of ranks; empty: they do not fit.
std::vector<int> ranks_of_nodes(const std::optional<PlacementResult>& placed, int nodes, const JobSpec& job) {
  std::vector<int> ranks;
  if (placed) {
    for (const RankRange& range : placed->placement.ranges) ranks.push_back(range.count);
    return ranks;
  }
  const int each = even_slots(job.parallelism, nodes);
  for (int left = job.mesh().world_size(); left > 0; left -= each) ranks.push_back(std::min(left, each));
  return ranks;
}

/// Adds how often the run saves and copies its state, and what its nodes hold of it.
void forecast(PlanReport& report, const std::vector<ClusterNode>& nodes,
              const std::optional<PlacementResult>& placed) {
  const int count = node_count(nodes, report.job, report.device);
  report.saves = forecast_saves(report, count);
  if (report.plan.worst().copies == 0) return;
  const std::vector<int> ranks = ranks_of_nodes(placed, count, report.job);
  if (ranks.empty()) return;
  // A node may stay empty.
  report.memory_copies = forecast_memory_copies(report, int(ranks.size()));
  report.second_copies = forecast_second_copies(report, int(ranks.size()));
  report.copies = most_copies(copies_of_nodes(report.job.checkpoint, report.job.mesh(), report.plan, ranks));
}

/// The result as JSON: the plan, and where the ranks would run.
OrderedJson plan_result(const PlanReport& report, const std::vector<ClusterNode>& nodes,
                                 const std::optional<PlacementResult>& placed) {
  OrderedJson result = parse_ordered_json(plan_json(report));
  if (placed)
    result["placement"] = {
        {"possible", placed->ok()},
        {"text", placed->ok() ? describe_placement(report.job.mesh(), nodes, placed->placement)
                              : placed->refusal}};
  return result;
}

/// Prints where the ranks would run. False: they do not fit.
bool print_placement(const std::vector<ClusterNode>& nodes, const std::optional<PlacementResult>& placed,
                     const JobSpec& job, const Context& context) {
  if (!placed) return true;
  if (!placed->ok())
    fmt::print(stderr, "error: {}\n", placed->refusal);
  else if (!context.json)
    fmt::print("{}", describe_placement(job.mesh(), nodes, placed->placement));
  return placed->ok();
}

int timeline(const PlanOptions& options, const JobSpec& job, const Context& context) {
  const DeviceModel device = device_of(options, job);
  const std::string drawing = render_timeline(job, device, options.width);
  if (context.json) {
    OrderedJson result = report::pipeline_view(job, device);
    result["text"] = drawing;
    print_json("timeline", result);
  } else {
    fmt::print("{}", drawing);
  }
  return kExitDone;
}

std::optional<double> assumed_mfu(const PlanOptions& options) {
  if (options.mfu <= 0) return std::nullopt;
  return options.mfu > 1 ? options.mfu / 100 : options.mfu;
}

int schedules(const PlanOptions& options, const JobSpec& job, const Context& context) {
  const ScheduleTable table =
      schedule_table(job_input(options.job), job, device_of(options, job), assumed_mfu(options));
  if (context.json) {
    print_json("schedules", parse_ordered_json(schedules_json(table)));
    return kExitDone;
  }
  fmt::print("{}", render_schedules(table));
  // The fastest that fits, as far as that is known.
  const ScheduleRow* best = nullptr;
  for (const ScheduleRow& row : table.rows)
    if (row.refused.empty() && row.fits.value_or(true) && (!best || row.relative_time < best->relative_time))
      best = &row;
  if (best) fmt::print("next: {}\n", plan_command(options, best->settings));
  return kExitDone;
}

int savings(const PlanOptions& options, const JobSpec& job, const Context& context) {
  const SavingTable table =
      saving_table(job_input(options.job), job, device_of(options, job), assumed_mfu(options));
  if (context.json) {
    print_json("savings", parse_ordered_json(savings_json(table)));
    return kExitDone;
  }
  fmt::print("{}", render_savings(table));
  const bool fits = table.together && table.together->fits == true;
  fmt::print("next: {}\n",
             plan_command(options, fits ? table.together->settings : std::vector<std::string>{}));
  return kExitDone;
}

void print_next(const PlanOptions& options, const PlanReport& report) {
  if (const std::string next = next_command(options, report); !next.empty()) fmt::print("next: {}\n", next);
}

/// The place where more ranks are asked for than the cluster has devices for.
std::optional<Diagnostic> larger_than_cluster(const ParsedJob& parsed, const DeviceModel& device) {
  const int ranks = parsed.job.mesh().world_size();
  const int of_device = device.is_host() ? 1 : parsed.job.launcher.ranks_per_gpu;
  if (!device.cluster || device.cluster->devices == 0 || ranks <= device.cluster->devices * of_device)
    return std::nullopt;
  const ParallelSpec& p = parsed.job.parallelism;
  const char* path = p.data > 1       ? "parallelism.data"
                     : p.pipeline > 1 ? "parallelism.pipeline"
                                      : "parallelism.tensor";
  Diagnostic wrong = diagnostic_at(parsed, path, "E0709",
                                   fmt::format("a mesh of {} ranks is larger than cluster {} of {} devices",
                                               ranks, device.cluster->name, device.cluster->devices));
  wrong.help = {fmt::format("--gpus {} searches for a mesh that fits", device.cluster->devices)};
  return wrong;
}

int ranks_on_node(const PlanOptions& options, const JobSpec& job, const DeviceModel& device) {
  const std::vector<ClusterNode> nodes = nodes_of_plan(options, job);
  return parallel::ranks_on_node(
      ranks_of_nodes(placement_of(nodes, job), node_count(nodes, job, device), job));
}

int search(const PlanOptions& options, const JobSpec& job, const Context& context) {
  SearchedJob searched{job_input(options.job), job, device_of(options, job), {}, {}, {}};
  const DeviceModel& device = searched.device;
  searched.ranks_on_node = [&](const MeshChoice& of) {
    return ranks_on_node(options, with_choice(job, of), device);
  };
  searched.plan_command = [&](const std::vector<std::string>& settings) {
    return plan_command(options, settings);
  };
  return search_and_print(options.search, searched, context);
}

/// Error(kUsage) where --days and --tokens are of no use.
void refuse_unanswered_days(const PlanOptions& o) {
  if (o.tokens > 0 && o.days == 0)
    throw Error(ErrorCode::kUsage,
                "--tokens is of the run that --days asks for; schedule.total_steps is the job's");
  const char* other = !o.against.run.empty() ? "--against"
                      : o.timeline           ? "--timeline"
                      : o.schedules          ? "--schedules"
                      : o.savings            ? "--savings"
                      : o.search.gpus != ""  ? "--gpus"
                      : o.search.is_given()  ? "--alternatives"
                                             : nullptr;
  if (o.days > 0 && other)
    throw Error(
        ErrorCode::kUsage,
        fmt::format("--days is of the plan of one mesh, which {} does not make; use one of them", other));
}

int plan(PlanOptions options, const Context& context) {
  refuse_unanswered_days(options);
  if (!options.against.run.empty())
    return plan_against(
        options.against, options.job, [&](const JobSpec& job) { return device_of(options, job); }, context);
  if (options.job.path.empty())
    throw Error(ErrorCode::kUsage, "JOB is missing; only --against RUN needs none");
  if (!options.against.out.empty())
    throw Error(ErrorCode::kUsage, "-o is for the cluster file of --against RUN");
  std::optional<ParsedJob> parsed = load_job(options.job, context);
  if (parsed)
    parsed = with_chosen_mesh(
        std::move(*parsed), options.job,
        {.device_of = [&](const JobSpec& job) { return device_of(options, job); },
         .ranks_on_node = [&](const JobSpec& job,
                              const DeviceModel& device) { return ranks_on_node(options, job, device); }},
        context);
  if (!parsed) return exit_status(ErrorCode::kSpec);
  if (!options.job.no_data) parsed = with_data_decided(*parsed, real_file_system());
  if (options.timeline) return timeline(options, parsed->job, context);
  if (options.schedules) return schedules(options, parsed->job, context);
  if (options.savings) return savings(options, parsed->job, context);
  if (options.search.is_given()) return search(options, parsed->job, context);
  const std::vector<ClusterNode> nodes = nodes_of_plan(options, parsed->job);
  const std::optional<PlacementResult> placed = placement_of(nodes, parsed->job);
  DeviceModel device = device_of(options, parsed->job);
  if (const auto wrong = larger_than_cluster(*parsed, device)) return report_mistakes({*wrong}, context);
  device.ranks_on_node =
      parallel::ranks_on_node(ranks_of_nodes(placed, node_count(nodes, parsed->job, device), parsed->job));
  const std::optional<Price> price = price_of(options.search, device);
  PlanReport report = make_report(job_input(options.job), parsed->job, device, assumed_mfu(options));
  report.price = price;
  if (options.days > 0)
    report.asked = {options.days, options.tokens > 0 ? options.tokens
                                                     : double(report.plan.tokens_per_step) *
                                                           double(report.job.schedule.total_steps)};
  if (report.asked && !report.time)
    throw Error(ErrorCode::kUsage, "--days: the peak of this device is not known; name a GPU: --device h100");
  forecast(report, nodes, placed);
  const bool refused = report.fit.known() && !report.fit.fits();
  if (context.json) {
    print_json("plan", plan_result(report, nodes, placed));
  } else {
    fmt::print("{}", render_plan(report));
  }
  if (!print_placement(nodes, placed, parsed->job, context)) return exit_status(ErrorCode::kPlan);
  const std::optional<Claim> claim = claim_of(report);
  if (claim && judge(*claim) != ClaimVerdict::possible) return exit_status(ErrorCode::kPlan);
  if (refused) {
    if (!context.json) print_next(options, report);
    return exit_status(ErrorCode::kPlan);
  }
  // The plan needs no data files, but a launch here does. Another device is on another machine, where the
  // files may be, too.
  if (report.fit.known() && options.device.empty()) {
    Context in_words = context;  // stdout has only the plan
    in_words.json = false;
    if (!files_exist(*parsed, options.job, in_words)) return exit_status(ErrorCode::kData);
  }
  if (!context.json) print_next(options, report);
  return kExitDone;
}

}  // namespace

void add_plan(CommandLine& app, Context& context) {
  auto options = std::make_shared<PlanOptions>();
  CommandLine command = app.add_subcommand(
      "plan",
      "report memory, traffic and time of a job, and whether it fits (exit 4: no); starts nothing");
  add_job_arguments(command, options->job);
  add_no_data_flag(command, options->job);
  command
      .add_option(
          "--device", options->device,
          "plan for this device instead of this machine's: h100, h200, a100-80, ..., or memory such as "
          "80GiB")
      .type_name("DEVICE");
  command
      .add_option("--mfu", options->mfu,
                  "assumed share of the device's peak, as 0.4 or 40, instead of a prediction (where there is "
                  "none: 0.4 of a GPU's peak, 0.7 of a CPU's measured one)")
      .range(0.001, 100)
      .type_name("SHARE");
  command
      .add_option(
          "--days", options->days,
          "say which share of the devices' peak the run needs to end within D days; exit 4 where that "
          "is impossible")
      .range(0.001, 1e6)
      .type_name("D");
  command.add_option("--tokens", options->tokens, "of N tokens instead of the job's (with --days)")
      .range(1, 1e18)
      .type_name("N");
  command
      .add_option("--cluster", options->cluster,
                  "predict the time for this cluster: a known one (h100, a100-80, ...) or a file like "
                  "scripts/clusters/h100.json")
      .type_name("FILE");
  command.add_option("--nodes", options->nodes,
      "place the ranks on N nodes instead of the spec's").range(1, 1 << 20);
  command.add_option("--slots", options->slots, "ranks that each of --nodes may run (default: the mesh is "
                                                "spread evenly)")
      .range(1, 1 << 16);
  command.add_option("--switches", options->switches, "file of switches: one line `NODE PATH` per node, "
                                                      "e.g. `node0 spine.leaf0`")
      .type_name("FILE");
  command.add_flag("--timeline", options->timeline, "draw the pipeline schedule of one step");
  command.add_flag(
      "--schedules", options->schedules,
      "compare all pipeline schedules: idle time, memory, what they send, and which the job cannot have");
  command.add_flag("--savings", options->savings,
                   "compare what saves memory on the mesh of the job, and say what together is enough");
  command.get_option("JOB").required(false);
  add_against_options(command, options->against);
  add_search_options(command, options->search);
  command.add_option("--width", options->width, "columns of the timeline").range(20, 1000);
  when_chosen(command, context, [options, &context] { return plan(*options, context); });
}

}  // namespace trainctl::cmd
