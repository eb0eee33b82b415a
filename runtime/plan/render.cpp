#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "runtime/plan/plan.h"
#include "runtime/base/json.h"

namespace trainctl {
namespace {

std::string bytes_text(double bytes) {
  if (bytes >= 1073741824.0) return fmt::format("{:.2f} GiB", bytes / 1073741824.0);
  if (bytes >= 1048576.0) return fmt::format("{:.1f} MiB", bytes / 1048576.0);
  return fmt::format("{:.1f} KiB", bytes / 1024.0);
}

std::string count_text(double n) {
  if (n >= 1e15) return fmt::format("{:.2f} P", n / 1e15);
  if (n >= 1e12) return fmt::format("{:.2f} T", n / 1e12);
  if (n >= 1e9) return fmt::format("{:.2f} B", n / 1e9);
  if (n >= 1e6) return fmt::format("{:.2f} M", n / 1e6);
  if (n >= 1e3) return fmt::format("{:.1f} k", n / 1e3);
  return fmt::format("{:.0f}", n);
}

/// As count_text, but by SI: 1e9 is G.
std::string flop_text(double n) {
  std::string text = count_text(n);
  if (text.back() == 'B') text.back() = 'G';
  return text + "FLOP";
}

std::string duration_text(double s) {
  if (s < 120) return fmt::format("{:.2g} s", s);
  if (s < 7200) return fmt::format("{:.0f} min", s / 60);
  if (s < 172800) return fmt::format("{:.1f} h", s / 3600);
  return fmt::format("{:.1f} days", s / 86400);
}

/// The share of the measured matrix-product rate that whole steps reach on the machines seen so far (scripts/bench.sh).
constexpr double kEfficiency = 0.7;

/// Seconds of a step at that efficiency. Ranks that share cores fill each other's pipeline bubbles; others idle as simulated.
double step_seconds(const JobSpec& job, const JobPlan& plan, double rank_flops_per_s) {
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const double room = std::max(1.0, cores / job.parallelism.threads_per_rank), ranks = job.mesh().world_size();
  const double busy = ranks > room ? 1.0 : std::max(0.05, 1 - plan.bubble_fraction);
  return plan.flops_per_step_causal / (kEfficiency * rank_flops_per_s * std::min(ranks, room)) / busy;
}

const char* schedule_text(const JobSpec& job) { return parallel::name_of(job.parallelism.schedule); }

}  // namespace

std::string render_plan(const JobSpec& job, const JobPlan& plan, double rank_flops_per_s) {
  const RankMemory& m = plan.worst();
  const parallel::MeshShape mesh = job.mesh();
  std::string out;
  out += fmt::format("Job      {} · {} {} params ({} without embeddings) · {} compute, f32 master weights\n", job.name,
                     job.model.family == Family::gpt2 ? "gpt2" : "llama", count_text(double(plan.parameters)),
                     count_text(double(plan.parameters_without_embedding)), name_of(job.compute));
  out += fmt::format("Layout   {} ranks = tensor {} x pipeline {} x data {} · {} schedule · ZeRO-{} · {} lanes · {} thread{} a rank\n",
                     mesh.world_size(), mesh.tp, mesh.pp, mesh.dp, schedule_text(job), job.parallelism.zero_stage,
                     job.parallelism.lanes, job.parallelism.threads_per_rank, job.parallelism.threads_per_rank == 1 ? "" : "s");
  out += fmt::format("Batch    {} sequences x {} = {} tokens a step · {} micro-batches a pipeline · bubble {:.1f} %\n",
                     job.batch.global_sequences, job.data.seq_len, count_text(double(plan.tokens_per_step)),
                     plan.micro_batches, 100 * plan.bubble_fraction);
  out += plan.device == DeviceKind::cuda
             ? fmt::format("Memory   per rank on the GPU, beside CUDA's own context; worst rank (stage {}, dp {})\n", m.at.pp, m.at.dp)
             : fmt::format("Memory   per rank, worst rank (stage {}, dp {})\n", m.at.pp, m.at.dp);
  const auto line = [&](const char* what, size_t bytes) {
    out += fmt::format("           {:<34}{:>12}\n", what, bytes_text(double(bytes)));
  };
  line(job.compute == DType::bf16 ? "weights (bf16 compute copy)" : "weights (f32 compute copy)", m.sharding.weights);
  line("gradients (f32)", m.sharding.gradients);
  line("optimizer (master, two moments)", m.sharding.optimizer);
  line("activations in flight", m.stage.activations);
  line("scratch", m.stage.scratch);
  line("communication", m.sharding.communication + m.scalars);
  line(plan.device == DeviceKind::cuda ? "tokens" : "data read ahead", m.data);
  if (plan.device == DeviceKind::cuda)
    line("workspace", m.workspace);
  else
    line("program and libraries", m.program);
  line("total", m.total());
  out += fmt::format("Traffic  a rank sends per step: tensor {} · pipeline {} · data {}\n", bytes_text(plan.traffic.tensor),
                     bytes_text(plan.traffic.pipeline), bytes_text(plan.traffic.data));
  out += fmt::format("FLOPs    {} a step (causal attention; {} if attention were full)\n",
                     flop_text(plan.flops_per_step_causal), flop_text(plan.flops_per_step_full));
  if (rank_flops_per_s > 0) {
    const double s = step_seconds(job, plan, rank_flops_per_s);
    out += fmt::format("Time     about {} a step, {} for {} steps, at {:.0f} % of this machine's measured {:.0f} GFLOP/s a rank\n",
                       duration_text(s), duration_text(s * double(job.schedule.total_steps)), job.schedule.total_steps,
                       100 * kEfficiency, rank_flops_per_s / 1e9);
  }
  out += fmt::format("Ckpt     {} each ({} parameters x 12 bytes)\n", bytes_text(double(plan.checkpoint_bytes)),
                     count_text(double(plan.parameters)));
  return out;
}

std::string plan_json(const JobSpec& job, const JobPlan& plan, double rank_flops_per_s) {
  const parallel::MeshShape mesh = job.mesh();
  nlohmann::ordered_json j;
  j["device"] = name_of(plan.device);
  j["parameters"] = plan.parameters;
  j["mesh"] = {{"tensor", mesh.tp}, {"pipeline", mesh.pp}, {"data", mesh.dp}, {"world_size", mesh.world_size()}};
  j["tokens_per_step"] = plan.tokens_per_step;
  j["micro_batches"] = plan.micro_batches;
  j["bubble_fraction"] = plan.bubble_fraction;
  j["flops_per_step_causal"] = plan.flops_per_step_causal;
  j["flops_per_step_full"] = plan.flops_per_step_full;
  j["checkpoint_bytes"] = plan.checkpoint_bytes;
  j["traffic_bytes"] = {{"tensor", plan.traffic.tensor}, {"pipeline", plan.traffic.pipeline}, {"data", plan.traffic.data}};
  for (const RankMemory& m : plan.stages)
    j["memory"].push_back({{"stage", m.at.pp},
                           {"weights", m.sharding.weights},
                           {"gradients", m.sharding.gradients},
                           {"optimizer", m.sharding.optimizer},
                           {"activations", m.stage.activations},
                           {"scratch", m.stage.scratch},
                           {"communication", m.sharding.communication + m.scalars},
                           {"data", m.data},
                           {"workspace", m.workspace},
                           {"program", m.program},
                           {"total", m.total()}});
  if (rank_flops_per_s > 0) j["step_seconds_estimate"] = step_seconds(job, plan, rank_flops_per_s);
  return dump_json(j, 1);
}

}  // namespace trainctl
