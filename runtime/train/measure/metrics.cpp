#include "runtime/train/measure/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "runtime/base/json.h"

namespace trainctl {
namespace {

void put(nlohmann::ordered_json& j, const char* key, double value) {
  if (std::isfinite(value)) {
    j[key] = value;
    return;
  }
  j[key] = nullptr;
  j[std::string(key) + "_kind"] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

/// "[1.25,null,...]" in 4 digits.
template <typename Number>
std::string array_of(const std::vector<RankTimes>& ranks, Number number) {
  fmt::memory_buffer text;
  for (const RankTimes& t : ranks) {
    const double value = number(t);
    if (std::isfinite(value))
      fmt::format_to(std::back_inserter(text), "{}{:.4g}", text.size() ? "," : "", value);
    else
      fmt::format_to(std::back_inserter(text), "{}null", text.size() ? "," : "");
  }
  return "[" + fmt::to_string(text) + "]";
}

}  // namespace

double StepNumbers::step_s() const {
  double longest = 0;
  for (const RankTimes& t : ranks) longest = std::max(longest, t.step_s);
  return longest;
}

std::string to_json(const StepNumbers& n) {
  nlohmann::ordered_json j{{"v", 1}, {"step", n.step}};
  put(j, "loss", n.loss);
  put(j, "grad_norm", n.grad_norm);
  j["lr"] = n.lr;
  j["tokens"] = n.tokens;
  if (n.val_loss) put(j, "val_loss", *n.val_loss);
  if (n.skipped) j["skipped"] = true;
  if (n.skipped_total > 0) j["skipped_steps"] = n.skipped_total;
  if (n.ranks.empty()) return dump_json(j);
  const double step_s = std::max(n.step_s(), 1e-9), rate = double(n.tokens_per_step) / step_s;
  j["step_s"] = step_s;
  j["tokens_per_s"] = rate;
  j["flops_per_s"] = rate * n.flops_per_token_causal;
  j["flops_per_s_full_attention"] = rate * n.flops_per_token_full;
  if (n.peak_flops_per_s > 0) {
    j["mfu"] = rate * n.flops_per_token_causal / n.peak_flops_per_s;
    j["mfu_full_attention"] = rate * n.flops_per_token_full / n.peak_flops_per_s;
  }
  RankTimes sum;
  for (const RankTimes& t : n.ranks) {
    sum.forward_s += t.forward_s, sum.backward_s += t.backward_s, sum.communication_s += t.communication_s;
    sum.optimizer_s += t.optimizer_s, sum.data_s += t.data_s, sum.checkpoint_s += t.checkpoint_s, sum.evaluation_s += t.evaluation_s;
    sum.reporting_s += t.reporting_s;
  }
  const double count = double(n.ranks.size());
  j["phases"] = {{"forward_s", sum.forward_s / count},
                 {"backward_s", sum.backward_s / count},
                 {"communication_s", sum.communication_s / count},
                 {"optimizer_s", sum.optimizer_s / count},
                 {"data_s", sum.data_s / count},
                 {"reporting_s", sum.reporting_s / count},
                 {"evaluation_s", sum.evaluation_s / count},
                 {"checkpoint_s", sum.checkpoint_s / count}};
  j["ranks"] = spread_json(n.ranks, n.stages, n.nodes);
  if (auto gpus = gpu_spread_json(n.ranks, n.nodes); !gpus.is_null()) j["gpus"] = std::move(gpus);
  return dump_json(j);
}

std::string rank_numbers_json(const StepNumbers& n, uint64_t epoch) {
  std::string text = fmt::format(R"({{"v":1,"epoch":{},"step":{},"count":{})", epoch, n.step, n.ranks.size());
  const auto add = [&](const char* key, auto number) {
    text += fmt::format(",\"{}\":{}", key, array_of(n.ranks, number));
  };
  add("compute_s", [](const RankTimes& t) { return t.compute_s(); });
  add("wait_s", [](const RankTimes& t) { return t.communication_s; });
  add("data_s", [](const RankTimes& t) { return t.data_s; });
  add("forward_s", [](const RankTimes& t) { return t.forward_s; });
  add("backward_s", [](const RankTimes& t) { return t.backward_s; });
  add("optimizer_s", [](const RankTimes& t) { return t.optimizer_s; });
  add("checkpoint_s", [](const RankTimes& t) { return t.checkpoint_s; });
  add("peak_memory_bytes", [](const RankTimes& t) { return t.peak_bytes; });
  for (const auto& [key, member] : {std::pair{"temperature_c", &RankTimes::temperature_c},
                                    {"power_w", &RankTimes::power_w},
                                    {"sm_clock_mhz", &RankTimes::sm_clock_mhz}})
    if (std::any_of(n.ranks.begin(), n.ranks.end(),
                    [&](const RankTimes& t) { return std::isfinite(t.*member); }))
      add(key, [member](const RankTimes& t) { return t.*member; });
  return text + "}";
}

}  // namespace trainctl
