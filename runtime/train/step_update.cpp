#include "runtime/train/step_update.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl {

StepScalars exchange_scalars(const JobSpec& job, RankResources& rank, Control& control, const Saver& saver,
                             const OwnScalars& own) {
  StepSums sums;
  rank.params->add_gradient_squares(sums.squares);
  // The stream has come to its end: the losses are there.
  if (rank.owns_losses())
    for (const double loss : std::span(rank.loss_sums(), size_t(job.micro_batches_of(rank.at.dp))))
      sums.loss.add(loss);
  rank.comms.check();
  sums.stop = control.stop_level() != StopLevel::none;
  sums.saves = saver.under_way();
  sums.due = own.due;
  sums.trace = own.trace;
  sums.not_copied = saver.newest_copy() != saver.newest_staged();
  const Saver::TwoSteps begun = saver.second_copies_begun(), whole = saver.second_copies();
  for (size_t i = 0; i < 2; ++i)
    sums.second_not_copied[i] =
        begun[i] < 0 || std::find(whole.begin(), whole.end(), begun[i]) == whole.end();
  rank.comms.sum(sums);
  StepScalars s;
  s.line.loss = sums.loss.value() / double(job.tokens_per_step());
  s.line.grad_norm = std::sqrt(sums.squares.value());
  s.stop = sums.stop;
  s.saves = sums.saves;
  s.due = sums.due;
  s.trace = sums.trace;
  if (saver.newest_staged() >= 0) s.line.staged_step = sums.not_copied ? -1 : saver.newest_staged();
  // Of the two copies that were begun last.
  if (begun[0] >= 0)
    s.line.partner_step =
        !sums.second_not_copied[0] ? begun[0] : !sums.second_not_copied[1] ? begun[1] : -1;
  return s;
}

StepFate apply_or_skip(const JobSpec& job, const StepLine& line, TrainingState& state, RankResources& rank,
                       Control& control, Saver& saver) {
  BadSteps& bad_steps = state.bad_steps;
  const int64_t step = state.step;
  const StepFate fate = fate_of_step(line.loss, line.grad_norm, bad_steps, job.fault_tolerance.skip_bad_steps);
  if (fate == StepFate::apply) {
    saver.state_changes();
    rank.params->step(adamw_step(job, step, bad_steps.total, line.grad_norm));
    bad_steps = after_step(bad_steps, fate);
    state.last_loss = line.loss;
    return fate;
  }
  const std::string what = what_is_bad(line.loss, line.grad_norm);
  const double lr = learning_rate(job.schedule, step);
  if (fate == StepFate::stop)
    throw Error(ErrorCode::kDiverged,
                fmt::format("{} at step {} (lr {:.3g}), after {} skipped step{} in a row "
                            "(fault_tolerance.skip_bad_steps = {}); the "
                            "parameters are those of step {}",
                            what, step + 1, lr, bad_steps.in_a_row, bad_steps.in_a_row == 1 ? "" : "s",
                            job.fault_tolerance.skip_bad_steps, step - bad_steps.in_a_row));
  bad_steps = after_step(bad_steps, fate);
  if (rank.world.rank() == 0)
    control.event(EventKind::step_skipped, dump_json(Json{{"step", step + 1},
                                                                    {"reason", what},
                                                                    {"lr", lr},
                                                                    {"in_a_row", bad_steps.in_a_row},
                                                                    {"total", bad_steps.total}}));
  return fate;
}

kernels::AdamWStep adamw_step(const JobSpec& job, int64_t step, int64_t skipped, double grad_norm) {
  kernels::AdamWStep a;
  a.lr = float(learning_rate(job.schedule, step));
  a.beta1 = float(job.optimizer.beta1);
  a.beta2 = float(job.optimizer.beta2);
  a.eps = float(job.optimizer.eps);
  if (job.optimizer.grad_clip > 0)
    a.grad_scale = float(std::min(1.0, job.optimizer.grad_clip / (grad_norm + 1e-6)));
  // Counts the updates that were made: a skipped step changed no moment.
  const double updates = double(step + 1 - skipped);
  a.bias_correction1 = float(1.0 - std::pow(job.optimizer.beta1, updates));
  a.bias_correction2 = float(1.0 - std::pow(job.optimizer.beta2, updates));
  return a;
}

}  // namespace trainctl
