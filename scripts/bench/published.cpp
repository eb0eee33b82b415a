// Predicts published measurements and writes a table of the errors: bench_published FOLDER [CLUSTERS]
// [--rows] [--leave-one-out]. FOLDER has the published tables as JSON, a file each, with "rows". Nothing is
// fitted to these rows: the clusters (scripts/clusters, or those of the folder CLUSTERS) are made from data
// sheets and from measured kernels and collectives.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>

#include "kernels/ops.h"
#include "runtime/base/error.h"
#include "runtime/plan/fit.h"
#include "runtime/plan/report.h"
#include "runtime/predict/op_time.h"
#include "runtime/spec/parse.h"
#include "scripts/bench/published_experts.h"
#include "scripts/bench/published_rows.h"

using namespace trainctl;
using namespace trainctl::bench;

namespace {

/// FlashAttention-2 on an H100: arXiv:2407.08608, figures 5 to 7 (causal: 335 TFLOP/s forward, 328 both
/// ways with 128 channels, 284 both ways with 64); on an A100 it is what the cluster file has. Kernels in
/// Triton before it: 1 / 1.8 of that, the middle of the 1.3 to 2.5 that its authors give (arXiv:2307.08691,
/// recalled). Elementwise ops that are not fused read and write each intermediate result: about twice the
/// bytes of ours. A layer of GPT moves 48 bytes a channel and token here, and 18 for biases; in PyTorch
/// norms, GELU and sums 84; in Megatron-LM, which fuses biases with GELU and dropout, about 120 with
/// dropout's masks. A layer of Llama 8B moves 98 here; in PyTorch about 400: each RMSNorm 106 in f32 ops
/// that are not fused, rotary positions 50 as complex numbers of f32, SwiGLU 98, sums of residuals and of
/// the gradients of products that share an input 42 (counted from the ops of torchtitan's model, recalled).
predict::ClusterModel with_attention(predict::ClusterModel cluster, Stack stack) {
  if (stack == Stack::own) return cluster;
  if (stack == Stack::unfused || stack == Stack::unfused_again) {
    cluster.device.passes = 2;
    // For each pair of a query and a key 13 bytes forward (scores, softmax, dropout) and 19 backward, and
    // products over the whole square at 200 TFLOP/s; FLOPs count half of it.
    const double bytes_per_s = cluster.device.memory_bytes_per_s * cluster.device.memory_share;
    cluster.device.attention.clear();
    cluster.device.attention_half_length = 0;
    for (const int channels : {64, 96, 128, 160}) {
      const double forward_s = 13 / bytes_per_s + 4 * channels / 200e12;
      const double backward_s = 19 / bytes_per_s + 8 * channels / 200e12;
      cluster.device.attention.push_back(
          {channels, 2 * channels / forward_s,
           4 * channels / (backward_s + (stack == Stack::unfused_again ? forward_s : 0))});
    }
    return cluster;
  }
  const bool hopper = cluster.name.starts_with("h") && cluster.name != "h20";
  for (predict::AttentionRate& rate : cluster.device.attention) {
    if (hopper && rate.head_dim == 64) rate = {64, 290e12, 225e12};
    if (hopper && rate.head_dim == 128) rate = {128, 335e12, 260e12};
    if (stack == Stack::eager_flash1) rate.forward_flops_per_s /= 1.8, rate.backward_flops_per_s /= 1.8;
  }
  if (stack != Stack::flash2) {
    cluster.device.passes = stack == Stack::eager_flash2 ? 4 : 2;
    cluster.device.launch_s = 10e-6;
  }
  return cluster;
}

/// Of a vocabulary's logits ours moves 6 bytes each. PyTorch's cross_entropy under autocast moves 38: it
/// casts to f32, takes the logarithm of the softmax, makes its gradient from one of zeros, and casts that
/// back. Megatron-LM's moves 52: a cast, largest, difference, exponential, sum, quotient, product, a cast
/// (both counted from their code, recalled). Bytes of ops are multiplied by DeviceSpeed::passes.
void move_logits(predict::DeviceSpeed& device, double bytes) {
  const double rate = device.memory_bytes_per_s * device.memory_share * 6 * device.passes / bytes;
  for (const char* op : {kernels::CrossEntropyStats::kName, kernels::CrossEntropyBackward::kName})
    device.ops.push_back({op, rate, rate, 2 * device.op_s});
}

/// Of the speed of today's products, as the device model has it for the same shapes, on an H100. cuBLAS
/// 12.0.2: 2048, 4096 and 8192 x 8192 x 8192 at 743, 550 and 543 TFLOP/s; of September 2023: 2048 x 2048 x
/// 2048, 2048 x 4096 x 4096 and 2048 x 8192 x 8192 at 515, 614 and 722. cuBLAS 11.11.3: the first three at
/// 720, 639 and 772. Means of the times, each at least the one of the device model, as none of them ran for
/// minutes; without that 0.89 and 1.00 (github.com/pytorch/pytorch issue 100850,
/// github.com/triton-lang/triton issue 2339).
double share_of_products(Products products) {
  return products == Products::cuda12 ? 0.88 : products == Products::cuda11 ? 0.965 : 1;
}

/// Speed of products of which each 32 numbers have a scale, as a share of those with one for an operand.
/// Three pairs of release 25.09 of Megatron-Bridge, which is not judged, took 1.048 (8B, GB200), 1.021 (8B,
/// B200) and 1.068 (405B, B200) of the time with it, where products are about 0.57 of a step.
constexpr double kBlockScaled = 0.92;

predict::ClusterModel with_software(predict::ClusterModel cluster, const Row& row) {
  cluster = with_attention(std::move(cluster), row.stack);
  predict::DeviceSpeed& device = cluster.device;
  device.multiplies_fp8 = true;
  device.product_share *= share_of_products(row.products);
  const double bytes_per_s = device.memory_bytes_per_s * device.memory_share;
  if (row.stack == Stack::eager_flash1 || row.stack == Stack::eager_flash2) move_logits(device, 38);
  if (row.stack == Stack::unfused || row.stack == Stack::unfused_again) move_logits(device, 52);
  // FSDP has one flat buffer, which is filled at once.
  if (row.stack == Stack::eager_flash1)
    device.ops.push_back({kernels::Copy::kName, bytes_per_s, bytes_per_s, 0});
  if (row.numbers == Numbers::mx8) device.fp8_flops_per_s *= kBlockScaled;
  if (row.numbers == Numbers::fp4) {
    device.fp8_flops_per_s = device.fp4_flops_per_s;
    device.fp8_depth_cost = device.fp4_depth_cost;
  }
  cluster.in_rings = true;
  return cluster;
}

struct Judged {
  Row row;
  double predicted = 0, error = 0;  ///< tokens/s of a GPU; predicted over measured time, less one
  StepTime time;
  std::string refused;
  std::string lane_by_lane;  ///< why products of experts are predicted lane by lane; "": they are not
};

/// What the last products of all layers take once more, with the bubble that they stretch.
void repeat_last_products(const JobSpec& job, const predict::DeviceSpeed& device, StepTime& time) {
  const ParallelSpec& p = job.parallelism;
  const double rows = double(job.batch.micro_sequences * job.data.seq_len), n = double(job.model.hidden_size),
               k = double(job.model.ffn_size) / p.tensor;
  const double layers = double(job.model.num_layers) / p.pipeline;
  const double more = double(job.micro_batches_of(0)) * layers *
                      predict::product_seconds(device, rows, n, k, 2 * (rows * (n + k) + n * k), false);
  const double bubble = more * time.bubble_fraction / (1 - time.bubble_fraction);
  time.parts.work.products += more;
  time.parts.bubble += bubble;
  time.step_s += more + bubble;
}

/// Megatron-Core cuts the exchanges of tensor ranks into 4 parts beside the products, of which one waits
/// (--tp-comm-overlap).
void hide_tensor(const predict::ClusterModel& cluster, StepTime& time) {
  const double hidden = 0.75 * (1 - cluster.overlap_slowdown) * time.parts.tensor;
  const double less = hidden * (1 + time.bubble_fraction / (1 - time.bubble_fraction));
  time.parts.tensor -= hidden;
  time.parts.bubble -= less - hidden;
  time.step_s -= less;
}

ParsedJob parsed_row(const Row& row, const std::vector<std::string>& more) {
  ParseInput input{.text = fmt::format(R"({{"version": 1, "name": "published", "model": {}, "device": "cuda",
      "data": {{"train": [{{"path": "/none.bin", "format": "raw", "dtype": "uint32"}}], "seq_len": {}}},
      "precision": {{"compute": "bf16"}}, "schedule": {{"total_steps": 10, "lr": 1e-3}}}})",
                                       row.model, row.seq_len),
                   .file = "job.json",
                   .overrides = row.settings,
                   .environment = {}};
  input.overrides.emplace_back("parallelism.reduction=fast");
  input.overrides.insert(input.overrides.end(), more.begin(), more.end());
  return parse_job(input);
}

/// An expert's gradients are sums of products for each lane here, one by one, so that they do not depend on
/// the mesh. Other software multiplies all rows of an expert at once. What it computes is what a rank
/// computes for itself that has as many experts as its share, of as many rows; exchanges and the optimizer
/// are those of the job. A token needs twice as many experts as it takes to have a choice, so a smaller
/// share is rounded up to that: as many rows in more products (DeepSeek-V3 on 64 ranks: 16 experts, not 4).
/// Returns why that is no job; "": it is.
std::string multiply_at_once(const Row& row, const JobSpec& job, const DeviceModel& device, StepTime& time) {
  const int64_t own = std::max(job.model.moe.num_experts / job.parallelism.expert, 2 * job.model.moe.top_k);
  // Every round of micro-batches is the same work.
  const int64_t all = job.micro_batches_of(0), round = job.parallelism.pipeline;
  const int64_t few = std::min(all, all % round + 2 * round);
  const int64_t sequences = job.batch.global_sequences / all * few;
  const ParsedJob alone = parsed_row(row, {"parallelism.expert=1", "parallelism.expert_tensor=0",
                                           fmt::format("model.moe.num_experts={}", own),
                                           fmt::format("batch.global_sequences={}", sequences)});
  for (const Diagnostic& d : alone.diagnostics)
    if (d.is_error()) return d.message;
  const StepTime other = predict_step(alone.job, make_plan(alone.job, device), device, *device.cluster);
  StepParts& parts = time.parts;
  const double before = parts.sum();
  parts.work = double(all) / double(few) * other.parts.work;
  const double busy = parts.work.sum() + parts.tensor + parts.context + parts.experts;
  parts.bubble = busy * time.bubble_fraction / (1 - time.bubble_fraction);
  parts.spread *= parts.sum() / before;
  time.step_s = parts.sum();
  return "";
}

/// clusters: a folder of cluster files instead of the program's own; "": none.
Judged judge(Row row, const std::string& clusters) {
  Judged result{std::move(row)};
  result.refused = result.row.refused;
  if (!result.refused.empty()) return result;
  const ParsedJob parsed = parsed_row(result.row, {});
  if (!parsed.ok()) {
    for (const Diagnostic& d : parsed.diagnostics)
      if (d.is_error() && result.refused.empty()) result.refused = d.message;
    return result;
  }
  const JobSpec& job = parsed.job;
  DeviceModel device;
  try {
    device = device_named(result.row.device, job, DeviceKind::cuda);
  } catch (const Error& error) {
    result.refused = error.what();
    return result;
  }
  if (!device.cluster) {
    result.refused = fmt::format("no cluster file has the speed of {}; there are files of {}", device.name,
                                 fmt::join(predict::cluster_names(), ", "));
    return result;
  }
  if (!clusters.empty()) {
    const std::string file = fmt::format("{}/{}.json", clusters, device.cluster->name);
    std::ifstream text(file);
    device.cluster = predict::parse_cluster(std::string(std::istreambuf_iterator<char>(text), {}), file);
  }
  const double peak = device.cluster->device.peak_bf16_flops_per_s;
  device.cluster = with_software(*device.cluster, result.row);
  if (result.row.numbers != Numbers::bf16 && device.cluster->device.fp8_flops_per_s == 0) {
    result.refused = fmt::format("the file of {} has no speed of such products", device.cluster->name);
    return result;
  }
  device.ranks_on_node = device.cluster->devices_of_node;
  const JobPlan plan = make_plan(job, device);
  result.time = predict_step(job, plan, device, *device.cluster);
  if (job.parallelism.expert > 1) {
    result.lane_by_lane = multiply_at_once(result.row, job, device, result.time);
    use_their_experts(result.row.experts, job, *device.cluster, result.time);
  }
  if (result.row.whole_again) repeat_last_products(job, device.cluster->device, result.time);
  if (result.row.hides_tensor) hide_tensor(*device.cluster, result.time);
  result.predicted = double(plan.tokens_per_step) / result.time.step_s / job.mesh().world_size();
  if (result.row.tokens_per_s == 0) {
    const double flops_per_s = result.row.flops_per_s > 0 ? result.row.flops_per_s : result.row.mfu * peak;
    const double counted = result.row.counts_causal ? plan.flops_per_step_causal : plan.flops_per_step_full;
    const bool again = result.row.counts_again && job.recompute == Recompute::full;
    result.row.tokens_per_s = flops_per_s * double(plan.tokens_per_step) / counted / (again ? 4.0 / 3 : 1);
  }
  result.error = result.row.tokens_per_s / result.predicted - 1;
  return result;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

void print_summary(const std::vector<Judged>& judged, const std::function<std::string(const Judged&)>& key) {
  std::map<std::string, std::vector<double>> errors;
  for (const Judged& j : judged)
    if (j.refused.empty()) errors[key(j)].push_back(j.error);
  fmt::print(
      "| rows | number | median error | median absolute error | 90 % of errors within "
      "|\n|---|---:|---:|---:|---|\n");
  for (auto& [name, list] : errors) {
    std::vector<double> absolute;
    for (const double e : list) absolute.push_back(std::abs(e));
    std::sort(list.begin(), list.end());
    fmt::print("| {} | {} | {:+.1f} % | {:.1f} % | {:+.0f} to {:+.0f} % |\n", name, list.size(),
               100 * median(list), 100 * median(absolute), 100 * list[size_t(double(list.size() - 1) * 0.05)],
               100 * list[size_t(std::ceil(double(list.size() - 1) * 0.95))]);
  }
  fmt::print("\n");
}

/// The median error of a group of rows without those of one table; "": of all.
double median_of(const std::vector<Judged>& judged, const std::string& group, const std::string& but) {
  std::vector<double> errors;
  for (const Judged& j : judged)
    if (j.refused.empty() && j.row.group == group && j.row.table != but) errors.push_back(j.error);
  return median(errors);
}

/// The errors that remain when the median of each GPU's errors is taken away: one fitted efficiency a GPU.
/// left_out: which is fitted to the other tables alone; a table that is alone in its group is left as it is.
std::vector<Judged> fitted(const std::vector<Judged>& judged, bool left_out) {
  std::vector<Judged> result = judged;
  for (Judged& j : result)
    j.error = (1 + j.error) / (1 + median_of(judged, j.row.group, left_out ? j.row.table : "")) - 1;
  return result;
}

std::string shares(const StepTime& time) {
  std::string out;
  for (const NamedSeconds& part : named(time.parts))
    if (part.seconds > 0.01 * time.step_s)
      out += fmt::format("{}{} {:.0f}", out.empty() ? "" : ", ", part.name, 100 * part.seconds / time.step_s);
  return out;
}

void print_rows(const std::vector<Judged>& judged) {
  fmt::print(
      "| table | row | measured tokens/s | predicted | error of time | where it goes, % "
      "|\n|---|---|---:|---:|---:|---|\n");
  for (const Judged& j : judged)
    if (j.refused.empty())
      fmt::print("| {} | {} {} | {:.0f} | {:.0f} | {:+.1f} % | {} |\n", j.row.table, j.row.device,
                 j.row.label, j.row.tokens_per_s, j.predicted, 100 * j.error, shares(j.time));
  fmt::print("\n");
}

void print_bubbles(const std::vector<std::pair<Row, double>>& rows, const std::string& clusters) {
  std::vector<double> distances;
  fmt::print("| bubble rate | published | predicted |\n|---|---:|---:|\n");
  for (const auto& [row, published] : rows) {
    const Judged j = judge(row, clusters);
    if (!j.refused.empty()) continue;
    distances.push_back(std::abs(j.time.bubble_fraction - published));
    fmt::print("| {} | {:.4f} | {:.4f} |\n", row.label, published, j.time.bubble_fraction);
  }
  fmt::print("\nmedian distance of {} bubble rates: {:.4f}\n\n", distances.size(), median(distances));
}

}  // namespace

int main(int argc, char** argv) {
  std::set<std::string> flags;
  std::vector<std::string> folders;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--"))
      flags.insert(argument);
    else
      folders.push_back(argument);
  }
  if (folders.empty() || folders.size() > 2) {
    fmt::print(stderr, "usage: bench_published FOLDER [CLUSTERS] [--rows] [--leave-one-out]\n");
    return 2;
  }
  const std::string clusters = folders.size() > 1 ? folders[1] : "";
  std::vector<Judged> judged;
  for (Row& row : published_rows(folders[0])) judged.push_back(judge(std::move(row), clusters));
  const auto by_group = [](const Judged& j) { return j.row.group; };
  const auto by_table = [](const Judged& j) { return j.row.group + ", " + j.row.table; };
  print_summary(judged, by_group);
  print_summary(judged, by_table);
  if (flags.contains("--rows")) print_rows(judged);
  print_bubbles(published_bubbles(folders[0]), clusters);
  print_exchanges(folders[0]);
  fmt::print("After one fitted efficiency for each group:\n\n");
  print_summary(fitted(judged, false), by_group);
  if (flags.contains("--leave-one-out")) {
    fmt::print("Each table with the efficiency that the other tables of its group have:\n\n");
    print_summary(fitted(judged, true), by_table);
  }
  print_claims(folders[0]);
  for (const Judged& j : judged)
    if (!j.refused.empty()) fmt::print("refused: {} {}: {}\n", j.row.table, j.row.label, j.refused);
  for (const Judged& j : judged)
    if (!j.lane_by_lane.empty())
      fmt::print("experts lane by lane: {} {}: {}\n", j.row.table, j.row.label, j.lane_by_lane);
  return 0;
}
