#include "runtime/simulate/run_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ckpt/partners.h"
#include "runtime/base/error.h"
#include "runtime/supervise/decide/widths.h"
#include "runtime/train/save/save_forecast.h"

namespace trainctl::simulate {
namespace {

constexpr int kMeasuredSteps = 10;

void add_memory(RunModel& run, const CheckpointSpec& checkpoint, const PlanReport& report, int nodes) {
  const std::optional<CopyForecast> own = forecast_memory_copies(report, nodes),
                                    second = forecast_second_copies(report, nodes);
  if (!own) return;
  const double step_s = report.time->step_s;
  run.memory = {.is_made = true,
                .rule = memory_rule(),
                .given = checkpoint.memory_when == EverySteps::given ? checkpoint.memory_every_steps : -1,
                .cost = ns_of(std::max(0.0, own->seconds - step_s)),
                .safe = ns_of(own->seconds),
                .load = ns_of(own->seconds)};
  if (!second) return;
  run.partner = {.is_made = true,
                 .rule = partner_rule(checkpoint),
                 .given = checkpoint.partner_every_steps > 0 ? checkpoint.partner_every_steps : -1,
                 .safe = ns_of(own->seconds + second->seconds),
                 .load = ns_of(second->seconds)};
  std::vector<int> node_of_rank(size_t(report.job.mesh().world_size()));
  for (size_t rank = 0; rank < node_of_rank.size(); ++rank) node_of_rank[rank] = int(rank) / run.slots;
  const ckpt::Partners partners = ckpt::place_partners(report.job.mesh(), node_of_rank);
  run.partner.is_made = !partners.partner.empty();
  run.partners.resize(partners.partner.size());
  for (const auto& [node, partner] : partners.partner) run.partners[size_t(node)] = partner;
}

void add_evaluation(RunModel& run, const JobSpec& job) {
  const EvalSpec& evaluation = job.eval;
  if (evaluation.every_steps <= 0 || evaluation.max_sequences <= 0) return;  // else its length is not known
  // Forward passes alone: a third of a step for as many sequences.
  const double steps = double(evaluation.max_sequences) / double(job.batch.global_sequences);
  run.evaluation = {evaluation.every_steps, Ns(double(run.step_time) * steps / 3)};
}

double bubble_share(const StepParts& parts) {
  return parts.sum() > 0 ? std::clamp(parts.bubble / parts.sum(), 0.0, 1.0) : 0;
}

}  // namespace

Ns RunModel::step_time_at(const Width& width) const {
  const auto turns = [&](int64_t data) { return (lanes + data - 1) / data; };
  return step_time / turns(widths.front().data) * turns(width.data);
}

RunModel make_run_model(const ParsedJob& parsed, const PlanReport& report, const FleetShape& shape) {
  const JobSpec& job = parsed.job;
  if (!report.time)
    throw Error(ErrorCode::kPlan,
                "the time of a step is not known for this device; give --cluster h100, a cluster "
                "file, or --step-seconds");
  const int tensor = job.launcher.tensor_across_nodes ? 1 : job.parallelism.tensor;
  const int ranks = job.launcher.ranks_per_gpu * shape.gpus_of_node;
  const int world = job.mesh().world_size();
  if (ranks < tensor)
    throw Error(ErrorCode::kPlan,
                fmt::format("a node of {} GPUs runs {} ranks, fewer than a tensor group of {}",
                            shape.gpus_of_node, ranks, tensor));
  RunModel run{.name = job.name,
               .widths = widths_of(parsed),
               .tensor = tensor,
               .slots = std::min(ranks / tensor * tensor, world),
               .spares = shape.spares,
               .gpus = (world + job.launcher.ranks_per_gpu - 1) / job.launcher.ranks_per_gpu,
               .lanes = std::max<int64_t>(job.parallelism.lanes, 1),
               .step_time = std::max<Ns>(ns_of(report.time->step_s), 1),
               .bubble_share = report.time->predicted ? bubble_share(report.time->predicted->parts) : 0,
               .tokens_per_step = report.plan.tokens_per_step,
               .total_steps = job.schedule.total_steps,
               .fault = job.fault_tolerance,
               .keep_last = job.checkpoint.keep_last,
               .keep_every = job.checkpoint.keep_every_steps};
  run.nodes = (world + run.slots - 1) / run.slots;
  run.mtbf_is_given = job.checkpoint.mtbf_seconds > 0;
  run.mtbf_s = run.mtbf_is_given ? job.checkpoint.mtbf_seconds : assumed_mtbf_s(run.nodes);
  // At the end of an attempt that other nodes go on from it saves, even if it does not otherwise.
  const double node_bytes = double(report.plan.checkpoint_bytes) / run.nodes;
  run.directory.safe = run.directory.load = ns_of(node_bytes / kAssumedWriteBytesPerS);
  if (const auto saves = forecast_saves(report, run.nodes))
    run.directory = {.is_made = true,
                     .rule = directory_rule(job.checkpoint),
                     .given = saves->automatic ? -1 : saves->steps,
                     .cost = ns_of(saves->cost_s),
                     .safe = ns_of(saves->write_s),
                     .load = ns_of(saves->write_s)};
  add_memory(run, job.checkpoint, report, run.nodes);
  add_evaluation(run, job);
  return run;
}

SaveSteps decide_saves(const RunModel& run, const SeenFailures& seen, const SaveSteps& given) {
  struct Row {
    SaveTier tier;
    const KeptTier& kept;
    int64_t failures, given;
    int64_t& steps;
  };
  SaveSteps steps;
  const Row rows[] = {
      {SaveTier::directory, run.directory, seen.directory, given.directory, steps.directory},
      {SaveTier::memory, run.memory, seen.memory, given.memory, steps.memory},
      {SaveTier::partner, run.partner, seen.partner, given.partner, steps.partner},
  };
  const double step_s = seconds_of(run.step_time);
  for (const Row& row : rows) {
    if (!row.kept.is_made) continue;
    if (row.given > 0 || row.kept.given >= 0) {
      row.steps = row.given > 0 ? row.given : row.kept.given;
      continue;
    }
    const SaveHistory history{.tier = row.tier, .failures = row.failures, .observed_s = seen.observed_s};
    SaveCalendar calendar({row.kept.rule}, {history},
                          {.step = 0, .now_s = 0, .mtbf_s = run.mtbf_s, .mtbf_is_given = run.mtbf_is_given});
    for (int i = 0; i < kMeasuredSteps; ++i) calendar.stepped(step_s);
    calendar.cost(row.tier, seconds_of(row.kept.cost));
    calendar.safe(row.tier, seconds_of(row.kept.safe));
    for (const SaveInterval& interval : calendar.take_changes(0)) row.steps = interval.steps;
  }
  if (run.memory.is_made && steps.memory == 0) steps.memory = steps.directory;
  // A copy is sent of what is copied.
  if (steps.partner > 0 && steps.memory > 0)
    steps.partner = (steps.partner + steps.memory - 1) / steps.memory * steps.memory;
  for (int64_t* of : {&steps.directory, &steps.memory, &steps.partner})
    *of = std::min(*of, std::max<int64_t>(1, run.total_steps));
  // A save is left out while the one before is written.
  if (steps.directory > 0) {
    const Ns interval = steps.directory * run.step_time;
    steps.directory *= std::max<Ns>(1, (run.directory.safe + interval - 1) / interval);
  }
  return steps;
}

}  // namespace trainctl::simulate
