#include "runtime/base/record.h"
#include "runtime/train/measure/step_line.h"

#include <fmt/format.h>

namespace trainctl {

std::string step_line_text(const StepLine& line) {
  return dump_json(record_json<OrderedJson>(line));
}

std::string scores_text(const std::vector<TaskScore>& tasks) {
  const auto percent = [](double share) {
    return std::isnan(share) ? std::string("not a number") : fmt::format("{:.1f} %", 100 * share);
  };
  std::string text;
  for (const TaskScore& task : tasks)
    text += fmt::format("{}{} {} (by sums {})", text.empty() ? "" : " · ", task.name, percent(task.accuracy),
                        percent(task.accuracy_of_sums));
  return text;
}

StepLine step_view(std::string_view text) try {
  return record_of_text<StepLine>(text);
} catch (const BadRecord&) {
  return {};
}

StepLine with_times(StepLine line, const StepLine& timed) {
  if (std::isnan(line.step_s)) {  // of an older version
    line.step_s = timed.step_s;
    line.tokens_per_s = timed.tokens_per_s;
    line.mfu = timed.mfu;
  }
  if (line.ranks) return line;
  line.ranks = timed.ranks;
  line.gpus = timed.gpus;
  line.phases = timed.phases;
  return line;
}

}  // namespace trainctl
