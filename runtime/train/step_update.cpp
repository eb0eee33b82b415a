#include "runtime/train/step_update.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl {

StepScalars exchange_scalars(const JobSpec& job, RankResources& rank, Control& control, const Saver& saver,
                             double due) {
  const size_t chunks = size_t(rank.tables.grids.total);
  const size_t all_mb = size_t(job.batch.global_sequences / job.batch.micro_sequences);
  std::vector<double> values(chunks + all_mb + 8, 0.0);
  rank.params->add_gradient_squares(rank.tables.grids.first_chunk, std::span(values).first(chunks));
  // The stream has come to its end: the losses are there.
  const size_t own_mb = all_mb / size_t(rank.mesh.dp);
  if (rank.owns_losses())
    std::copy_n(rank.loss_sums(), own_mb, values.begin() + ptrdiff_t(chunks + size_t(rank.at.dp) * own_mb));
  rank.comms.check();
  const SavesUnderWay saves = saver.under_way();
  double* const votes = values.data() + chunks + all_mb;
  votes[0] = control.stop_level() != StopLevel::none;
  votes[1] = saves.writing;
  votes[2] = saves.holds;
  votes[3] = due;
  votes[4] = saver.newest_copy() != saver.newest_staged();
  const Saver::TwoSteps begun = saver.second_copies_begun(), whole = saver.second_copies();
  for (size_t i = 0; i < begun.size(); ++i)
    votes[5 + i] = begun[i] < 0 || std::find(whole.begin(), whole.end(), begun[i]) == whole.end();
  votes[7] = saves.lost;
  rank.comms.sum(values);
  StepScalars s;
  double squares = 0;
  for (size_t i = 0; i < chunks; ++i) squares += values[i];
  for (size_t i = chunks; i < chunks + all_mb; ++i) s.loss += values[i];
  s.loss /= double(job.tokens_per_step());
  s.grad_norm = std::sqrt(squares);
  s.stop = votes[0] > 0;
  s.saves = {.writing = votes[1] > 0, .holds = votes[2] > 0, .lost = votes[7] > 0};
  s.due = SaveSet(votes[3]);
  if (saver.newest_staged() >= 0) s.staged_step = votes[4] > 0 ? -1 : saver.newest_staged();
  if (begun[0] >= 0) s.partner_step = votes[5] == 0 ? begun[0] : votes[6] == 0 ? begun[1] : -1;
  return s;
}

StepFate apply_or_skip(const JobSpec& job, const StepScalars& s, TrainingState& state, RankResources& rank,
                       Control& control, Saver& saver) {
  BadSteps& bad_steps = state.bad_steps;
  const int64_t step = state.step;
  const StepFate fate = fate_of_step(s.loss, s.grad_norm, bad_steps, job.fault_tolerance.skip_bad_steps);
  if (fate == StepFate::apply) {
    saver.state_changes();
    rank.params->step(adamw_step(job, step, bad_steps.total, s.grad_norm));
    bad_steps = after_step(bad_steps, fate);
    state.last_loss = s.loss;
    return fate;
  }
  const std::string what = what_is_bad(s.loss, s.grad_norm);
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
    control.event(EventKind::step_skipped, dump_json(nlohmann::json{{"step", step + 1},
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
