// Published numbers that contradict physics, or other numbers of their own row.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "runtime/plan/claim.h"
#include "runtime/predict/cluster.h"
#include "scripts/bench/published_rows.h"

namespace trainctl::bench {
namespace {

/// What was said of whole runs, in FLOPs of 6 for each parameter that a token meets.
struct SaidOfRun {
  const char* what;
  double parameters, tokens, device_days;
  const char* cluster;
};
constexpr SaidOfRun kRuns[] = {
    {"405B, 10T tokens in 50 days on 4,096 H100", 405.85e9, 10e12, 50 * 4096.0, "h100"},
    {"GPT-3 175B, 300B tokens in 34 days on 1,024 A100 (arXiv:2104.04473)", 175e9, 300e9, 34 * 1024.0,
     "a100-80"},
    {"1T, 450B tokens in 84 days on 3,072 A100 (arXiv:2104.04473)", 1008e9, 450e9, 84 * 3072.0, "a100-80"},
    {"DeepSeek-V3, 14.8T tokens in 2,664,000 hours of H800 (arXiv:2412.19437)", 37e9, 14.8e12, 2664000 / 24.0,
     "h800"}};

/// Prints a line for each of them.
void check_row(const std::string& table, const std::string& label, const Json& r, const char* cluster,
               bool fp8) {
  const auto wrong = [&](const std::string& what) { fmt::print("| {} | {} | {} |\n", table, label, what); };
  const double tflops = number(r, "model_tflops_per_gpu"), speed = number(r, "tokens_per_s_per_gpu");
  if (tflops > 0 && *cluster) {
    const predict::DeviceSpeed device = predict::known_cluster(cluster).device;
    const double peak = device.peak_bf16_flops_per_s * (fp8 ? 2 : 1);
    const double share = fp8 ? device.fp8_flops_per_s / peak : device.product_share;
    const Claim claim{tflops * 1e12, 1, 1, peak, share};
    if (judge(claim) != ClaimVerdict::possible) wrong("refused: " + claim_text(claim));
  }
  if (const double days = number(r, "days_10T_1K_gpus"); days > 0 && speed > 0)
    if (const double own = 10e12 / (speed * 1024) / 86400; std::abs(own - days) > 0.6 + 0.01 * days)
      wrong(fmt::format("10T tokens on 1,024 GPUs take {:.0f} days at its own speed, not {:.0f}", own, days));
  const double batch = number(r, "gbs"), parts = number(r, "tp") * number(r, "pp") * number(r, "cp");
  if (const double ga = number(r, "ga"); batch > 0 && ga > 0 && parts > 0)
    if (const double own = ga * number(r, "mbs") * number(r, "gpus") / parts; own != batch)
      wrong(fmt::format("{} x {} sequences of {} replicas are a batch of {}, not {}", ga, number(r, "mbs"),
                        number(r, "gpus") / parts, own, batch));
  if (const double batch_of_mesh = number(r, "global_batch"), dp = number(r, "fsdp"),
      local = number(r, "local_batch");
      batch_of_mesh > 0 && dp > 0 && local > 0 && dp * local != batch_of_mesh)
    wrong(fmt::format("{} sequences of {} replicas are a batch of {}, not {}", local, dp, local * dp,
                      batch_of_mesh));
}

/// Rows of one table that give two speeds to one setting.
void check_twice(const std::string& table, const Json& rows) {
  std::map<std::string, double> speeds;
  for (const Json& r : rows) {
    const std::string setting =
        fmt::format("{} x{} {}", text(r, "model"), number(r, "gpus"), text(r, "technique"));
    if (text(r, "hardware") != "" || number(r, "seq_len") != 8192) continue;
    const double speed = number(r, "tps_per_gpu");
    const auto [known, fresh] = speeds.try_emplace(setting, speed);
    if (!fresh && std::abs(speed / known->second - 1) > 0.05)
      fmt::print("| {} | {} | {:.0f} tokens/s in one source, {:.0f} in another |\n", table, setting,
                 known->second, speed);
  }
}

}  // namespace

void print_claims(const std::string& folder) {
  fmt::print("| claim | verdict |\n|---|---|\n");
  for (const SaidOfRun& run : kRuns) {
    const predict::DeviceSpeed device = predict::known_cluster(run.cluster).device;
    const Claim claim{6 * run.parameters * run.tokens, run.device_days * 86400, 1,
                      device.peak_bf16_flops_per_s, device.product_share};
    fmt::print("| {} | {}{} |\n", run.what,
               judge(claim) == ClaimVerdict::possible ? "" : "refused: ", claim_text(claim));
  }
  fmt::print("\n| table | row | contradiction |\n|---|---|---|\n");
  const std::map<std::string, const char*> clusters = {
      {"H100", "h100"}, {"B200", "b200"}, {"GB200", "gb200"}};
  if (const Json json = load(folder + "/14_megatron_bridge_2511.json"); !json.is_null())
    for (const Json& r : json.at("rows")) {
      const auto cluster = clusters.find(text(r, "system"));
      check_row("Megatron-Bridge",
                fmt::format("{} {} {}", text(r, "system"), text(r, "model"), text(r, "precision")), r,
                cluster == clusters.end() ? "" : cluster->second, text(r, "precision") != "BF16");
    }
  if (const Json json = load(folder + "/13_nemo_2407_h100_fp8.json"); !json.is_null())
    for (const Json& r : json.at("rows"))
      check_row("NeMo 24.07", fmt::format("{} x{}", text(r, "model"), number(r, "gpus")), r, "h100", true);
  if (const Json json = load(folder + "/11_torchtitan.json"); !json.is_null()) {
    for (const Json& r : json.at("rows"))
      check_row("torchtitan", fmt::format("{} {}", text(r, "model"), text(r, "technique")), r, "", false);
    check_twice("torchtitan", json.at("rows"));
  }
  fmt::print(
      "| llm.c | GPT-2 124M on one A100 40GB class | no device: the program's author has 115,000 tokens/s "
      "with PyTorch "
      "and 145,000 with it on a PCIe card of 250 W (github.com/karpathy/llm.c, pull 323), and the row "
      "124,285 |\n\n");
}

}  // namespace trainctl::bench
