// trainctl simulate: how a run of a job goes on a fleet that fails; starts nothing.
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "cmd/chosen_mesh.h"
#include "cmd/cluster_argument.h"
#include "cmd/commands.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/observe/report/page.h"
#include "runtime/plan/report.h"
#include "runtime/predict/op_time.h"
#include "runtime/simulate/render.h"

namespace trainctl::cmd {
namespace {

struct SimulateOptions {
  JobArguments job;
  std::string cluster, device, fleet = "llama3", price, html;
  int gpus = 0, nodes = 0, spares = -1, threads = 0;
  double days = 30, rate = 1, step_seconds = 0;
  int64_t save_every = 0;
  uint64_t seed = 1;
  bool no_survey = false;
};

/// The text of a file, or of a known one of that name; `what`: "--fleet", with the names that are known.
std::string text_of_file(const char* what, const std::string& name, std::string_view known,
                         const std::vector<std::string>& names) {
  if (!known.empty()) return std::string(known);
  if (!real_file_system().exists(name))
    throw Error(ErrorCode::kUsage, fmt::format("{} {}: is no file and no known one; use {}", what, name,
                                               fmt::join(names, ", ")));
  return real_file_system().read_text(name);
}

DeviceModel simulated_device(const SimulateOptions& options, const JobSpec& job) {
  const std::vector<std::string> names = device_names();
  const predict::ClusterModel cluster = cluster_of(options.cluster);
  const bool is_device = std::find(names.begin(), names.end(), cluster.name) != names.end();
  const std::string name = !options.device.empty() ? options.device : is_device ? cluster.name : "80GiB";
  const bool is_cpu = job.device == DeviceChoice::cpu || options.cluster == "cpu-core";
  DeviceModel device = device_named(name, job, is_cpu ? DeviceKind::cpu : DeviceKind::cuda);
  device.cluster = cluster;
  device.flops_per_s =
      predict::product_peak(device.cluster->device, job.compute == DType::f32, job.tf32 && !device.is_host());
  device.measured = false;
  device.ranks_on_node =
      std::min(device.cluster->devices_of_node * job.launcher.ranks_per_gpu, job.mesh().world_size());
  return device;
}

/// Nodes beyond those of the mesh.
int spares_of(const SimulateOptions& options, int mesh_nodes, int gpus_of_node) {
  if (options.gpus == 0 && options.nodes == 0) return std::max(0, options.spares);
  const int nodes = options.nodes > 0 ? options.nodes : options.gpus / gpus_of_node;
  const std::string asked =
      options.nodes > 0 ? fmt::format("--nodes {}", options.nodes) : fmt::format("--gpus {}", options.gpus);
  if (options.nodes == 0 && options.gpus % gpus_of_node != 0)
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: a node of the cluster has {} GPUs; use a multiple", asked, gpus_of_node));
  const int used = mesh_nodes + std::max(0, options.spares);
  if (nodes < used)
    throw Error(
        ErrorCode::kPlan,
        fmt::format("{}: the job's mesh{} needs {} nodes with {} GPUs each; use --nodes {}, or another "
                    "mesh (-s parallelism.data=N)",
                    asked, options.spares > 0 ? fmt::format(" and {} spares", options.spares) : "", used,
                    gpus_of_node, used));
  return options.spares >= 0 ? options.spares : nodes - mesh_nodes;
}

/// The plan with the time of a step, predicted or given.
PlanReport planned(const SimulateOptions& options, const JobSpec& job, const DeviceModel& device) {
  PlanReport report{.job = job,
                    .plan = make_plan(job, device),
                    .device = device,
                    .fit = {},
                    .alternatives = {},
                    .time = {}};
  report.fit = fit_of(job, report.plan, device);
  report.time = estimate_time(job, report.plan, device, std::nullopt);
  if (options.step_seconds > 0) {
    if (!report.time) report.time.emplace();
    report.time->step_s = options.step_seconds;
  }
  return report;
}

int simulate(SimulateOptions options, const Context& context) {
  std::optional<ParsedJob> parsed = load_job(options.job, context);
  if (parsed)
    parsed = with_chosen_mesh(
        std::move(*parsed), options.job,
        {.device_of = [&](const JobSpec& job) { return simulated_device(options, job); },
         .ranks_on_node = [&](const JobSpec& job,
                              const DeviceModel&) { return simulated_device(options, job).ranks_on_node; }},
        context);
  if (!parsed) return exit_status(ErrorCode::kSpec);
  using namespace simulate;
  SimulationReport report{.fleet = parse_fleet(text_of_file("--fleet", options.fleet,
                                                            known_fleet_text(options.fleet), fleet_names()),
                                               options.fleet),
                          .seed = options.seed};
  const DeviceModel device = simulated_device(options, parsed->job);
  if (!options.price.empty())
    report.price = named_price(real_file_system(), options.price, device.cluster->name);
  report.power = power_of(device);
  report.gpus_of_node = device.cluster->devices_of_node;
  const PlanReport plan = planned(options, parsed->job, device);
  if (plan.fit.known() && !plan.fit.fits())
    throw Error(
        ErrorCode::kPlan,
        fmt::format("the job does not fit: {} for each {} that has {}; `trainctl plan` says what would",
                    memory_text(double(plan.fit.needed())), device.name, memory_text(double(plan.fit.room))));
  report.run = make_run_model(*parsed, plan, {.gpus_of_node = report.gpus_of_node});
  report.run.spares = spares_of(options, report.run.nodes, report.gpus_of_node);
  if (const int devices = device.cluster->devices; devices > 0 && report.run.gpus > devices)
    throw Error(ErrorCode::kUsage, fmt::format("the job's mesh takes {} GPUs, and cluster {} has {}",
                                               report.run.gpus, device.cluster->name, devices));
  report.fleet_gpus =
      options.gpus > 0 ? options.gpus : (report.run.nodes + report.run.spares) * report.gpus_of_node;
  const FailureSource source{
      .gpus = report.run.gpus, .nodes = report.run.nodes, .rate_times = options.rate, .seed = options.seed};
  const Ns end = ns_of(options.days * kDayS);
  report.result = simulate::simulate(report.run, report.fleet, draw_failures(report.fleet, source, end),
                                     {.end = end, .saves = {.directory = options.save_every}});
  if (!options.no_survey) {
    const int threads =
        options.threads > 0 ? options.threads : int(std::max(1u, std::thread::hardware_concurrency()));
    report.survey = make_survey(report.run, report.fleet,
                                {.source = source,
                                 .end = end,
                                 .saves = report.result.saves,
                                 .most_spares = std::max(4, 2 * report.result.spares_for(0.99)),
                                 .threads = threads});
  }
  const OrderedJson result = simulation_json(report);
  if (!options.html.empty())
    real_file_system().replace_text(options.html, report::page_html({{"program", TRAINCTL_VERSION},
                                                                     {"runs", OrderedJson::array()},
                                                                     {"simulation", result}}));
  if (context.json)
    print_json("simulation", result);
  else
    fmt::print("{}", render_simulation(report));
  return kExitDone;
}

}  // namespace

void add_simulate(CommandLine& app, Context& context) {
  auto options = std::make_shared<SimulateOptions>();
  CommandLine command = app.add_subcommand(
      "simulate",
      "report how a run of a job goes on a fleet that fails: goodput, spares, intervals of saves, cost");
  add_job_arguments(command, options->job);
  command
      .add_option("--cluster", options->cluster,
                  "the devices and their network: a known cluster (h100, a100-80, ...) or a file like "
                  "scripts/clusters/h100.json")
      .type_name("FILE")
      .required();
  command.add_option("--device", options->device, "the device, for its memory (default: that of the cluster)")
      .type_name("DEVICE");
  command
      .add_option("--fleet", options->fleet,
                  "what fails how often: a known fleet or a file like scripts/fleets/llama3.json")
      .type_name("FILE")
      .show_default();
  const Option gpus =
      command.add_option("--gpus", options->gpus, "GPUs of the fleet; nodes that the mesh leaves are spares")
          .range(1, 1 << 24);
  command.add_option("--nodes", options->nodes, "the same in nodes").range(1, 1 << 24).excludes(gpus);
  command.add_option("--spares", options->spares, "spare nodes (default: what is left of the fleet, else 0)")
      .range(0, 1 << 20);
  command.add_option("--days", options->days, "the simulated time").range(1e-6, 36500).show_default();
  command
      .add_option("--save-every", options->save_every,
                  "steps between two saves to the run's folder (default: as the job decides)")
      .range(1, 1e15)
      .type_name("STEPS");
  command.add_option("--rate", options->rate, "all rates of failures times this")
      .range(0, 1e6)
      .type_name("TIMES");
  command
      .add_option("--step-seconds", options->step_seconds, "a step takes so long, instead of the prediction")
      .range(1e-6, 1e6)
      .type_name("SECONDS");
  command.add_option("--price", options->price, "of a GPU hour, with its date (2.10@2026-11-01), or a file as for `plan`")
      .type_name("DOLLARS@DATE");
  command.add_option("--html", options->html, "write the result as a page with pictures").type_name("FILE");
  command.add_option("--seed", options->seed, "the same seed gives the same failures").show_default();
  command
      .add_option("--threads", options->threads,
                  "for the survey of intervals and spares (default: all cores)")
      .range(1, 1024);
  command.add_flag("--no-survey", options->no_survey,
                   "simulate this run only, no other intervals and spares");
  when_chosen(command, context, [options, &context] { return simulate(*options, context); });
}

}  // namespace trainctl::cmd
