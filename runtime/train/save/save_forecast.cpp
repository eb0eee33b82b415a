#include "runtime/train/save/save_forecast.h"

#include <algorithm>

#include "runtime/train/save/save_calendar.h"

namespace trainctl {
namespace {

constexpr SaveTier kTier = SaveTier::directory;
constexpr int kMeasuredSteps = 10;

/// The calendar of a run before its first step.
SaveCalendar calendar_of(const CheckpointSpec& checkpoint, double mtbf_s, const SaveRule& rule) {
  return {{rule},
          {},
          {.step = 0, .now_s = 0, .mtbf_s = mtbf_s, .mtbf_is_given = checkpoint.mtbf_seconds > 0}};
}

/// A node's share of a checkpoint.
size_t node_bytes(const PlanReport& report, int nodes) {
  const size_t count = size_t(std::max(1, nodes));
  return (report.plan.checkpoint_bytes + count - 1) / count;
}

int64_t first_save(const SaveCalendar& calendar, double step_s, int64_t last_step) {
  int64_t step = 1;
  while (step < last_step && !calendar.due(step, double(step) * step_s).has(kTier)) ++step;
  return step;
}

}  // namespace

std::optional<SaveForecast> forecast_saves(const PlanReport& report, int nodes) {
  const CheckpointSpec& checkpoint = report.job.checkpoint;
  if (!report.time) return std::nullopt;
  SaveForecast saves{.nodes = std::max(1, nodes), .mtbf_is_given = checkpoint.mtbf_seconds > 0};
  saves.node_bytes = node_bytes(report, saves.nodes);
  saves.rank_bytes = report.plan.saved_bytes;
  saves.write_bytes_per_s = kAssumedWriteBytesPerS;
  saves.write_s = double(saves.node_bytes) / saves.write_bytes_per_s;
  // With copies in the memory of the node training waits for the copy alone, and at most so long: it overlaps
  // the next step.
  saves.in_memory = report.plan.worst().copies > 0;
  saves.copy_bytes_per_s = saves.in_memory ? kAssumedCopyBytesPerS : 0;
  saves.cost_s = saves.in_memory ? double(saves.rank_bytes) / saves.copy_bytes_per_s : saves.write_s;
  saves.mtbf_s = saves.mtbf_is_given ? checkpoint.mtbf_seconds : assumed_mtbf_s(saves.nodes);

  const SaveRule rule = directory_rule(checkpoint);
  SaveCalendar calendar = calendar_of(checkpoint, saves.mtbf_s, rule);
  for (int i = 0; i < kMeasuredSteps; ++i) calendar.stepped(report.time->step_s);
  calendar.cost(kTier, saves.cost_s);
  calendar.safe(kTier, saves.write_s);
  const std::vector<SaveInterval> decided = calendar.take_changes(0);
  if (decided.empty()) return std::nullopt;
  const SaveInterval& interval = decided.front();
  saves.automatic = interval.automatic();
  saves.steps = interval.steps;
  saves.interval_s = interval.interval_s;
  saves.loss = interval.loss;
  saves.text = interval.text();
  // An automatic interval begins with an early save, before anything is decided.
  saves.first_step = saves.automatic ? first_save(calendar_of(checkpoint, saves.mtbf_s, rule),
                                                  report.time->step_s, report.job.schedule.total_steps)
                                     : saves.steps;
  return saves;
}

std::optional<CopyForecast> forecast_memory_copies(const PlanReport& report, int nodes) {
  if (!report.time || report.plan.worst().copies == 0) return std::nullopt;
  const CheckpointSpec& checkpoint = report.job.checkpoint;
  CopyForecast copies{.steps = checkpoint.memory_every_steps,
                      .rank_bytes = report.plan.saved_bytes,
                      .node_bytes = node_bytes(report, nodes),
                      .bytes_per_s = kAssumedCopyBytesPerS};
  copies.seconds = double(copies.rank_bytes) / copies.bytes_per_s;
  if (checkpoint.memory_when == EverySteps::automatic) {
    // Training waits for what does not fit into a step.
    const double mtbf_s = checkpoint.mtbf_seconds > 0 ? checkpoint.mtbf_seconds : assumed_mtbf_s(nodes);
    SaveCalendar calendar = calendar_of(checkpoint, mtbf_s, memory_rule());
    for (int i = 0; i < kMeasuredSteps; ++i) calendar.stepped(report.time->step_s);
    calendar.cost(SaveTier::memory, std::max(0.0, copies.seconds - report.time->step_s));
    calendar.safe(SaveTier::memory, 0);
    for (const SaveInterval& interval : calendar.take_changes(0)) copies.steps = interval.steps;
  }
  copies.interval_s = double(copies.steps) * report.time->step_s;
  return copies;
}

std::optional<CopyForecast> forecast_second_copies(const PlanReport& report, int nodes) {
  const CheckpointSpec& checkpoint = report.job.checkpoint;
  if (!report.time || nodes < 2 || !has_second_copies(checkpoint)) return std::nullopt;
  CopyForecast copies{.rank_bytes = report.plan.saved_bytes,
                      .node_bytes = node_bytes(report, nodes),
                      .bytes_per_s = kAssumedSendBytesPerS};
  copies.seconds = double(copies.node_bytes) / copies.bytes_per_s;
  const double mtbf_s = checkpoint.mtbf_seconds > 0 ? checkpoint.mtbf_seconds : assumed_mtbf_s(nodes);
  SaveCalendar calendar = calendar_of(checkpoint, mtbf_s, partner_rule(checkpoint));
  for (int i = 0; i < kMeasuredSteps; ++i) calendar.stepped(report.time->step_s);
  // Training waits for the copy in the node's memory, which is made anyway. By how much it is slower while a
  // copy is sent, the run measures.
  calendar.cost(SaveTier::partner, 0);
  calendar.safe(SaveTier::partner, copies.seconds);
  const std::vector<SaveInterval> decided = calendar.take_changes(0);
  if (decided.empty()) return std::nullopt;
  copies.steps = decided.front().steps;
  copies.interval_s = decided.front().interval_s;
  return copies;
}

}  // namespace trainctl
