#include "runtime/train/step_update.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/train/measure/expert_load.h"

namespace trainctl {

namespace {

/// The highest index of a parameter that any rank names; -1: none does.
struct LastBadGradient {
  int param = -1;
  void add(const LastBadGradient& other) { param = std::max(param, other.param); }
};

/// The optimizer's factors for a step after which the parameters have changed `updates` times: a skipped
/// step changes no moment, and does not count for the bias correction.
///   of_gradients   StepScalars::of_gradients: gradients are means over the tokens of the step, times the
///                  loss scale
parallel::UpdateStep update_step(const OptimizerSpec& optimizer, double lr, int64_t updates, double grad_norm,
                                 double of_gradients) {
  parallel::UpdateStep step;
  kernels::AdamWStep& a = step.adamw;
  a.lr = float(lr);
  a.beta1 = float(optimizer.beta1);
  a.beta2 = float(optimizer.beta2);
  a.eps = float(optimizer.eps);
  const double clip = optimizer.grad_clip > 0 ? std::min(1.0, optimizer.grad_clip / (grad_norm + 1e-6)) : 1.0;
  a.grad_scale = float(clip * of_gradients);
  a.bias_correction1 = float(1.0 - std::pow(optimizer.beta1, double(updates)));
  a.bias_correction2 = float(1.0 - std::pow(optimizer.beta2, double(updates)));
  a.update = uint32_t(updates);
  step.lion = {
      .lr = a.lr, .beta1 = a.beta1, .beta2 = a.beta2, .grad_scale = a.grad_scale, .update = a.update};
  step.sgd = {
      .lr = a.lr, .momentum = float(optimizer.momentum), .grad_scale = a.grad_scale, .update = a.update};
  step.muon = {.lr = a.lr, .momentum = float(optimizer.momentum), .grad_scale = a.grad_scale};
  if (optimizer.ema_decay > 0) step.ema_decay = float(optimizer.ema_decay);
  return step;
}

/// Every token of a step goes to top_k experts of each layer that has some.
kernels::BalanceStep balance_step(const JobSpec& job) {
  const MoeSpec& moe = job.model.moe;
  if (moe.num_experts == 0) return {};
  return {float(moe.bias_update_rate), moe.mean_count(job.tokens_per_step())};
}

}  // namespace

void ExpertUse::count(const int32_t* counts, int64_t rows, int64_t experts_of_row) {
  for (int64_t row = 0; row < rows; ++row, counts += experts_of_row) {
    const int32_t* const end = counts + experts_of_row;
    largest += *std::max_element(counts, end);
    idle += std::count(counts, end, 0);
    slots += std::accumulate(counts, end, int64_t{0});
  }
  sequences += rows, experts += rows * experts_of_row;
}

void ExpertUse::count_drops(const int32_t* counts, const StageModel::ExpertCounts& of, int64_t rows) {
  dropped += dropped_slots({counts, size_t(rows * of.experts)}, of.experts, of.of_source, of.capacity);
}

TargetCounts step_targets(RankResources& rank) {
  const JobSpec& job = rank.job;
  if (job.model.mtp.num_layers == 0) return {};
  if (!job.data.masks_targets())
    return all_targets(job.batch.global_sequences, job.data.seq_len, job.model.mtp.num_layers);
  TargetCounts targets = rank.owns_losses() ? rank.tokens->targets() : TargetCounts{};
  rank.comms.sum(targets);
  return targets;
}

StepEnd::StepEnd(RankResources& rank, Control& control, Saver& saver)
    : rank_(rank),
      control_(control),
      saver_(saver),
      tokens_per_step_(rank.job.tokens_per_step()),
      skip_bad_steps_(rank.job.fault_tolerance.skip_bad_steps),
      may_drop_(rank.job.model.moe.num_experts > 0 && rank.job.model.moe.capacity_factor > 0),
      balance_(balance_step(rank.job)),
      quantiles_(rank),
      sources_(rank),
      optimizer_(rank.job.optimizer),
      schedule_(rank.job.schedule) {}

std::vector<double> StepEnd::mtp_losses(const TargetCounts& targets) const {
  const int modules = int(rank_.plan.batch.mtp);
  if (modules == 0) return {};
  MtpSums sums;
  const StageModel& model = *rank_.model;
  for (int64_t mb = 0; rank_.owns_losses() && mb < rank_.plan.counted_micro_batches; ++mb)
    for (int i = 0; i < modules * model.losses(); ++i)
      sums.losses[size_t(i / model.losses())].add(
          rank_.loss_sums()[mb * model.loss_sums() + model.losses() + i]);
  rank_.comms.sum(sums);
  std::vector<double> losses;
  for (int i = 0; i < modules; ++i)  // without a target: 0
    losses.push_back(sums.losses[size_t(i)].value() /
                     double(std::max<int64_t>(1, targets.modules[size_t(i)])));
  return losses;
}

StepScalars StepEnd::exchange(const OwnScalars& own, const TargetCounts& targets, double loss_scale) {
  StepSums sums;
  rank_.params->add_gradient_squares(sums.squares);
  // The stream has come to its end: the losses are there.
  const int64_t micro_batches = rank_.plan.counted_micro_batches;
  for (int64_t mb = 0; rank_.owns_losses() && mb < micro_batches; ++mb)
    for (int i = 0; i < rank_.model->losses(); ++i)
      sums.loss.add(rank_.loss_sums()[mb * rank_.model->loss_sums() + i]);
  if (rank_.owns_losses()) sums.targets = rank_.tokens->targets_weight();
  if (rank_.expert_counts) {
    const StageModel::ExpertCounts of = StageModel::expert_counts(rank_.plan.uses);
    const auto* const counts = static_cast<const int32_t*>(rank_.expert_counts->data());
    const int64_t rows = of.layers * of.sequences * micro_batches;
    sums.experts.count(counts, rows, of.experts);
    sums.experts.count_drops(counts, of, rows);
  }
  rank_.comms.check();
  sums.stop = control_.stop_level() != StopLevel::none;
  sums.saves = saver_.under_way();
  sums.due = own.due;
  sums.trace = own.trace;
  sums.not_copied = saver_.newest_copy() != saver_.newest_staged();
  const Saver::TwoSteps begun = saver_.second_copies_begun(), whole = saver_.second_copies();
  for (size_t i = 0; i < 2; ++i)
    sums.second_not_copied[i] =
        begun[i] < 0 || std::find(whole.begin(), whole.end(), begun[i]) == whole.end();
  rank_.comms.sum(sums);
  StepScalars s;
  s.targets = sums.targets;
  s.line.loss = sums.loss.value() / double(s.targets);
  if (s.targets > 0) s.of_tokens = double(tokens_per_step_) / double(s.targets);
  s.of_gradients = s.of_tokens / loss_scale;
  s.line.grad_norm = std::sqrt(sums.squares.value()) * s.of_gradients;
  if (sums.experts.slots > 0)
    s.line.expert_load = sums.experts.load(), s.line.idle_experts = sums.experts.idle_share();
  if (rank_.job.compute == DType::f16) s.line.loss_scale = loss_scale;
  s.line.sources = sources_.of_step();
  s.line.mtp_losses = mtp_losses(targets);
  if (sums.experts.slots > 0 && may_drop_)
    s.line.dropped_slots = sums.experts.dropped, s.line.dropped_share = sums.experts.dropped_share();
  s.stop = sums.stop;
  s.saves = sums.saves;
  s.due = sums.due;
  s.trace = sums.trace;
  if (saver_.newest_staged() >= 0) s.line.staged_step = sums.not_copied ? -1 : saver_.newest_staged();
  // Of the two copies that were begun last.
  if (begun[0] >= 0)
    s.line.partner_step = !sums.second_not_copied[0] ? begun[0] : !sums.second_not_copied[1] ? begun[1] : -1;
  return s;
}

StepFate StepEnd::apply_or_skip(const StepScalars& scalars, TrainingState& state) {
  const StepFate fate = decide(scalars, state);
  quantiles_.clear();
  return fate;
}

StepFate StepEnd::decide(const StepScalars& scalars, TrainingState& state) {
  const StepLine& line = scalars.line;
  BadSteps& bad_steps = state.bad_steps;
  const int64_t step = state.step;
  if (scalars.targets == 0) {
    ++bad_steps.total;  // nothing is wrong: it does not count towards the end of the run
    report_skip(state, 0, "no target of the step counts (data.documents, data.loss)");
    return StepFate::skip;
  }
  if (is_overflow(line, state.loss_scale, rank_.job)) {
    skip_overflow(state, scalars);
    return StepFate::skip;
  }
  const StepFate fate = fate_of_step(line.loss, line.grad_norm, bad_steps, skip_bad_steps_);
  const double lr = learning_rate(schedule_, step, state.remedies);
  if (fate == StepFate::apply) {
    saver_.state_changes();
    parallel::UpdateStep update =
        update_step(optimizer_, lr, step + 1 - bad_steps.total, line.grad_norm, scalars.of_gradients);
    update.balance = balance_;
    quantiles_.update();
    rank_.params->step(update);
    bad_steps = after_step(bad_steps, fate);
    state.loss_scale = after_step(state.loss_scale, fate, rank_.job.loss_scale);
    state.last_loss = line.loss;
    return fate;
  }
  const std::string what = what_is_bad(line.loss, line.grad_norm);
  const int64_t unchanged = bad_steps.in_a_row + state.loss_scale.overflows_in_a_row;
  if (fate == StepFate::stop)
    throw Error(ErrorCode::kDiverged,
                fmt::format("{} at step {} (lr {:.3g}), after {} skipped step{} in a row "
                            "(fault_tolerance.skip_bad_steps = {}); the "
                            "parameters are those of step {}{}",
                            what, step + 1, lr, bad_steps.in_a_row, bad_steps.in_a_row == 1 ? "" : "s",
                            skip_bad_steps_, step - unchanged, at_floor(line, state)));
  bad_steps = after_step(bad_steps, fate);
  state.loss_scale = after_step(state.loss_scale, fate, rank_.job.loss_scale);
  report_skip(state, scalars.targets, what);
  return fate;
}

std::string StepEnd::at_floor(const StepLine& line, const TrainingState& state) {
  if (!is_at_floor(line, state.loss_scale, rank_.job)) return "";
  LastBadGradient last{rank_.params->last_bad_gradient()};
  rank_.comms.sum(last);
  const std::vector<Param>& params = rank_.tables.params.params;
  return floor_text(rank_.job.loss_scale,
                    last.param < 0 ? "no parameter" : params[size_t(last.param)].layout.name);
}

/// Nothing is wrong with the state or the data: it does not count towards the end of the run.
void StepEnd::skip_overflow(TrainingState& state, const StepScalars& scalars) {
  const double scale = state.loss_scale.value;
  state.loss_scale = after_overflow(state.loss_scale, rank_.job.loss_scale);
  ++state.bad_steps.total, ++state.bad_steps.overflows;
  report_skip(state, scalars.targets,
              fmt::format("{} with a loss scale of {:.0f}",
                          what_is_bad(scalars.line.loss, scalars.line.grad_norm), scale),
              state.loss_scale.value);
}

void StepEnd::report_skip(const TrainingState& state, int64_t targets, const std::string& why,
                          std::optional<double> scale) {
  if (rank_.world.rank() != 0) return;
  const BadSteps& bad_steps = state.bad_steps;
  Json event{{"step", state.step + 1},
             {"reason", why},
             {"targets", targets},
             {"lr", learning_rate(schedule_, state.step, state.remedies)},
             {"in_a_row", bad_steps.in_a_row},
             {"total", bad_steps.total}};
  if (scale) event["loss_scale"] = *scale;
  control_.event(EventKind::step_skipped, dump_json(event));
}

}  // namespace trainctl
