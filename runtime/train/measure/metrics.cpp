#include "runtime/train/measure/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace trainctl {
namespace {

/// "[1.25,null,...]" in 4 digits.
template <typename Number>
std::string array_of(std::span<const RankTimes> ranks, Number number) {
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

/// What ranks waited, as a mean, for others of their stage that computed longer. Waits for the pipeline are
/// apart.
double stragglers_s(std::span<const RankTimes> ranks, int stages) {
  const size_t of_stage = std::max<size_t>(1, ranks.size() / size_t(std::max(1, stages)));
  double sum = 0;
  int64_t count = 0;
  for (size_t first = 0; first < ranks.size(); first += of_stage) {
    const auto stage = ranks.subspan(first, std::min(of_stage, ranks.size() - first));
    double longest_s = 0;
    for (const RankTimes& t : stage)
      if (t.came()) longest_s = std::max(longest_s, t.compute_s());
    for (const RankTimes& t : stage)
      if (t.came()) {
        sum += std::clamp(longest_s - t.compute_s(), 0.0, std::max(0.0, t.communication_s - t.pipeline_s));
        ++count;
      }
  }
  return sum / double(count);
}

/// Of the ranks whose numbers came.
Phases phases_of(std::span<const RankTimes> ranks, int stages) {
  const auto mean = [&](double RankTimes::*member) {
    double sum = 0;
    int64_t count = 0;
    for (const RankTimes& t : ranks)
      if (t.came()) sum += t.*member, ++count;
    return sum / double(count);
  };
  return {.forward_s = mean(&RankTimes::forward_s),
          .backward_s = mean(&RankTimes::backward_s),
          .communication_s = mean(&RankTimes::communication_s),
          .optimizer_s = mean(&RankTimes::optimizer_s),
          .experts_s = mean(&RankTimes::experts_s),
          .context_s = mean(&RankTimes::context_s),
          .pipeline_s = mean(&RankTimes::pipeline_s),
          .stragglers_s = stragglers_s(ranks, stages),
          .data_s = mean(&RankTimes::data_s),
          .reporting_s = mean(&RankTimes::reporting_s),
          .evaluation_s = mean(&RankTimes::evaluation_s),
          .checkpoint_s = mean(&RankTimes::checkpoint_s)};
}

}  // namespace

StepLine with_speed(StepLine line, const StepWork& work, double step_s) {
  line.step_s = std::max(1e-9, step_s);
  line.tokens_per_s = double(work.tokens) / line.step_s;
  line.flops_per_s = line.tokens_per_s * work.flops_per_token_causal;
  line.flops_per_s_full_attention = line.tokens_per_s * work.flops_per_token_full;
  if (work.peak_flops_per_s > 0) {
    line.mfu = line.flops_per_s / work.peak_flops_per_s;
    line.mfu_full_attention = line.flops_per_s_full_attention / work.peak_flops_per_s;
  }
  return line;
}

StepLine with_ranks(StepLine line, const StepWork& work, std::span<const RankTimes> ranks,
                    std::span<const NodeRanks> nodes) {
  double longest_s = 0;
  bool any = false;
  for (const RankTimes& t : ranks)
    if (t.came()) longest_s = std::max(longest_s, t.step_s), any = true;
  if (!any) return line;
  line = with_speed(std::move(line), work, longest_s);
  line.phases = phases_of(ranks, work.stages);
  line.ranks = rank_spread(ranks, work.stages, nodes);
  line.gpus = gpu_spread(ranks, nodes);
  return line;
}

std::string rank_numbers_json(uint64_t epoch, int64_t step, std::span<const RankTimes> ranks) {
  std::string text = fmt::format(R"({{"v":1,"epoch":{},"step":{},"count":{})", epoch, step, ranks.size());
  const auto add = [&](const char* key, auto number) {
    text += fmt::format(",\"{}\":{}", key, array_of(ranks, number));
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
    if (std::any_of(ranks.begin(), ranks.end(),
                    [&, member = member](const RankTimes& t) { return std::isfinite(t.*member); }))
      add(key, [member](const RankTimes& t) { return t.*member; });
  return text + "}";
}

}  // namespace trainctl
