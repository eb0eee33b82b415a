// Measured steps of mixtures of experts. Megatron-Bridge: docs/performance-summary.md and its archive as of
// 2026-08-22; what a row's recipe turns on is from scripts/performance/configs of that repository in April
// and August 2026. Experts are forced to take equally many rows, and no token is dropped.
#include <fmt/format.h>

#include <algorithm>

#include "scripts/bench/published_rows.h"

namespace trainctl::bench {
namespace {

using Host = ExpertStack::Host;

struct ExpertRow {
  const char *release, *device, *model;
  bool fp8;
  int gpus, global, micro, tp, pp, vp, ep;
  double tokens_per_s;
  ExpertStack stack = {};
  bool mtp = false;  ///< with one module of multi-token prediction
  const char* table = "Megatron-Bridge";
  const char* schedule = "";  ///< "": as vp says
};

constexpr ExpertStack kPairs{}, kPairsHidden{.hides = true}, kOnce{.sends_once = true},
    kGraphs{.host = Host::graphs, .sends_once = true},
    kLatentsGraphs{.host = Host::graphs, .sends_once = true, .recomputes_latents = true},
    kLatentsHidden{.host = Host::graphs, .sends_once = true, .hides = true, .recomputes_latents = true},
    kLatentsOnce{.sends_once = true, .hides = true, .recomputes_latents = true},
    kUnfused{.host = Host::unfused, .recomputes_latents = true},
    kWhole{.host = Host::whole, .sends_once = true},
    kWholeHidden{.host = Host::whole, .sends_once = true, .hides = true};

/// Of each device, model, precision and number of GPUs the best release up to 26.04.01, and that of 26.06,
/// which fuses and replays whole steps. Qwen3 235B on 64 B200: 16.9 s a step, pull 1760. That GB200 hides
/// exchanges of gpt-oss in April and of Qwen3 235B in June is assumed from later recipes.
constexpr ExpertRow kRows[] = {
    // GB200
    {"25.11", "gb200", "deepseek-v3", false, 256, 4096, 1, 1, 4, 4, 64, 3139, kLatentsGraphs},
    {"26.04.01", "gb200", "deepseek-v3", true, 256, 4096, 1, 1, 4, 4, 64, 4256, kGraphs, true},
    {"26.04.01", "gb200", "gpt-oss-120b", false, 64, 1280, 4, 1, 1, 1, 64, 16640, kPairsHidden},
    {"26.02.01", "gb200", "qwen3-30b-a3b", true, 8, 512, 4, 1, 1, 1, 8, 26373, kGraphs},
    {"25.11", "gb200", "qwen3-235b-a22b", false, 256, 8192, 1, 1, 8, 3, 32, 4916, kGraphs},
    {"26.04.01", "gb200", "qwen3-235b-a22b", true, 256, 8192, 1, 1, 8, 3, 32, 5680, kGraphs},
    {"26.06", "gb200", "deepseek-v3", true, 256, 4096, 1, 1, 4, 4, 64, 4969, kWholeHidden, true},
    {"26.06", "gb200", "gpt-oss-120b", true, 64, 1280, 4, 1, 1, 1, 64, 28947, kWholeHidden},
    {"26.06.01", "gb200", "qwen3-30b-a3b", true, 8, 512, 4, 1, 1, 1, 8, 40960, kWhole},
    {"26.06", "gb200", "qwen3-235b-a22b", true, 256, 8192, 1, 1, 8, 3, 32, 7376, kWholeHidden},
    // B200
    {"26.04.01", "b200", "deepseek-v3", true, 256, 4096, 1, 1, 8, 2, 32, 3328, kLatentsHidden, true},
    {"26.02.01", "b200", "gpt-oss-120b", false, 64, 1280, 4, 1, 1, 1, 8, 13722, kPairs},
    {"26.04.01", "b200", "qwen3-30b-a3b", true, 8, 512, 4, 1, 1, 1, 8, 27136, kGraphs},
    {"2025-12", "b200", "qwen3-235b-a22b", true, 64, 1024, 1, 1, 8, 1, 8, 3878, kPairs},
    {"26.02", "b200", "qwen3-235b-a22b", true, 256, 8192, 1, 1, 8, 1, 8, 3805, kPairs},
    // H100
    {"25.09", "h100", "deepseek-v3", true, 1024, 8192, 1, 2, 8, 4, 64, 1297, kLatentsOnce, true},
    {"26.02", "h100", "gpt-oss-120b", false, 64, 1280, 1, 1, 4, 1, 8, 5993, kPairs},
    {"26.02.01", "h100", "qwen3-30b-a3b", true, 16, 1024, 1, 1, 2, 12, 8, 9058, kOnce},
    {"26.04.01", "h100", "qwen3-30b-a3b", true, 16, 1024, 1, 1, 1, 1, 16, 8960, kOnce},
    {"26.04.01", "h100", "qwen3-235b-a22b", true, 256, 8192, 1, 2, 8, 4, 32, 1712, kPairsHidden},
};

/// Of Megatron-Core's own guides: github.com/NVIDIA/Megatron-LM,
/// docs/discussions/deepseek-v3-gb200-optimization (494 and 970 TFLOP/s of 249.7 GFLOP a token),
/// github.com/yanring/Megatron-MoE-ModelZoo (19.7 s a step); github.com/NVIDIA-NeMo/Megatron-Bridge,
/// docs/training/communication-overlap.md and pull 5225 (41.25 s a step; 244.0 TFLOP/s of 23.02 GFLOP a
/// token).
constexpr ExpertRow kGuides[] = {
    {"2025-10", "gb200", "deepseek-v3", true, 256, 2048, 1, 1, 8, 4, 32, 1980, kUnfused, false,
     "Megatron guides"},
    {"2025-10", "gb200", "deepseek-v3", true, 256, 2048, 1, 1, 8, 4, 32, 3885, kGraphs, false,
     "Megatron guides"},
    {"2025", "h100", "qwen3-235b-a22b", false, 256, 2048, 1, 2, 8, 4, 32, 1663, kOnce, false,
     "Megatron guides"},
    {"2026-05", "h100", "qwen3-30b-a3b", false, 16, 1024, 1, 1, 1, 1, 16, 6355, kPairs, false,
     "Megatron guides"},
    {"2026-07", "h100", "qwen3-30b-a3b", false, 16, 1024, 1, 1, 1, 1, 16, 10600, kOnce, false,
     "Megatron guides"},
};

/// The run itself: 180,000 hours of H800 for 10^12 tokens, restarts included; batches of 15,360 sequences
/// (arXiv:2412.19437, sections 1, 3.2 and 4.2). Its DualPipe has about
/// the bubbles of zb-h1.
constexpr ExpertRow kRuns[] = {{"2024-12", "h800", "deepseek-v3", true, 2048, 15360, 1, 1, 16, 1, 64, 1543,
                                kLatentsOnce, true, "DeepSeek-V3", "zb-h1"}};

Row row_of(const ExpertRow& r) {
  const bool hopper = std::string_view(r.device).starts_with("h");
  Row row{
      .table = r.table,
      .label = fmt::format("{} {} x{} {}", r.model, r.fp8 ? "FP8" : "BF16", r.gpus, r.release),
      .group = fmt::format("{}MoE {}", r.fp8 ? "FP8 " : "", hopper ? "H100" : "Blackwell"),
      .device = r.device,
      .model = fmt::format(R"({{"preset": "{}"{}}})", r.model, r.mtp ? R"(, "mtp": {"num_layers": 1})" : ""),
      .seq_len = 4096,
      .settings = mesh_settings(r.tp, r.pp, double(r.gpus) / r.tp / r.pp, r.micro, r.global),
      .tokens_per_s = r.tokens_per_s,
      .hides_tensor = true,
      .experts = r.stack};
  // Sums with a selection bias are in f32.
  if (std::string_view(r.model) != "deepseek-v3") row.settings.emplace_back(kSumsInBf16);
  if (*r.schedule) row.settings.push_back(fmt::format("parallelism.pipeline_schedule={}", r.schedule));
  if (r.vp > 1) {
    row.settings.emplace_back("parallelism.pipeline_schedule=interleaved");
    row.settings.push_back(fmt::format("parallelism.virtual_stages={}", r.vp));
  }
  row.settings.push_back(fmt::format("parallelism.expert={}", r.ep));
  if (r.tp > 1) row.settings.emplace_back("parallelism.expert_tensor=1");
  if (r.fp8) {
    row.settings.emplace_back("precision.fp8.recipe=tensor");
    row.numbers = hopper ? Numbers::fp8 : Numbers::mx8;  // of Blackwell all of these rows are FP8-MX
  }
  return row;
}

}  // namespace

bool has_best_of(const Row& row, int gpus) {
  return std::ranges::any_of(kRows, [&](const ExpertRow& r) {
    return row.device == r.device && row.model.find(fmt::format("\"{}\"", r.model)) != std::string::npos &&
           (row.numbers != Numbers::bf16) == r.fp8 && gpus == r.gpus && row.tokens_per_s <= r.tokens_per_s;
  });
}

void add_expert_rows(std::vector<Row>& rows) {
  for (const ExpertRow& row : kRows) rows.push_back(row_of(row));
  for (const ExpertRow& row : kGuides) rows.push_back(row_of(row));
  for (const ExpertRow& row : kRuns) rows.push_back(row_of(row));
}

}  // namespace trainctl::bench
