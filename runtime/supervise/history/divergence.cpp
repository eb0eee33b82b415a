#include "runtime/supervise/history/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/supervise/history/branch.h"
#include "runtime/machine/mpirun.h"
#include "runtime/run/record/console.h"

namespace trainctl {
namespace {

double recorded_loss(const ckpt::StateInfo& state) {
  const Json extra = try_parse_json(state.extra_json);
  return extra.is_object() && extra.contains("loss") && extra["loss"].is_number() ? extra["loss"].get<double>() : NAN;
}

std::vector<SavedLoss> saved_losses(FileSystem& fs, const std::string& checkpoints) {
  std::vector<SavedLoss> saved;
  if (!fs.exists(checkpoints)) return saved;
  for (const int64_t step : ckpt::list_steps(fs, checkpoints)) {
    try {
      saved.push_back({step, recorded_loss(ckpt::Checkpoint::open(fs, ckpt::step_directory(checkpoints, step))->state())});
    } catch (const Error&) {
      // A damaged checkpoint is no place to branch from.
    }
  }
  return saved;
}

double first_loss(FileSystem& fs, const RunDirectory& run) {
  if (!fs.exists(run.metrics())) return NAN;
  const std::string metrics = fs.read_text(run.metrics());
  return step_view(metrics.substr(0, metrics.find('\n'))).loss;
}

}  // namespace

std::optional<int64_t> branch_point(std::span<const SavedLoss> saved, double first_loss) {
  constexpr double kTolerated = 1.25, kLearned = 0.97;
  double lowest = std::numeric_limits<double>::infinity();
  for (const SavedLoss& s : saved)
    if (std::isfinite(s.loss)) lowest = std::min(lowest, s.loss);
  std::optional<int64_t> newest;
  for (const SavedLoss& s : saved)
    if (std::isfinite(s.loss) && s.loss <= kTolerated * lowest && !(s.loss > kLearned * first_loss) && s.step > newest.value_or(-1))
      newest = s.step;
  return newest;
}

double lower_learning_rate(double lr) { return lr / 2 > 3e-3 ? 3e-4 : lr / 2; }

std::string divergence_advice(FileSystem& fs, const JobSpec& job, const RunDirectory& run) {
  const double lr = lower_learning_rate(job.schedule.lr);
  std::vector<std::string> overrides = {fmt::format("schedule.lr={:g}", lr)};
  if (job.schedule.min_lr > lr) overrides.push_back(fmt::format("schedule.min_lr={:g}", lr / 10));
  if (const auto step = branch_point(saved_losses(fs, run.checkpoints(job.checkpoint)), first_loss(fs, run)))
    return branch_command(run.path, step, overrides);
  LaunchLine line{.argv = {"trainctl", "launch", run.job()}};
  // A branch begins again where it left its parent; another run begins anew.
  if (const auto identity = read_identity(fs, run); identity && !identity->parent_checkpoint.empty())
    line.argv.insert(line.argv.end(), {"--from", identity->parent_checkpoint});
  // The saved spec may hold this run's own id, which the new run must not take.
  if (!job.observability.run_id.empty()) overrides.push_back("observability.run_id=");
  for (const std::string& override : overrides) line.argv.insert(line.argv.end(), {"-s", override});
  return shell_text(line);
}

}  // namespace trainctl
