#include "runtime/train/metrics.h"

#include <algorithm>
#include <cmath>

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

/// One number of every rank's GPU, null where it is not told; nothing where no rank has it.
void put_gpu(nlohmann::ordered_json& j, const char* key, const std::vector<RankTimes>& ranks, double RankTimes::*number) {
  auto all = nlohmann::ordered_json::array();
  bool any = false;
  for (const RankTimes& t : ranks) {
    const double value = t.*number;
    any |= std::isfinite(value);
    all.push_back(std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json());
  }
  if (any) j["gpus"][key] = all;
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
  nlohmann::ordered_json compute = nlohmann::ordered_json::array(), wait = compute, peak = compute;
  for (const RankTimes& t : n.ranks) {
    sum.forward_s += t.forward_s, sum.backward_s += t.backward_s, sum.communication_s += t.communication_s;
    sum.optimizer_s += t.optimizer_s, sum.data_s += t.data_s, sum.checkpoint_s += t.checkpoint_s, sum.evaluation_s += t.evaluation_s;
    sum.reporting_s += t.reporting_s;
    compute.push_back(t.compute_s());
    wait.push_back(t.communication_s);
    peak.push_back(uint64_t(t.peak_bytes));
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
  j["ranks"] = {{"compute_s", compute}, {"wait_s", wait}, {"peak_memory_bytes", peak}};
  put_gpu(j, "temperature_c", n.ranks, &RankTimes::temperature_c);
  put_gpu(j, "power_w", n.ranks, &RankTimes::power_w);
  put_gpu(j, "sm_clock_mhz", n.ranks, &RankTimes::sm_clock_mhz);
  return dump_json(j);
}

}  // namespace trainctl
