#include "runtime/plan/expert_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/base/units.h"

namespace trainctl {
namespace {

/// The share of the choices of k things among `all` that meet none of the first `these`.
double share_without(int64_t all, int64_t these, int64_t k) {
  double share = 1;
  for (int64_t i = 0; i < k; ++i) share *= std::max(0.0, double(all - these - i) / double(all - i));
  return share;
}

/// Of `chosen` among `all` groups, the share of choices with `count` of the first `these`.
double share_with(int64_t all, int64_t these, int64_t chosen, int64_t count) {
  const auto log_choices = [](int64_t n, int64_t k) {
    return std::lgamma(double(n + 1)) - std::lgamma(double(k + 1)) - std::lgamma(double(n - k + 1));
  };
  if (count > these || chosen - count > all - these) return 0;
  return std::exp(log_choices(these, count) + log_choices(all - these, chosen - count) -
                  log_choices(all, chosen));
}

/// Rows come home one by one, and are added there in the order of a token's choices, so that they are added
/// alike however many ranks share experts. A tree over fixed blocks of experts would be as independent of the
/// ranks and send a sum for each rank that a token meets, rounded at each of its nodes.
std::string way_home_note(const JobSpec& job) {
  const MoeSpec& moe = job.model.moe;
  const int64_t ranks = job.parallelism.expert;
  const double met = ChosenExperts{moe.num_experts, moe.top_k, moe.groups, moe.top_groups}.ranks_met(ranks);
  const double ratio = double(moe.top_k) / met;
  if (ratio < 1.1) return "";
  const double row = double(moe.width(job.model.hidden_size)) * double(size_of(job.compute)),
               away = double(ranks - 1) / double(ranks);
  return fmt::format(
      "rows of experts come home one by one, {} for a token and layer: {} away from the rank, in each pass. "
      "Sums "
      "of each rank's experts would be {}, {:.1f} times less where routers choose evenly, and round up to {} "
      "times more often",
      moe.top_k, memory_text(double(moe.top_k) * away * row), memory_text(met * away * row), ratio,
      moe.top_k - 1);
}

/// Few rows of an expert in a micro-batch: its gradients in f32, which are written, and read where a lane has
/// several micro-batches, take longer than products.
std::string few_rows_note(const PlanReport& r) {
  const int parts = r.job.parallelism.token_parts();
  const bool adds = r.job.micro_batches_per_lane() > 1 || parts > 1;
  const double bytes_of_weight = adds ? 8 : 4;
  double enough = 512, memory = 0;
  if (r.device.cluster && r.device.cluster->device.memory_bytes_per_s > 0) {
    const predict::DeviceSpeed& d = r.device.cluster->device;
    memory = d.memory_bytes_per_s * d.memory_share;
    enough = bytes_of_weight / 2 * d.peak_bf16_flops_per_s * d.product_share * d.grouped_share / memory;
  }
  const int64_t tokens =
      r.job.batch.micro_sequences * r.job.data.seq_len / r.job.parallelism.context_blocks / parts;
  const double rows = r.job.model.moe.mean_count(tokens);
  if (rows >= enough) return "";
  const std::string limit =
      memory > 0 ? fmt::format(", so that the memory of {} limits them to {}FLOP/s", r.device.name,
                               short_number(2 * rows / bytes_of_weight * memory))
                 : "";
  return fmt::format(
      "an expert has {:.3g} rows of a {}micro-batch on average, and its weights' gradients are {}written for "
      "them{}: with {:.3g} rows or more, of larger micro-batches, they cost less than their products",
      rows, parts > 1 ? "tensor rank's part of a " : "", adds ? "read and " : "", limit, enough);
}

/// Memory for the rows that a rank gets where every token of the ranks that share experts chooses its
/// experts. The mean is far less, and nothing but a capacity makes the rest impossible.
std::string worst_rows_note(const PlanReport& r) {
  constexpr double kUsualFactor = 1.25, kLeastShare = 0.1;  // of the rank's memory
  const MoeSpec& moe = r.job.model.moe;
  const int64_t ranks = r.job.parallelism.expert;
  const double over = double(ranks * std::min(moe.top_k, moe.num_experts / ranks)) / double(moe.top_k);
  if (moe.capacity_factor > 0 || over <= kUsualFactor) return "";
  JobSpec other = r.job;
  other.model.moe.capacity_factor = kUsualFactor;
  const double now = double(r.plan.worst().total()),
               less = now - double(make_plan(other, r.device).worst().total());
  if (less < kLeastShare * now) return "";
  return fmt::format(
      "nothing is dropped, so memory is planned for every token of the {} ranks that share experts to choose "
      "those of "
      "one rank, {:.3g} times the mean; model.moe.capacity_factor = {} plans {} less a rank, and drops what "
      "is over it",
      ranks, over, kUsualFactor, memory_text(less));
}

/// What whole experts would take where tensor ranks cut them, on as many parts, and the reverse.
std::string whole_experts_note(const PlanReport& r) {
  const auto moves = [](const JobPlan& plan) { return plan.traffic.tensor + plan.traffic.experts; };
  const ParallelSpec& now = r.job.parallelism;
  const MoeSpec& moe = r.job.model.moe;
  const int64_t tokens = r.job.batch.micro_sequences * r.job.data.seq_len / now.context_blocks;
  const bool whole = now.token_parts() > 1;
  if (now.tensor == 1 || moe.capacity_factor > 0 || tokens % now.tensor != 0 || now.lanes % now.data != 0 ||
      (!whole && moe.num_experts % (int64_t(now.expert) * now.tensor) != 0))
    return "";
  JobSpec other = r.job;
  ParallelSpec& p = other.parallelism;
  p.expert_tensor = whole ? now.tensor : 1;
  p.expert = whole ? now.expert / now.tensor : now.expert * now.tensor;
  const JobPlan plan = make_plan(other, r.device);
  const double memory = double(plan.worst().total()) - double(r.plan.worst().total());
  const auto widest_part = [&](int parts) { return (moe.expert_ffn_size + parts - 1) / parts; };
  return fmt::format(
      "experts are {} columns wide on a rank, which sends {} a step to tensor ranks and those that share "
      "experts; "
      "with expert_tensor = {} and expert = {} they would be {}, and it would send {}, with {} of memory {}",
      widest_part(now.ranks_of_expert()), memory_text(moves(r.plan)), p.expert_tensor, p.expert,
      widest_part(p.ranks_of_expert()), memory_text(moves(plan)), memory_text(std::abs(memory)),
      memory < 0 ? "less" : "more");
}

}  // namespace

double ChosenExperts::ranks_met(int64_t ranks) const {
  const int64_t here = experts / ranks, group = experts / groups;
  double without = share_without(experts, here, top_k);
  if (groups > 1 && here % group == 0) {
    without = 0;
    for (int64_t met = 0; met <= top_groups; ++met)
      without += share_with(groups, here / group, top_groups, met) *
                 share_without(top_groups * group, met * group, top_k);
  } else if (groups > 1 && group % here == 0) {
    const double chosen = double(top_groups) / double(groups);
    without = 1 - chosen + chosen * share_without(top_groups * group, here, top_k);
  }
  return double(ranks) * (1 - without);
}

std::vector<std::string> expert_notes(const PlanReport& r) {
  std::vector<std::string> notes;
  const auto add = [&](std::string note) {
    if (!note.empty()) notes.push_back(std::move(note));
  };
  if (r.job.parallelism.expert > 1) add(way_home_note(r.job));
  if (r.job.parallelism.expert > 1) add(worst_rows_note(r));
  if (r.job.model.moe.num_experts > 0) add(whole_experts_note(r));
  if (r.job.model.moe.num_experts > 0 && r.device.kind == DeviceKind::cuda) add(few_rows_note(r));
  return notes;
}

}  // namespace trainctl
