#include "runtime/base/record.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl {

std::string step_line_text(const StepLine& line) {
  return dump_json(record_json<OrderedJson>(line));
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
  return line;
}

}  // namespace trainctl
