#include "runtime/run/record/console.h"

#include <limits>

#include "runtime/base/json.h"

namespace trainctl {
namespace {

using nlohmann::json;

constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

double number_of(const json& j, const char* key) {
  return j.contains(key) && j[key].is_number() ? j[key].get<double>() : kAbsent;
}

}  // namespace

StepView step_view(const std::string& text) {
  const json j = try_parse_json(text);
  StepView v{.step = 0,
             .loss = kAbsent,
             .grad_norm = kAbsent,
             .lr = kAbsent,
             .tokens = kAbsent,
             .step_s = kAbsent,
             .tokens_per_s = kAbsent,
             .mfu = kAbsent,
             .data_wait = kAbsent,
             .val_loss = kAbsent};
  if (!j.is_object()) return v;
  v.step = j.value("step", int64_t(0));
  v.loss = number_of(j, "loss");
  v.grad_norm = number_of(j, "grad_norm");
  v.lr = number_of(j, "lr");
  v.tokens = number_of(j, "tokens");
  v.step_s = number_of(j, "step_s");
  v.tokens_per_s = number_of(j, "tokens_per_s");
  v.mfu = number_of(j, "mfu");
  v.val_loss = number_of(j, "val_loss");
  v.skipped = j.value("skipped", false);
  v.skipped_steps = j.value("skipped_steps", int64_t{0});
  if (j.contains("phases") && j["phases"].is_object()) {
    for (const char* key : {"data", "data_s", "data_wait", "data_wait_s"})
      if (std::isnan(v.data_wait)) v.data_wait = number_of(j["phases"], key) / v.step_s;
  }
  if (j.contains("ranks") && j["ranks"].is_object() && j["ranks"].contains("compute_s") &&
      j["ranks"]["compute_s"].is_object()) {
    const json& compute = j["ranks"]["compute_s"];
    v.rank_count = j["ranks"].value("count", 0);
    v.compute_min_s = number_of(compute, "min");
    v.compute_median_s = number_of(compute, "median");
    v.compute_max_s = number_of(compute, "max");
    v.compute_max_rank = compute.value("max_rank", -1);
    v.compute_max_node = compute.value("max_node", "");
  }
  return v;
}

}  // namespace trainctl
