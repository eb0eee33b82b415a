#include "runtime/train/measure/step_line.h"

namespace trainctl {

std::string step_line_text(const StepLine& line) {
  return dump_json(record_json<nlohmann::ordered_json>(line));
}

StepLine step_view(std::string_view text) try {
  return record_of_text<StepLine>(text);
} catch (const BadRecord&) {
  return {};
}

}  // namespace trainctl
