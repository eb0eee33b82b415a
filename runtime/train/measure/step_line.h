// StepLine: the numbers of a step, from the sums over the ranks to the page. The ranks' sums begin it,
// rank 0 completes and reports it, the supervisor adds the numbers of ranks and records it as a line of
// metrics.jsonl, and every view of a run reads it; its fields are listed here, once.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/record_fields.h"
#include "runtime/base/words.h"

namespace trainctl {

/// Smallest, median and largest number of the ranks that have it, and the ranks of the smallest and the
/// largest.
template <typename Number>
struct Spread {
  Number min{}, median{}, max{};
  int min_rank = -1, max_rank = -1;
  std::string min_node, max_node;  ///< "": nodes are not known
  static void fields(auto& f, auto& r) {
    f("min", r.min);
    f("min_rank", r.min_rank);
    f("median", r.median);
    f("max", r.max);
    f("max_rank", r.max_rank);
    f.when(!r.min_node.empty(), "min_node", r.min_node);
    f.when(!r.max_node.empty(), "max_node", r.max_node);
  }
};

/// A number of every rank that is compared with those of ranks with the same work.
enum class RankNumber { compute_s, peak_memory_bytes, temperature_c, sm_clock_mhz };
template <>
struct Words<RankNumber> {
  static constexpr std::string_view list[] = {"compute_s", "peak_memory_bytes", "temperature_c",
                                              "sm_clock_mhz"};
};

/// Ranks of one node (or of the run if nodes are not known) for which one number differs from that of ranks
/// with the same work.
struct Outliers {
  RankNumber of = RankNumber::compute_s;
  std::string node;        ///< "": nodes are not known
  std::vector<int> ranks;  ///< the first kMostRanks of these ranks
  int count = 0;           ///< the number of these ranks
  int worst_rank = 0;
  double worst = 0, median = 0;  ///< value of worst_rank; median of its stage
  static constexpr size_t kMostRanks = 8;
  static void fields(auto& f, auto& r) {
    f("of", r.of);
    f("ranks", r.ranks);
    f("count", r.count);
    f("worst_rank", r.worst_rank);
    f("worst", r.worst);
    f("median", r.median);
    f.when(!r.node.empty(), "node", r.node);
  }
};

struct RankSpread {
  int count = 0;  ///< ranks that reported
  std::optional<Spread<double>> compute_s, wait_s;
  std::optional<Spread<uint64_t>> peak_memory_bytes;
  std::vector<Outliers> outliers;
  static void fields(auto& f, auto& r) {
    f("count", r.count);
    f.maybe("compute_s", r.compute_s);
    f.maybe("wait_s", r.wait_s);
    f.maybe("peak_memory_bytes", r.peak_memory_bytes);
    f.when(!r.outliers.empty(), "outliers", r.outliers);
  }
};

/// What the sensors of the GPUs report.
struct GpuSpread {
  std::optional<Spread<double>> temperature_c, power_w, sm_clock_mhz;
  bool empty() const { return !temperature_c && !power_w && !sm_clock_mhz; }
  static void fields(auto& f, auto& r) {
    f.maybe("temperature_c", r.temperature_c);
    f.maybe("power_w", r.power_w);
    f.maybe("sm_clock_mhz", r.sm_clock_mhz);
  }
};

/// How evenly the experts of all layers were used since the record before (expert_load.h).
struct ExpertSummary {
  int64_t step = 0, steps = 0;     ///< the last of these steps, and their number
  int64_t experts = 0, top_k = 0;  ///< of a layer
  double most = 0;                 ///< of the worst layer: tokens of its most used expert over the mean one's
  int most_layer = -1, most_expert = -1;
  double entropy = 1;  ///< of the layer with the lowest: LayerLoad::entropy
  int entropy_layer = -1;
  int64_t idle = 0;                       ///< experts without a token, of all layers
  int64_t idle_steps = 0;                 ///< how long the one has had none that has had none for longest
  int idle_layer = -1, idle_expert = -1;  ///< that one; -1: all have tokens
  std::optional<int64_t> dropped;         ///< slots over their expert's capacity; nullopt: it has none
  static void fields(auto& f, auto& r) {
    f("step", r.step);
    f("steps", r.steps);
    f("experts", r.experts);
    f("top_k", r.top_k);
    f("most", r.most);
    f("most_layer", r.most_layer);
    f("most_expert", r.most_expert);
    f("entropy", r.entropy);
    f("entropy_layer", r.entropy_layer);
    f("idle", r.idle);
    f.when(r.idle_steps > 0, "idle_steps", r.idle_steps);
    f.when(r.idle_layer >= 0, "idle_layer", r.idle_layer);
    f.when(r.idle_expert >= 0, "idle_expert", r.idle_expert);
    f.maybe("dropped", r.dropped);
  }
};

/// Seconds of each part of a step, as means over the ranks.
struct Phases {
  double forward_s = 0, backward_s = 0, communication_s = 0, optimizer_s = 0;
  /// Of communication_s: waits for rows of tokens from and to the ranks of experts, and for keys and values
  /// of context ranks. NaN: the mesh has no such ranks.
  double experts_s = kNaN, context_s = kNaN;
  /// Of communication_s: waits for the neighbours in the pipeline; and of the others, waits for ranks of
  /// the same stage that computed longer. NaN: recorded by a version that did not measure them.
  double pipeline_s = kNaN, stragglers_s = kNaN;
  double data_s = kNaN;
  double reporting_s = 0, evaluation_s = 0, checkpoint_s = 0;
  /// None of them is known.
  static constexpr Phases none() {
    return {kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN};
  }
  static constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  static void fields(auto& f, auto& r) {
    f.later("forward_s", r.forward_s);
    f.later("backward_s", r.backward_s);
    f.later("communication_s", r.communication_s);
    f.when(!std::isnan(r.experts_s), "experts_s", r.experts_s);
    f.when(!std::isnan(r.context_s), "context_s", r.context_s);
    f.when(!std::isnan(r.pipeline_s), "pipeline_s", r.pipeline_s);
    f.when(!std::isnan(r.stragglers_s), "stragglers_s", r.stragglers_s);
    f.later("optimizer_s", r.optimizer_s);
    f.later("data_s", r.data_s);
    f.later("reporting_s", r.reporting_s);
    f.later("evaluation_s", r.evaluation_s);
    f.later("checkpoint_s", r.checkpoint_s);
  }
};

/// The score of a multiple-choice task (eval.tasks); NaN: a likelihood was not finite.
struct TaskScore {
  std::string name;
  int64_t examples = 0;
  /// Of the examples whose right ending has the largest mean, or sum, of its tokens' log likelihoods.
  double accuracy = Phases::kNaN, accuracy_of_sums = Phases::kNaN;
  static void fields(auto& f, auto& r) {
    f("name", r.name);
    f("examples", r.examples);
    f.later("accuracy", r.accuracy);
    f.later("accuracy_of_sums", r.accuracy_of_sums);
  }
};

/// The loss of a step's targets of one source of data.
struct SourceLoss {
  std::string name;  ///< of the source, or its path
  double loss = std::numeric_limits<double>::quiet_NaN();
  int64_t targets = 0;  ///< as of StepScalars
  static void fields(auto& f, auto& r) {
    f("name", r.name);
    f.later("loss", r.loss);
    f("targets", r.targets);
  }
};

/// Numbers that a line does not have are NaN. Its size does not depend on the number of ranks.
struct StepLine {
  static constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

  double unix_s = kAbsent;       ///< when the step ended, by the clock of rank 0
  uint64_t attempt = 0;          ///< the epoch of the attempt that computed the step; 0: not known
  int64_t step = 0, tokens = 0;  ///< tokens of the run so far
  int64_t sample = -1;           ///< its first sample in the order of the data; -1: older lines lack it
  double loss = kAbsent, grad_norm = kAbsent, lr = kAbsent;
  double loss_scale = kAbsent;  ///< of a run in f16: that of the step's gradients; grad_norm is without it
  /// Of models with experts, means over sequences and layers: tokens of the most used expert over those of
  /// the mean one; the share of experts that no token has.
  double expert_load = kAbsent, idle_experts = kAbsent;
  std::vector<SourceLoss> sources;  ///< of those with targets in the step; empty: there is one source
  std::vector<double> mtp_losses;  ///< of the modules of multi-token prediction; `loss` is without them
  /// Where experts have a capacity: the slots of the step over it, of all layers; their share of all. A slot
  /// is a token and one of its experts.
  std::optional<int64_t> dropped_slots;
  double dropped_share = kAbsent;
  std::optional<ExpertSummary> experts;  ///< of some steps
  /// Of the state after the step (parallel/state_digest.h), the same on every mesh: 16 hex digits; "": none.
  std::string state_digest;
  /// So many replicas computed one micro-batch behind the step and got the same bits; 1: each rank twice.
  std::optional<int64_t> replayed;
  std::optional<double> val_loss;  ///< of an evaluation after this step
  std::vector<TaskScore> tasks;    ///< after this step
  bool skipped = false;            ///< loss or gradient norm were not finite; parameters were not updated
  bool overflow = false;           ///< `skipped` for the loss scale alone: loss_scale.h
  int64_t skipped_steps = 0;       ///< of the run so far, including this one, but for overflows
  int64_t overflows = 0;           ///< likewise
  /// The newest step whose state all ranks held in memory during this step; -1: a copy failed; nullopt: the
  /// attempt has begun none yet.
  std::optional<int64_t> staged_step;
  /// The newest step whose second copies all ranks had on other nodes during this step; else likewise.
  std::optional<int64_t> partner_step;
  int partner_nodes = 0;           ///< nodes that hold these copies
  double step_s = kAbsent;         ///< the longest of the ranks; without `ranks` that of rank 0
  double tokens_per_s = kAbsent, flops_per_s = kAbsent, flops_per_s_full_attention = kAbsent;
  double mfu = kAbsent, mfu_full_attention = kAbsent;  ///< shares of the devices' peak, if it is known
  std::optional<Phases> phases;
  std::optional<RankSpread> ranks;
  std::optional<GpuSpread> gpus;

  /// The share of the step that was spent waiting for data; NaN: not known.
  double data_wait() const { return phases ? phases->data_s / step_s : kAbsent; }
  /// The ranks' times of computing, if two or more reported: of one there is nothing to compare.
  const Spread<double>* compute() const {
    return ranks && ranks->count > 1 && ranks->compute_s ? &*ranks->compute_s : nullptr;
  }
  /// (slowest rank's compute time) / (median) - 1; NaN if fewer than two ranks reported.
  double skew() const { return compute() ? compute()->max / compute()->median - 1 : kAbsent; }

  static void fields(auto& f, auto& r) {
    const bool timed = !std::isnan(r.step_s), against_peak = !std::isnan(r.mfu);
    f.written("v", 1);
    // Older lines lack both.
    f.when(!std::isnan(r.unix_s), "t", r.unix_s);
    f.when(r.attempt > 0, "attempt", r.attempt);
    f.later("step", r.step);
    f.later("loss", r.loss);
    f.when(!std::isfinite(r.loss), "loss_kind", as_kind(r.loss));
    f.later("grad_norm", r.grad_norm);
    f.when(!std::isfinite(r.grad_norm), "grad_norm_kind", as_kind(r.grad_norm));
    f.later("lr", r.lr);
    f.when(!std::isnan(r.loss_scale), "loss_scale", r.loss_scale);
    f.later("tokens", r.tokens);
    f.when(r.sample >= 0, "sample", r.sample);
    f.when(!std::isnan(r.expert_load), "expert_load", r.expert_load);
    f.when(!std::isnan(r.idle_experts), "idle_experts", r.idle_experts);
    f.when(!r.sources.empty(), "sources", r.sources);
    f.when(!r.mtp_losses.empty(), "mtp_losses", r.mtp_losses);
    f.maybe("dropped_slots", r.dropped_slots);
    f.when(!std::isnan(r.dropped_share), "dropped_share", r.dropped_share);
    f.maybe("experts", r.experts);
    f.when(!r.state_digest.empty(), "state_digest", r.state_digest);
    f.maybe("replayed", r.replayed);
    f.maybe("val_loss", r.val_loss);
    if (r.val_loss) f.when(!std::isfinite(*r.val_loss), "val_loss_kind", as_kind(*r.val_loss));
    f.when(!r.tasks.empty(), "tasks", r.tasks);
    f.when(r.skipped, "skipped", r.skipped);
    f.when(r.overflow, "overflow", r.overflow);
    f.when(r.skipped_steps > 0, "skipped_steps", r.skipped_steps);
    f.when(r.overflows > 0, "overflows", r.overflows);
    f.maybe("staged_step", r.staged_step);
    f.maybe("partner_step", r.partner_step);
    f.when(r.partner_nodes > 0, "partner_nodes", r.partner_nodes);
    f.when(timed, "step_s", r.step_s);
    f.when(timed, "tokens_per_s", r.tokens_per_s);
    f.when(timed, "flops_per_s", r.flops_per_s);
    f.when(timed, "flops_per_s_full_attention", r.flops_per_s_full_attention);
    f.when(against_peak, "mfu", r.mfu);
    f.when(against_peak, "mfu_full_attention", r.mfu_full_attention);
    f.maybe("phases", r.phases);
    f.maybe("ranks", r.ranks);
    f.maybe("gpus", r.gpus);
  }
};

/// "hellaswag_val.bin 31.2 % (by sums 30.4 %)", one after another.
std::string scores_text(const std::vector<TaskScore>& tasks);
/// One JSON object, the fields in the order above.
std::string step_line_text(const StepLine& line);
/// The line as a view of the run shows it: text that is not such an object gives a line without numbers.
StepLine step_view(std::string_view text);
/// `line`, with what `timed` has and it has not: not every step reports the numbers of all ranks and devices.
StepLine with_times(StepLine line, const StepLine& timed);

}  // namespace trainctl
