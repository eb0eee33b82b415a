#include "runtime/train/save/save_forecast.h"

#include <algorithm>

#include "runtime/train/save/save_calendar.h"

namespace trainctl {
namespace {

constexpr SaveTier kTier = SaveTier::directory;

/// The calendar of a run before its first step.
SaveCalendar calendar_of(const CheckpointSpec& checkpoint, double mtbf_s) {
  return {{directory_rule(checkpoint)},
          {},
          {.step = 0, .now_s = 0, .mtbf_s = mtbf_s, .mtbf_is_given = checkpoint.mtbf_seconds > 0}};
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
  saves.node_bytes = (report.plan.checkpoint_bytes + size_t(saves.nodes) - 1) / size_t(saves.nodes);
  saves.rank_bytes = report.plan.saved_bytes;
  saves.write_bytes_per_s = kAssumedWriteBytesPerS;
  saves.write_s = double(saves.node_bytes) / saves.write_bytes_per_s;
  // With copies in the memory of the node training waits for the copy alone, and at most so long: it overlaps
  // the next step.
  saves.in_memory = report.plan.worst().copies > 0;
  saves.copy_bytes_per_s = saves.in_memory ? kAssumedCopyBytesPerS : 0;
  saves.cost_s = saves.in_memory ? double(saves.rank_bytes) / saves.copy_bytes_per_s : saves.write_s;
  saves.mtbf_s = saves.mtbf_is_given ? checkpoint.mtbf_seconds : assumed_mtbf_s(saves.nodes);

  SaveCalendar calendar = calendar_of(checkpoint, saves.mtbf_s);
  constexpr int kMeasuredSteps = 10;
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
  saves.first_step = saves.automatic ? first_save(calendar_of(checkpoint, saves.mtbf_s), report.time->step_s,
                                                  report.job.schedule.total_steps)
                                     : saves.steps;
  return saves;
}

}  // namespace trainctl
