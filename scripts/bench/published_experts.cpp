#include "scripts/bench/published_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/ops.h"
#include "runtime/predict/collective_time.h"
#include "runtime/predict/op_time.h"

namespace trainctl::bench {
namespace {

using Host = ExpertStack::Host;

/// A kernel less is worth so much where the host enqueues it: 41 fewer of the router raised DeepSeek-V3 on
/// 256 GB200 from 529.55 to 540.00 TFLOP/s, 0.64 ms of each of its 58 layers with experts and 4,096 tokens
/// (github.com/NVIDIA/Megatron-LM, docs/discussions/deepseek-v3-gb200-optimization, 2.1.4 and its table).
/// The host waits for the counts of rows in every layer, so that it is never far ahead of the device.
constexpr double kEnqueueS = 15.7e-6;
/// Of exchanges, what runs beside another micro-batch, as a mean of three pairs of measurements: Qwen3 30B
/// on 16 H100 took 31.31 s instead of 41.25 (pairs) and 21.0 instead of 24.7 (once), Qwen3 235B on 256 H100
/// 17.6 instead of 19.7 (once): 0.55, 0.83 and 0.35 of what exchange_s gives their exchanges
/// (github.com/NVIDIA-NeMo/Megatron-Bridge, docs/training/communication-overlap.md and pull 5225;
/// github.com/yanring/Megatron-MoE-ModelZoo, best_practice/Qwen3). The second rows of these pairs are not
/// judged.
constexpr double kHidden = 0.58;
/// Of a link, what DeepEP reaches: 153 to 158 GB/s of 160 on 8 H800, and 643 to 675 of 690 on 8 B200 with 24
/// processors, where an eighth of what it counts stays (22_deepep_alltoall.json).
constexpr double kLinkShare = 0.84;
/// Values of latent attention have 128 channels, keys 192; ours pads the former. Of 2 and of 5 products.
constexpr double kUnpadded = ((192 + 128) / (2 * 192.0) + 2 * (3 * 192 + 2 * 128) / (5 * 192.0)) / 3;

/// A layer with experts on one rank and one micro-batch.
struct Layer {
  double tokens, width, inner;  ///< of the rank; channels of a row, and within an expert
  double rows, k;               ///< pairs of a token and an expert; of one token
  double experts;               ///< of this rank
  int ranks;                    ///< that share the experts
};

Layer layer_of(const JobSpec& job) {
  const ParallelSpec& p = job.parallelism;
  const MoeSpec& moe = job.model.moe;
  const int parts = p.token_parts();
  Layer l{};
  l.ranks = p.expert;
  l.k = double(moe.top_k);
  l.tokens = double(job.batch.micro_sequences * job.data.seq_len) / p.context / parts;
  l.rows = l.tokens * l.k;
  l.width = double(job.model.hidden_size);
  l.inner = double(moe.expert_ffn_size);
  l.experts = double(moe.num_experts) / l.ranks;
  return l;
}

/// Of `number` that are equally likely, how many `choices` meet.
double met(double number, double choices) { return number * (1 - std::pow(1 - 1 / number, choices)); }

/// Tokens of `bytes` each that go once to each rank that has some of their k experts: over the network card
/// to each other node of `likely` ones, from there over the node's links.
double once_s(const predict::ClusterModel& cluster, const predict::GroupPlace& place, double tokens, double k,
              double likely, double bytes) {
  const double nodes = double(place.ranks) / place.together, here = 1.0 / place.together;
  const double away_s =
      nodes > 1 ? tokens * met(likely, k) * (1 - 1 / nodes) * bytes / cluster.fabric.bytes_per_s : 0;
  const double near_s =
      tokens * met(place.ranks, k) * (1 - here) * bytes / (kLinkShare * cluster.node.bytes_per_s);
  return (nodes > 1 ? cluster.fabric.latency_s : cluster.node.latency_s) + std::max(away_s, near_s);
}

/// One way of a layer's rows.
double exchange_s(const ExpertStack& stack, const JobSpec& job, const predict::ClusterModel& cluster,
                  const Layer& l) {
  const predict::GroupPlace place = predict::place_of_group(cluster, l.ranks, 1, cluster.devices_of_node);
  const double row = 2 * l.width, others = double(l.ranks - 1) / l.ranks;
  // With pairs of both passes go counts of rows once, and weights of rows twice.
  if (!stack.sends_once) return predict::all_to_all_seconds(cluster, place, 1.75, l.rows * row * others);
  const double nodes = double(place.ranks) / place.together;
  const MoeSpec& moe = job.model.moe;
  const double likely =
      moe.groups > 1 ? std::max(1.0, nodes * double(moe.top_groups) / double(moe.groups)) : nodes;
  return once_s(cluster, place, l.tokens, l.k, likely, row);
}

/// All wait for the rank with most rows. Forced balance is a choice by random scores: rows are a sum of so
/// many draws, of which the largest of n is about sqrt(2 ln n) standard deviations above its mean.
double imbalance(const Layer& l) {
  return std::sqrt(2 * std::log(double(l.ranks)) * (1 - 1.0 / l.ranks) / l.rows);
}

double grouped_s(const JobSpec& job, const predict::DeviceSpeed& device, const Layer& l) {
  double seconds = 0;
  const auto rows = int64_t(l.rows), experts = std::max<int64_t>(1, int64_t(l.experts));
  const bool fp8 = job.fp8.exists();
  for (const auto& [n, k] :
       {std::pair(int64_t(2 * l.inner), int64_t(l.width)), {int64_t(l.width), int64_t(l.inner)}})
    for (const kernels::OpShape& shape : {kernels::OpShape{kernels::GroupedForward::kName, rows, n, k},
                                          {kernels::GroupedBackwardInput::kName, rows, k, n},
                                          {kernels::GroupedBackwardWeight::kName, n, k, rows}})
      seconds += predict::grouped_seconds(device, shape, experts, 0, false, fp8);
  return seconds;
}

/// Bytes that its elementwise ops move more than ours; per row of an expert.
double more_bytes(const ExpertStack& stack, const JobSpec& job, bool hopper, const Layer& l) {
  const double h = l.width, f = l.inner;
  const bool fp8 = job.fp8.exists();
  // The weight half takes its rows from the forward half, where ours gathers them again; weights of rows are
  // multiplied within the activation, which is kept.
  double bytes = -2 * 4 * h - 16 * f;
  // One kernel quantises for both directions, where ours does it in each half; for a scale of a tensor, on
  // Hopper, another one reads all numbers before.
  if (fp8) bytes -= (hopper ? 0.5 : 1) * (8 * h + 12 * f);
  // Pairs are sorted by expert behind the exchange, and back before it, in both passes; in FP8 each
  // expert's rows are padded behind that, and not any more before it (section 2.5 of that guide).
  if (!stack.sends_once) bytes += 4 * 4 * h * ((l.experts > 1 ? 1 : 0) + (fp8 ? 1 : 0));
  // Fused with products: the activation and its gradient, 6 and 10 bytes of an inner number, and what
  // quantises both, 4 and 8.
  if (stack.host == Host::whole && fp8) return bytes - 16 * f - 12 * f;
  if (job.model.family == Family::gpt_oss) {
    // Biases of the second product: t + b * p of each expert, joined, in f32: 28 and 40 bytes a number,
    // ours 8. Its activation clamps both halves and joins them: 8 and 12 bytes a number; again for the
    // backward pass.
    bytes += (28 + 40 - 8) * h + (8 + 12) * 2 * f + (8 * 2 + 6) * f;
  }
  return bytes;
}

double latents_s(const JobSpec& job, const predict::DeviceSpeed& device, const Layer& l) {
  const LatentSpec& a = job.model.latent;
  const double heads = double(job.model.num_heads) / job.parallelism.tensor;
  const double tokens = l.tokens * job.parallelism.token_parts();
  const auto product = [&](double n, double k) {
    const double bytes = 2 * (tokens * (n + k) + n * k);
    return job.fp8.exists() ? predict::fp8_product_seconds(device, tokens, n, k, bytes)
                            : predict::product_seconds(device, tokens, n, k, bytes, false);
  };
  return product(heads * double(a.qk_nope_head_dim + a.qk_rope_head_dim), double(a.q_lora_rank)) +
         product(heads * double(a.qk_nope_head_dim + a.v_head_dim), double(a.kv_lora_rank));
}

/// How long the device waits for the host: for each op less than kEnqueueS, the difference.
double host_s(const ExpertStack& stack, const JobSpec& job, const predict::ClusterModel& cluster,
              const Layer& l) {
  const predict::DeviceSpeed& device = cluster.device;
  if (stack.host == Host::whole) return 0;
  const bool fp8 = job.fp8.exists();
  const double bandwidth = device.memory_bytes_per_s * device.memory_share;
  const auto wait = [&](double seconds) { return std::max(0.0, kEnqueueS - std::max(device.op_s, seconds)); };
  const double of_tokens = wait(4 * l.tokens * l.width / bandwidth), small = wait(0);
  double seconds = 0;
  if (stack.host == Host::eager || stack.host == Host::unfused) {
    // Router and the preparation of its exchange: 72; 31 fused; 17 with libraries that send once (2.1.4,
    // 2.2.1).
    seconds += (stack.host == Host::unfused ? 72 : stack.sends_once ? 17 : 31) * small;
    // Norms, rotations and sums, forward and backward; with latents 8 and 12 more; two quantised operands of
    // each product.
    const bool latent = job.model.is_latent();
    seconds += (22 + (latent ? 20 : 0) + (fp8 ? (latent ? 10 : 4) : 0)) * of_tokens;
  }
  // Permuting, exchanging tokens and their weights, and back.
  seconds += (stack.sends_once ? 8 : 16) * small;
  const double rows = l.rows / l.experts;
  for (const auto& [n, k] : {std::pair(2 * l.inner, l.width), std::pair(l.width, l.inner)}) {
    const double bytes = 2 * (rows * (n + k) + n * k);
    const double product = fp8 ? predict::fp8_product_seconds(device, rows, n, k, bytes)
                               : predict::product_seconds(device, rows, n, k, bytes, false);
    seconds += 3 * l.experts * wait(product);
    // Each expert's operands by themselves; with a scale of a tensor on Hopper its largest, scale and both
    // casts.
    if (fp8)
      seconds +=
          2 * (cluster.name.starts_with("h") ? 3 : 1) * l.experts * wait(4 * rows * (n + k) / 2 / bandwidth);
  }
  // For each operand of an expert's product its scales were cleared, twice, and put in order, twice (2.1.2).
  if (stack.host == Host::unfused && fp8) seconds += 4 * 5 * l.experts * small;
  if (job.model.family == Family::gpt_oss) seconds += 9 * l.experts * wait(6 * rows * l.width / bandwidth);
  return seconds;
}

}  // namespace

void use_their_experts(const ExpertStack& stack, const JobSpec& job, const predict::ClusterModel& cluster,
                       StepTime& time) {
  const Layer l = layer_of(job);
  const predict::DeviceSpeed& device = cluster.device;
  const double bandwidth = device.memory_bytes_per_s * device.memory_share;
  int layers = 0;
  for (int i = 0; i < job.model.num_layers; ++i) layers += job.model.has_experts(i);
  const double times = double(job.micro_batches_of(0)) * double(layers) / job.parallelism.pipeline;
  const double all =
      double(job.micro_batches_of(0)) * double(job.model.num_layers) / job.parallelism.pipeline;
  StepParts& parts = time.parts;
  const double before = parts.sum() - parts.spread;
  parts.work.memory = std::max(
      0.0, parts.work.memory +
               times * l.rows * more_bytes(stack, job, cluster.name.starts_with("h"), l) / bandwidth);
  if (job.model.is_latent()) parts.work.attention *= kUnpadded;
  if (stack.recomputes_latents) parts.work.products += all * latents_s(job, device, l);
  parts.work.launches += times * host_s(stack, job, cluster, l);
  parts.work.products += times * imbalance(l) * grouped_s(job, device, l);
  parts.experts =
      times * 4 * (1 + imbalance(l)) * exchange_s(stack, job, cluster, l) * (stack.hides ? 1 - kHidden : 1);
  const double busy = parts.work.sum() + parts.tensor + parts.context + parts.experts;
  parts.bubble = busy * time.bubble_fraction / (1 - time.bubble_fraction);
  parts.spread *= (parts.sum() - parts.spread) / before;
  time.step_s = parts.sum();
}

void print_exchanges(const std::string& folder) {
  const Json json = load(folder + "/22_deepep_alltoall.json");
  if (json.is_null()) return;
  const predict::ClusterModel cluster = predict::known_cluster("h800");
  fmt::print(
      "| rows of experts, H800 | dispatch, GB/s | combine, GB/s | predicted |\n|---|---:|---:|---:|\n");
  for (const Json& r : json.at("rows")) {
    if (text(r, "kernel") != "normal") continue;
    const int ranks = int(number(r, "ep"));
    const predict::GroupPlace place = predict::place_of_group(cluster, ranks, 1, 8);
    const double nodes = double(ranks) / place.together, tokens = number(r, "tokens"), k = number(r, "topk");
    const double likely = std::min(nodes, number(r, "groups")), bytes = number(r, "hidden") * 2;
    // Its bandwidths count what goes to the own node, too, over several nodes each token once for each node.
    const double counted = nodes > 1 ? met(likely, k) : met(ranks, k);
    const double seconds = once_s(cluster, place, tokens, k, likely, bytes);
    fmt::print("| {} ranks | {:.0f} | {:.0f} | {:.0f} |\n", ranks, number(r, "dispatch_GBps"),
               number(r, "combine_GBps"), tokens * counted * bytes / seconds / 1e9);
  }
  fmt::print("\n");
}

}  // namespace trainctl::bench
