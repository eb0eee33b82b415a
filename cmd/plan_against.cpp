#include "cmd/plan_against.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/units.h"
#include "runtime/observe/report/measured_step.h"
#include "runtime/plan/fit.h"
#include "runtime/plan/plan.h"
#include "runtime/run/record/journal.h"
#include "runtime/run/record/trace_request.h"

namespace trainctl::cmd {
namespace {

[[noreturn]] void refuse_comparison(const std::string& sentence) { throw Error(ErrorCode::kUsage, sentence); }

/// What a run left for a comparison.
struct RunOfStep {
  std::string id;
  ParsedJob job;  ///< of its last attempt
  MeasuredStep measured;
  int ranks_on_node = 0;  ///< 0: all
};

/// What `trainctl trace` reported of the attempt; nullopt: it was not traced, or on GPUs.
std::optional<TracedStep> read_trace(FileSystem& fs, const RunDirectory& run, uint64_t attempt) {
  if (!fs.exists(run.file(kLastTrace))) return std::nullopt;
  const Json json = try_parse_json(fs.read_text(run.file(kLastTrace)));
  if (!json.is_object() || json.value("epoch", int64_t{0}) != int64_t(attempt) || !json.contains("actions") ||
      json["actions"].empty() || !json.contains("communication"))
    return std::nullopt;
  TracedStep step{.first = json.value("first_step", int64_t{0}), .last = json.value("last_step", int64_t{0})};
  const auto seconds = [](const Json& list, const char* key, const char* name, const char* number) {
    for (const Json& one : list)
      if (one.value(key, std::string()) == name) return one.value(number, 0.0) / 1e3;
    return std::nan("");
  };
  const auto action = [&](const char* name) {
    return seconds(json["actions"], "action", name, "compute_ms");
  };
  const auto wait = [&](const char* peers) {
    return seconds(json["communication"], "peers", peers, "wait_ms");
  };
  step.forward_s = action("forward");
  step.backward_s = action("backward");
  step.backward_input_s = action("backward_input");
  step.backward_weight_s = action("backward_weight");
  step.tensor_s = wait("tensor"), step.context_s = wait("context"), step.experts_s = wait("experts");
  step.pipeline_s = wait("pipeline"), step.data_s = wait("data");
  return step;
}

RunOfStep read_run(FileSystem& fs, const FoundRun& found) {
  const RunDirectory& run = found.run;
  const auto identity = read_identity(fs, run);
  RunOfStep result{
      .id = identity ? identity->run_id : run.path, .job = {}, .measured = {}, .ranks_on_node = 0};
  AttemptFile attempt;
  if (fs.exists(run.attempt())) attempt = AttemptFile::from_json(fs.read_text(run.attempt()));
  if (attempt.threads_per_rank > 0)
    attempt.overrides.push_back(fmt::format("parallelism.threads_per_rank={}", attempt.threads_per_rank));
  result.job = parse_job({.text = fs.read_text(run.job()),
                          .file = run.job(),
                          .folder = identity ? identity->working_directory : "",
                          .overrides = attempt.overrides,
                          .environment = {}});
  if (!result.job.ok())
    throw Error(ErrorCode::kSpec,
                "the run's job.json does not parse: " + render(result.job.diagnostics, false));
  std::vector<StepLine> lines;
  if (fs.exists(run.metrics()))
    for (const std::string& line : lines_of(fs, run.metrics())) lines.push_back(step_view(line));
  result.measured = report::measured_step(lines, attempt.epoch);
  if (result.measured.steps == 0)
    refuse_comparison(fmt::format(
        "run {} has recorded no step with the times of its ranks, so there is nothing to compare; let it do "
        "a few steps, with observability.rank_metrics_every_steps = 1 for the times of each",
        result.id));
  if (attempt.nodes.size() > 1) result.ranks_on_node = attempt.nodes.front().count;
  result.measured.traced = read_trace(fs, run, attempt.epoch);
  return result;
}

/// The fields that decide the time of a step.
bool is_of_time(std::string_view path) {
  for (const char* part : {"model.", "batch.", "parallelism.", "precision.", "memory.", "data.seq_len",
                           "data.document", "optimizer.type", "device"})
    if (path.starts_with(part)) return !path.starts_with("model.init");
  return false;
}

/// The first field in which two jobs would have steps of other times.
void require_same_job(const ParsedJob& job, const RunOfStep& run) {
  for (const EffectiveValue& value : job.values) {
    if (!is_of_time(value.path) || value.path == "device") continue;
    const auto found = std::find_if(run.job.values.begin(), run.job.values.end(),
                                    [&](const EffectiveValue& v) { return v.path == value.path; });
    if (found == run.job.values.end() || found->value == value.value || found->meaning == value.meaning)
      continue;
    refuse_comparison(
        fmt::format("run {} is of another job: {} = {} there, {} here; leave the JOB out to compare the run "
                    "with its own",
                    run.id, value.path, found->value, value.value));
  }
}

OrderedJson result_json(const RunOfStep& run, const std::string& cluster, const Comparison& c,
                        const CorrectedCluster& corrected, const std::string& out) {
  const auto kind = [](const ComparedKind& k) {
    return OrderedJson{{"name", k.name}, {"predicted_s", k.predicted_s}, {"measured_s", k.measured_s}};
  };
  OrderedJson kinds = OrderedJson::array(), traced = OrderedJson::array(), corrections = OrderedJson::array();
  for (const ComparedKind& k : c.kinds) kinds.push_back(kind(k));
  for (const ComparedKind& k : c.traced) traced.push_back(kind(k));
  for (const Correction& one : corrected.corrections)
    corrections.push_back({{"field", one.field}, {"before", one.before}, {"after", one.after}});
  return {{"run", run.id},
          {"cluster", cluster},
          {"steps", run.measured.steps},
          {"first_step", run.measured.first},
          {"last_step", run.measured.last},
          {"step", kind(c.step)},
          {"instructions", std::move(kinds)},
          {"traced", std::move(traced)},
          {"verdict", c.verdict},
          {"corrections", std::move(corrections)},
          {"undecided", corrected.undecided},
          {"file", out.empty() ? OrderedJson() : OrderedJson(out)}};
}

void print_corrections(const CorrectedCluster& corrected, const std::string& out) {
  for (const Correction& one : corrected.corrections)
    fmt::print("correct    {}: {:.4g} instead of {:.4g}\n", one.field, one.after, one.before);
  for (const std::string& text : corrected.undecided) fmt::print("left       {}\n", text);
  if (out.empty() && corrected.corrections.empty()) return;
  if (out.empty())
    fmt::print("next: write the corrected cluster file with -o FILE, and plan with --cluster FILE\n");
  else
    fmt::print("next: trainctl plan JOB --cluster {}\n", out);
}

}  // namespace

void add_against_options(CommandLine command, AgainstOptions& options) {
  options.root = default_run_root();
  command
      .add_option("--against", options.run,
                  "compare the predicted step with the one that this run measured, by kind of instruction; "
                  "without a JOB that of the run")
      .type_name("RUN");
  command.add_option("--run-dir", options.root, "folder of the runs (default: $TRAINCTL_RUN_DIR, else runs)")
      .type_name("DIR");
  command.add_option("-o,--out", options.out, "write the cluster file as the run of --against corrects it")
      .type_name("FILE");
}

int plan_against(const AgainstOptions& options, const JobArguments& job,
                 const std::function<DeviceModel(const JobSpec&)>& device_of, const Context& context) {
  FileSystem& fs = real_file_system();
  RunOfStep run = read_run(fs, find_run({options.run, options.root}));
  if (!job.path.empty()) {
    const std::optional<ParsedJob> given = load_job(job, context);
    if (!given) return exit_status(ErrorCode::kSpec);
    require_same_job(*given, run);
  } else if (!job.overrides.empty()) {
    refuse_comparison("-s changes a JOB, and none is given: the run is compared with its own");
  }
  const JobSpec& spec = run.job.job;
  DeviceModel device = device_of(spec);
  device.ranks_on_node = run.ranks_on_node;
  const auto identity = read_identity(fs, find_run({options.run, options.root}).run);
  if (identity && !identity->numerics.empty() && identity->numerics.starts_with("cpu") != device.is_host())
    refuse_comparison(fmt::format(
        "run {} computed on {}, and the plan is for {}; name the cluster of the run's device with "
        "--cluster, or its device with --device",
        run.id, identity->numerics, device.name));
  if (!device.cluster)
    refuse_comparison(fmt::format(
        "no cluster is known for {}, so its step cannot be predicted; name one with --cluster", device.name));
  const JobPlan plan = make_plan(spec, device);
  const auto predict = [&](const predict::ClusterModel& cluster) {
    return predict_step(spec, plan, device, cluster, ranks_on_device(spec, device));
  };
  const Comparison comparison = compare_step(predict(*device.cluster), run.measured);
  const CorrectedCluster corrected =
      correct_cluster(*device.cluster, run.measured, predict,
                      {.with_pipeline = spec.parallelism.pipeline > 1,
                       .shares_devices = ranks_on_device(spec, device) > 1,
                       .source = fmt::format("corrected by run {}, {}", run.id,
                                             utc_text(real_clock().unix_s()).substr(0, 10))});
  if (!options.out.empty()) fs.replace_text(options.out, predict::cluster_text(corrected.cluster));
  if (context.json) {
    print_json("against", result_json(run, device.cluster->name, comparison, corrected, options.out));
    return kExitDone;
  }
  fmt::print("{}", render_comparison(comparison, run.measured, device.cluster->name));
  print_corrections(corrected, options.out);
  return kExitDone;
}

}  // namespace trainctl::cmd
