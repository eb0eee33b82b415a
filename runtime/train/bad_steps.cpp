#include "runtime/train/bad_steps.h"

#include <fmt/format.h>

#include <cmath>

#include "runtime/base/json.h"

namespace trainctl {

StepFate fate_of_step(double loss, double grad_norm, const BadSteps& before, int64_t most_in_a_row) {
  if (std::isfinite(loss) && std::isfinite(grad_norm)) return StepFate::apply;
  return before.in_a_row < most_in_a_row ? StepFate::skip : StepFate::stop;
}

BadSteps after_step(BadSteps before, StepFate fate) {
  if (fate == StepFate::apply) return {before.total, 0, before.overflows};
  return {before.total + 1, before.in_a_row + 1, before.overflows};
}

std::string what_is_bad(double loss, double grad_norm) {
  const bool loss_is_bad = !std::isfinite(loss);
  const double value = loss_is_bad ? loss : grad_norm;
  // A NaN's sign bit means nothing.
  const char* shown = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  return fmt::format("the {} is {}", loss_is_bad ? "loss" : "gradient norm", shown);
}

BadSteps bad_steps_of(const std::string& extra_json) {
  const Json extra = try_parse_json(extra_json);
  if (!extra.is_object() || !extra.contains("bad_steps")) return {};
  const Json& saved = extra["bad_steps"];
  return {.total = saved.value("total", int64_t{0}),
          .in_a_row = saved.value("in_a_row", int64_t{0}),
          .overflows = saved.value("overflows", int64_t{0})};
}

}  // namespace trainctl
