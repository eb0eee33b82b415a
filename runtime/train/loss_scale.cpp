#include "runtime/train/loss_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/json.h"

namespace trainctl {
namespace {

/// Whether it is the backward pass alone that left the range of f16.
bool overflows_backward(const StepLine& line, const JobSpec& job) {
  const auto is_finite = [](double loss) { return std::isfinite(loss); };
  return job.compute == DType::f16 && is_finite(line.loss) &&
         std::all_of(line.mtp_losses.begin(), line.mtp_losses.end(), is_finite) && !is_finite(line.grad_norm);
}

}  // namespace

LossScale first_loss_scale(const JobSpec& job) {
  return {.value = job.compute == DType::f16 ? double(job.loss_scale.initial) : 1.0};
}

LossScale loss_scale_of(const std::string& extra_json, const JobSpec& job) {
  LossScale scale = first_loss_scale(job);
  const Json extra = try_parse_json(extra_json);
  if (job.compute != DType::f16 || !extra.is_object() || !extra.contains("loss_scale")) return scale;
  const Json& saved = extra["loss_scale"];
  // A floor may have been raised since.
  scale.value = std::max(saved.value("value", scale.value), double(job.loss_scale.minimum));
  scale.good_steps = saved.value("good_steps", int64_t{0});
  scale.overflows_in_a_row = saved.value("overflows_in_a_row", int64_t{0});
  return scale;
}

bool is_overflow(const StepLine& line, const LossScale& scale, const JobSpec& job) {
  return overflows_backward(line, job) && scale.value > double(job.loss_scale.minimum);
}

LossScale after_overflow(LossScale scale, const LossScaleSpec& spec) {
  return {.value = std::max(scale.value / 2, double(spec.minimum)),
          .good_steps = 0,
          .overflows_in_a_row = scale.overflows_in_a_row + 1};
}

LossScale after_step(LossScale scale, StepFate fate, const LossScaleSpec& spec) {
  if (fate != StepFate::apply) {
    scale.good_steps = 0;
    return scale;
  }
  scale.overflows_in_a_row = 0;
  if (++scale.good_steps < spec.growth_interval || spec.growth_interval == 0) return scale;
  return {.value = std::min(scale.value * 2, double(LossScaleSpec::kLargest))};
}

bool is_at_floor(const StepLine& line, const LossScale& scale, const JobSpec& job) {
  return overflows_backward(line, job) && scale.value <= double(job.loss_scale.minimum);
}

std::string floor_text(const LossScaleSpec& spec, const std::string& param) {
  return fmt::format(
      " with the loss scale at its floor (precision.loss_scale.minimum = {}): the gradient of {} is beyond "
      "the range of f16; lower schedule.lr{}, or branch with precision.compute = bf16",
      spec.minimum, param, spec.minimum > 1 ? " or the floor" : "");
}

}  // namespace trainctl
