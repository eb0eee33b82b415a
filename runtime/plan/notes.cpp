// The notes of a plan: what is slow, costs memory, or cannot grow.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/plan/expert_notes.h"

namespace trainctl {
namespace {

/// What a width costs that does not divide the lanes.
std::string uneven_width_note(const JobSpec& job) {
  const ParallelSpec& p = job.parallelism;
  const int64_t most = job.parallelism.lanes_computed_by(0);
  const std::string waits = fmt::format(
      "data = {} does not divide the {} lanes: ranks have {} or {}, and all wait for those with {} ({:.0f} % "
      "of "
      "the ranks' time)",
      p.data, p.lanes, most - 1, count_of(most, "lane"), most, 100 * (1 - busy_share_of_lanes(p)));
  const int even = std::bit_floor(unsigned(p.data));
  if (p.reduces_each_lane()) {
    const auto sums = [&](int data) { return parallel::owner_levels(int(p.lanes), data).levels.count; };
    return fmt::format("{}; a rank holds up to {} of its share, where data = {} has {}", waits,
                       count_of(sums(p.data), "sum of the gradients", "sums of the gradients"), even,
                       sums(even));
  }
  int sums = 1, sent = 1;
  for (int rank = 0; rank < p.data; ++rank) {
    sums = std::max(sums, parallel::sums_at_once(job.parallelism.lanes_of(rank)));
    sent = std::max(sent, parallel::subtree_count(job.parallelism.lanes_of(rank)));
  }
  return fmt::format(
      "{}; a rank holds up to {} and sends up to {} of its lanes, where data = {} has {} and sends 1", waits,
      count_of(sums, "sum of the gradients", "sums of the gradients"), sent, even,
      parallel::sums_at_once(parallel::lanes_of_rank(int(p.lanes), even, 0)));
}

/// What the room for rounded operands takes.
std::string fp8_note(const PlanReport& r) {
  JobSpec without = r.job;
  without.fp8 = {};
  const auto of = [](const JobPlan& plan) { return double(plan.worst().stage.scratch()); };
  return fmt::format(
      "{} products are made of operands that are rounded first, in {} of memory, and multiplied in {}: the "
      "step takes no less time than without",
      scaling_of(r.job.fp8.recipe).four_bits ? "FP4" : "FP8",
      memory_text(of(r.plan) - of(make_plan(without, r.device))), name_of(r.job.compute));
}

/// What state in files costs, and would cost in memory.
std::string disk_note(const PlanReport& r, const OffloadTime& disk) {
  JobSpec without = r.job;
  without.optimizer.offload = StateOffload::none;
  const auto of = [](const JobPlan& plan) { return double(plan.worst().sharding.optimizer); };
  return fmt::format(
      "the optimizer's state is in a file of each rank, and parts of it in memory: {} a rank instead of {}; "
      "each "
      "step reads and writes {} of a node, in {} at {}/s each way ({})",
      memory_text(of(r.plan)), memory_text(of(make_plan(without, r.device))), memory_text(disk.bytes),
      duration_text(disk.seconds()), size_text(uint64_t(disk.bytes_per_s)),
      disk.is_assumed ? "assumed" : "node.disk_gb_per_s of the cluster");
}

/// What state in the memory of the host costs.
std::string host_note(const OffloadTime& link) {
  return fmt::format(
      "the optimizer's state is in pinned memory of the host: updates read and write {} of each GPU there, "
      "in {} at an "
      "assumed {}/s each way, and a digest of the state (observability.state_digest_every_steps) reads as "
      "much",
      memory_text(link.bytes), duration_text(link.seconds()), size_text(uint64_t(link.bytes_per_s)));
}

/// What a rank takes less without master weights, and what that costs.
std::string master_weights_note(const PlanReport& r) {
  JobSpec with = r.job;
  with.optimizer.master_weights = MasterWeights::f32;
  const bool on_disk = r.job.optimizer.offload == StateOffload::disk;  // where they would be
  const auto bytes = [&](const JobPlan& plan) {
    return double(on_disk ? plan.worst().sharding.state_file : plan.worst().total());
  };
  return fmt::format("without master weights {} takes {} less: {}", on_disk ? "the file of a rank" : "a rank",
                     memory_text(bytes(make_plan(with, r.device)) - bytes(r.plan)), kCostOfNoMasters);
}

/// What it costs to gather weights part by part, or to keep them then.
std::string gathers_note(const PlanReport& r) {
  JobSpec other = r.job;
  if (r.job.parallelism.reshard_after_forward) {
    other.parallelism.zero_stage = 2;
    return fmt::format(
        "zero_stage 3 gathers the weights before the forward and the backward pass of every micro-batch: a "
        "rank sends up to {} a step over the data axis, with zero_stage 2 {}",
        memory_text(r.plan.traffic.data), memory_text(make_plan(other, r.device).traffic.data));
  }
  other.parallelism.reshard_after_forward = true;
  const JobPlan resharded = make_plan(other, r.device);
  other.parallelism.reshard_after_forward = false;
  other.parallelism.zero_stage = 2;
  const JobPlan two = make_plan(other, r.device);
  const auto weights = [](const JobPlan& plan) { return memory_text(double(plan.worst().sharding.weights)); };
  return fmt::format(
      "reshard_after_forward false keeps the weights of all parts of a rank during a step, {}, where true "
      "has "
      "those of two, {}; a rank sends up to {} a step over the data axis instead of {} (zero_stage 2: {}, "
      "weights {})",
      weights(r.plan), weights(resharded), memory_text(r.plan.traffic.data),
      memory_text(resharded.traffic.data), memory_text(two.traffic.data), weights(two));
}

/// What the updates of whole matrices multiply.
std::string muon_note(const PlanReport& r) {
  double flops = 0;
  const ParamTable table = parameter_table(r.job.model, r.job.optimizer);
  for (const Param& p : table.params) {
    if (p.row.rule != parallel::UpdateRule::muon) continue;
    for (const int64_t rows : parallel::muon_sections(p.layout)) {
      const double n = double(rows), m = double(p.layout.cols), side = std::min(n, m);
      flops += r.job.optimizer.muon.steps * 2 * (2 * n * m * side + side * side * side);
    }
  }
  const double share = 100 * flops / r.plan.flops_per_step_causal;
  return fmt::format(
      "muon multiplies {}FLOP a step in f32 to update the matrices, {:.{}f} % of the model's; "
      "{}",
      short_number(flops), share, share < 10 ? 1 : 0,
      r.job.parallelism.zero_stage == 0
          ? "with zero_stage 0 every data-parallel rank does all of it for its stage"
          : "the matrices of a stage are dealt out to its data-parallel ranks");
}

/// What reducing each lane costs, and why it may save nothing.
std::vector<std::string> reduced_lanes_notes(const JobSpec& job) {
  std::vector<std::string> notes;
  if (!job.parallelism.reduces_each_lane()) return notes;
  const int zero = job.parallelism.zero_stage;
  const int64_t lanes = job.parallelism.lanes_computed_by(0), together = job.micro_batches_per_lane();
  const bool has_blocks = job.parallelism.context_blocks > 1;
  if (lanes > 1 && job.parallelism.ranks_of_parameters() > 1)
    notes.push_back(fmt::format("{} sends the gradients of each of a rank's {}: {} times the bytes of {}",
                                has_blocks ? fmt::format("context_blocks {}", job.parallelism.context_blocks)
                                           : fmt::format("zero_stage {}", zero),
                                count_of(lanes, "lane"), lanes,
                                has_blocks ? "as many lanes as data-parallel ranks" : "zero_stage 1"));
  if (together > 1 && zero >= 2)
    notes.push_back(
        fmt::format("zero_stage {} saves no gradients here: a lane has {} micro-batches, until the last of "
                    "which the gradients of "
                    "the whole model are held; with as many lanes as micro-batches, {}, they are not",
                    zero, together, job.parallelism.lanes * together));
  return notes;
}

/// What it would cost to be able to get wider; "" if the run can.
std::string no_room_to_grow_note(const PlanReport& r) {
  const ParallelSpec& p = r.job.parallelism;
  JobSpec twice = r.job;
  twice.parallelism.lanes *= 2;
  if (p.data == 1 || p.lanes >= 2 * p.data || r.job.micro_batches_per_lane() % 2 != 0) return "";
  const JobPlan wider = make_plan(twice, r.device);
  const std::string cost =
      r.job.parallelism.reduces_each_lane()
          ? fmt::format("a rank would send {} a step over the data axis instead of {}",
                        memory_text(wider.traffic.data), memory_text(r.plan.traffic.data))
          : fmt::format("{} of memory more a rank",
                        memory_text(double(wider.worst().total()) - double(r.plan.worst().total())));
  return fmt::format(
      "the run cannot get wider than its {} lanes with the same bits; parallelism.lanes = {} would cost "
      "this: {}",
      p.lanes, twice.parallelism.lanes, cost);
}

/// What ranks that share experts hold of their gradients: those of the lanes that come at one time.
std::string shared_gradients_note(const JobSpec& job) {
  const ParallelSpec& p = job.parallelism;
  const int at_once = p.expert_lanes() * p.blocks_of_rank(), in_tree = std::bit_width(unsigned(at_once));
  const bool adds = job.parallelism.reduces_each_lane(), merges = job.micro_batches_per_lane() == 1;
  std::string hint;
  const int64_t micro_batches = job.batch.global_sequences / job.batch.micro_sequences;
  const bool may_be_lanes = std::has_single_bit(uint64_t(micro_batches));
  if (in_tree < at_once && !(adds && merges))
    hint = fmt::format("; with{}{}{} it would be {}", adds ? "" : " zero_stage = 2",
                       adds || merges ? "" : " and",
                       merges         ? ""
                       : may_be_lanes ? fmt::format(" one micro-batch a lane (a run of parallelism.lanes = {})",
                                                    micro_batches)
                                      : fmt::format(" one micro-batch a lane (lanes are a power of two, the "
                                                    "micro-batches are {})",
                                                    micro_batches),
                       in_tree);
  return fmt::format(
      "{} ranks share experts: each holds the gradients of its experts {} times, for the lanes of all "
      "of them{}",
      p.expert, adds && merges ? in_tree : at_once, hint);
}

/// What the other way of context ranks would send; "" where it is the way of none.
std::string context_note(const PlanReport& r) {
  using parallel::ContextComm;
  JobSpec other = r.job;
  ParallelSpec& p = other.parallelism;
  if (p.context == 1) return "";
  const ContextComm now = p.context_comm_type;
  p.context_comm_type = now == ContextComm::a2a ? ContextComm::all_gather : ContextComm::a2a;
  if (p.exchanges_heads() && !has_whole_heads(other.model.num_kv_heads, p.tensor, p.context))
    return fmt::format(
        "context ranks exchange keys and values: {} on {} context ranks leave no whole ones for a2a",
        count_of(std::max<int64_t>(1, other.model.num_kv_heads / p.tensor), "KV head"), p.context);
  const JobPlan plan = make_plan(other, r.device);
  const double sends = r.plan.traffic.context, would = plan.traffic.context,
               memory = double(plan.worst().total()) - double(r.plan.worst().total());
  return fmt::format(
      "context_comm_type = {} sends {} a rank and step{}; {} would send {}, with {} of memory {}",
      word_of(now), memory_text(sends), sends < would ? ", the least" : "", word_of(p.context_comm_type),
      memory_text(would), memory_text(std::abs(memory)), memory < 0 ? "less" : "more");
}

/// Whether losses of balance are of whole sequences.
std::string chunk_losses_note(const JobSpec& job) {
  const int64_t tokens = job.data.seq_len / (2 * job.parallelism.context_blocks);
  return fmt::format(
      "the auxiliary loss of experts evens out each chunk of {} tokens, and not each sequence of {}, "
      "because sequences are cut (parallelism.context_blocks = {}): {} slots for each expert",
      tokens, job.data.seq_len, job.parallelism.context_blocks,
      fmt::format("{:.3g}", job.model.moe.mean_count(tokens)));
}

/// What quantile balancing counts, and sends.
std::string quantile_note(const JobSpec& job) {
  const int64_t bytes = job.model.moe.num_experts * kernels::kMarginBins * int64_t(sizeof(int32_t));
  const int ranks = job.parallelism.ranks_of_parameters();
  return fmt::format("quantile balancing: a histogram of {} for each layer with experts on a rank{}",
                     size_text(uint64_t(bytes)),
                     ranks > 1
                         ? fmt::format(", which {} ranks add at the end of a step, in {} messages a layer, "
                                       "before they update parameters",
                                       ranks, std::bit_width(unsigned(ranks) - 1))
                         : "");
}

}  // namespace

std::vector<std::string> plan_notes(const PlanReport& r) {
  std::vector<std::string> notes;
  const ParallelSpec& p = r.job.parallelism;
  if (p.expert_lanes() > 1) notes.push_back(shared_gradients_note(r.job));
  if (r.job.model.moe.num_experts > 0 && r.job.model.moe.aux_loss_coefficient > 0 && p.context_blocks > 1)
    notes.push_back(chunk_losses_note(r.job));
  if (r.job.model.moe.num_experts > 0 && r.job.model.moe.bias_update == BiasUpdate::quantile)
    notes.push_back(quantile_note(r.job));
  if (p.expert > 1 && r.device.kind == DeviceKind::cuda)
    notes.push_back(
        "the host waits for its GPU in each forward pass of a layer with experts, to learn how many rows go "
        "to "
        "which rank: it enqueues no kernels ahead of that");
  for (std::string& note : expert_notes(r)) notes.push_back(std::move(note));
  if (p.lanes % p.data != 0) notes.push_back(uneven_width_note(r.job));
  if (std::string note = context_note(r); !note.empty()) notes.push_back(std::move(note));
  for (std::string& note : reduced_lanes_notes(r.job)) notes.push_back(std::move(note));
  if (std::string note = no_room_to_grow_note(r); !note.empty()) notes.push_back(std::move(note));
  if (shards_weights(r.job.parallelism)) notes.push_back(gathers_note(r));
  if (r.job.optimizer.type == OptimizerType::muon) notes.push_back(muon_note(r));
  if (const auto offload = offload_time(r.job, r.plan, r.device))
    notes.push_back(offload->of_disk ? disk_note(r, *offload) : host_note(*offload));
  if (r.job.fp8.exists()) notes.push_back(fp8_note(r));
  if (r.job.optimizer.master_weights == MasterWeights::none) notes.push_back(master_weights_note(r));
  const int64_t head = r.job.model.head_dim();
  if (r.device.kind == DeviceKind::cuda && r.job.compute == DType::bf16 && head != 64 && head != 128)
    notes.push_back(
        fmt::format("attention heads of {} channels run on the plain kernels, many times slower than those "
                    "for 64 and 128: choose "
                    "model.head_dim, or model.num_heads, so that they have as many",
                    head));
  if (r.time && !r.time->predicted && r.device.kind == DeviceKind::cuda &&
      r.time->mfu > 1 - r.plan.bubble_fraction)
    notes.push_back(
        fmt::format("the bubble alone leaves {:.0f} % of the peak, less than the assumed MFU: more "
                    "micro-batches or fewer stages "
                    "are needed",
                    100 * (1 - r.plan.bubble_fraction)));
  return notes;
}

}  // namespace trainctl
