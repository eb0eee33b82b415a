#include "runtime/plan/schedule_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "parallel/schedules.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/plan/fit.h"
#include "runtime/plan/instruction_times.h"
#include "runtime/plan/pipeline_plan.h"
#include "runtime/plan/plan.h"

namespace trainctl {
namespace {

class TableMaker {
 public:
  TableMaker(const ParseInput& spec, const JobSpec& job, const DeviceModel& device, std::optional<double> mfu)
      : spec_(spec), job_(job), device_(device) {
    table_.stages = job.parallelism.pipeline;
    table_.micro_batches = int(job.micro_batches_of(0));
    if (device.cluster && !mfu)
      table_.cluster = device.cluster->name;
    else
      table_.mfu = mfu.value_or(device.kind == DeviceKind::cuda ? kGpuMfu : kCpuMfu);
    table_.with_transfers =
        !table_.cluster.empty() || (device.flops_per_s > 0 && device.link_bytes_per_s > 0);
  }

  ScheduleTable make() {
    for (size_t i = 0; i < parallel::schedules().size(); ++i) add(parallel::Schedule(i));
    double fastest = 0;
    for (const double time : times_)
      if (time > 0 && (fastest == 0 || time < fastest)) fastest = time;
    for (size_t i = 0; i < times_.size(); ++i)
      if (times_[i] > 0) table_.rows[i].relative_time = times_[i] / fastest;
    return std::move(table_);
  }

 private:
  void add(parallel::Schedule schedule) {
    const parallel::ScheduleKind& kind = parallel::kind_of(schedule);
    if (!kind.virtual_stages) return add(schedule, kind.v_shaped ? 2 : 1);
    if (!kind.needs_several) add(schedule, 1);
    const int own = schedule == job_.parallelism.schedule ? job_.parallelism.virtual_stages : 2;
    add(schedule, 2);
    if (own == 4 || job_of(schedule, 4).ok()) add(schedule, 4);
    if (own != 1 && own != 2 && own != 4) add(schedule, own);
  }

  std::vector<std::string> settings(parallel::Schedule schedule, int virtual_stages) const {
    const ParallelSpec& p = job_.parallelism;
    std::vector<std::string> result;
    if (schedule != p.schedule)
      result.push_back(std::string("parallelism.pipeline_schedule=") + parallel::name_of(schedule));
    if (virtual_stages != p.virtual_stages)
      result.push_back(fmt::format("parallelism.virtual_stages={}", virtual_stages));
    // The given ones are for the virtual stages of the job.
    const parallel::VirtualStages now = p.stage_order(),
                                  then = parallel::virtual_stages_of(schedule, p.pipeline, virtual_stages);
    if (!p.stage_layers.empty() && (now.each != then.each || now.v_shaped != then.v_shaped))
      result.push_back("parallelism.stage_layers=auto");
    return result;
  }
  ParsedJob job_of(parallel::Schedule schedule, int virtual_stages) const {
    ParseInput input = spec_;
    for (const std::string& setting : settings(schedule, virtual_stages)) input.overrides.push_back(setting);
    return parse_job(input);
  }

  void add(parallel::Schedule schedule, int virtual_stages) {
    ScheduleRow row{.schedule = schedule, .virtual_stages = virtual_stages};
    row.settings = settings(schedule, virtual_stages);
    row.chosen = row.settings.empty();
    const ParsedJob parsed = job_of(schedule, virtual_stages);
    for (const Diagnostic& d : parsed.diagnostics)
      if (row.refused.empty() && d.is_error()) row.refused = fmt::format("{} {}", d.code, d.message);
    JobSpec job = parsed.job;
    job.data = job_.data;  // what the sources decide was decided there
    times_.push_back(row.refused.empty() ? plan(row, job) : 0);
    table_.rows.push_back(std::move(row));
  }

  /// Returns the time of its passes.
  double plan(ScheduleRow& row, const JobSpec& job) {
    const PredictedPasses passes =
        InstructionTimes(job, device_, table_.cluster.empty() ? nullptr : &*device_.cluster).passes();
    row.bubble_fraction = passes.time_s > 0 ? passes.idle_s / (passes.time_s * job.parallelism.pipeline) : 0;
    if (!table_.cluster.empty())
      row.pass_s = passes.time_s;
    else if (device_.flops_per_s > 0)
      row.pass_s = passes.time_s / table_.mfu;
    const parallel::ScheduleKind& kind = parallel::kind_of(row.schedule);
    row.overlaps =
        kind.splits_backward && !StepCut(job).splits_backward
            ? job.recomputes_layers()
                  ? "messages alone: layers are computed again, so both halves of a backward run together"
              : job.model.mtp.num_layers > 0
                  ? "messages alone: with multi-token prediction both halves of a backward run together"
                  : "messages alone: of several context blocks both halves of a backward run together"
            : kind.overlaps;
    const JobPlan plan = make_plan(job, device_);
    for (const RankMemory& stage : plan.stages)
      row.activation_bytes = std::max(row.activation_bytes, stage.stage.activations);
    row.total_bytes = plan.worst().total();
    const PipelinePlan pipeline = plan_pipeline(job, 0);
    const LayerShape shape =
        layer_shape(model_plan(job.model, job.compute), job.batch, job.data.seq_len, job.parallelism);
    row.sent_bytes = double(*std::max_element(pipeline.sends.begin(), pipeline.sends.end())) *
                     double(shape.local_rows * shape.hidden) * double(size_of(shape.compute));
    if (const Fit fit = fit_of(job, plan, device_); fit.known()) row.fits = fit.fits();
    return passes.time_s;
  }

  const ParseInput& spec_;
  const JobSpec& job_;
  const DeviceModel& device_;
  ScheduleTable table_;
  std::vector<double> times_;  // of each row; 0: refused
};

std::string name_of(const ScheduleRow& row) {
  const std::string name = parallel::name_of(row.schedule);
  return row.virtual_stages == 1 ? name : fmt::format("{} x {}", name, row.virtual_stages);
}

}  // namespace

ScheduleTable schedule_table(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                             std::optional<double> mfu) {
  return TableMaker(spec, job, device, mfu).make();
}

std::string render_schedules(const ScheduleTable& table) {
  std::string out = fmt::format(
      "Schedules of {} and {} micro-batches, {}\n", count_of(table.stages, "stage"), table.micro_batches,
      !table.cluster.empty() ? "in the predicted time of cluster " + table.cluster
      : table.with_transfers ? "by counted FLOPs and transfers at the speed of the link"
                             : "by counted FLOPs");
  out += fmt::format("  {:<16}{:>7}{:>11}{:>8}{:>13}{:>12}{:>11}  {}\n", "schedule", "idle", "passes", "time",
                     "activations", "all memory", "sent", "overlaps");
  for (const ScheduleRow& row : table.rows) {
    if (!row.refused.empty()) continue;
    out += fmt::format("{} {:<16}{:>6.1f}%{:>11}{:>8}{:>13}{:>12}{:>11}  {}{}\n", row.chosen ? '*' : ' ',
                       name_of(row), 100 * row.bubble_fraction,
                       row.pass_s ? fmt::format("{:.4g} s", *row.pass_s) : "?",
                       fmt::format("{:.3f}x", row.relative_time), brief_memory_text(row.activation_bytes),
                       brief_memory_text(row.total_bytes), brief_memory_text(uint64_t(row.sent_bytes)),
                       row.overlaps, row.fits.value_or(true) ? "" : " (does not fit)");
  }
  for (const ScheduleRow& row : table.rows)
    if (!row.refused.empty()) out += fmt::format("  {:<16} not possible: {}\n", name_of(row), row.refused);
  out +=
      "idle: mean share of a stage's time. passes: forward and backward of a step. activations, all memory,\n"
      "sent in a step to other stages: of the rank with most. *: what the job has.\n";
  return out;
}

std::string schedules_json(const ScheduleTable& table) {
  OrderedJson rows = OrderedJson::array();
  for (const ScheduleRow& row : table.rows) {
    OrderedJson json{{"schedule", parallel::name_of(row.schedule)},
                     {"virtual_stages", row.virtual_stages},
                     {"chosen", row.chosen},
                     {"settings", row.settings}};
    if (!row.refused.empty()) {
      json["refused"] = row.refused;
      rows.push_back(std::move(json));
      continue;
    }
    json["bubble_fraction"] = row.bubble_fraction;
    json["pass_s"] = row.pass_s ? OrderedJson(*row.pass_s) : OrderedJson();
    json["relative_time"] = row.relative_time;
    json["activation_bytes"] = row.activation_bytes;
    json["total_bytes"] = row.total_bytes;
    json["sent_bytes"] = row.sent_bytes;
    json["fits"] = row.fits ? OrderedJson(*row.fits) : OrderedJson();
    json["overlaps"] = row.overlaps;
    rows.push_back(std::move(json));
  }
  return OrderedJson{{"stages", table.stages},
                     {"micro_batches", table.micro_batches},
                     {"mfu", table.cluster.empty() ? OrderedJson(table.mfu) : OrderedJson()},
                     {"cluster", table.cluster.empty() ? OrderedJson() : OrderedJson(table.cluster)},
                     {"with_transfers", table.with_transfers},
                     {"schedules", std::move(rows)}}
      .dump();
}

}  // namespace trainctl
