#include "runtime/train/step_report.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "kernels/device.h"
#include "runtime/base/file_system.h"
#include "runtime/base/process_memory.h"
#include "runtime/machine/rank_device.h"
#include "runtime/train/schedule.h"

namespace trainctl {

ReportsDue reports_due(const ObservabilitySpec& observability, int64_t step, int64_t last, int ranks) {
  const int64_t every = observability.rank_metrics_every_steps, log_every = observability.log_every_steps;
  // Of so many logged steps one has times.
  const int64_t logs = ranks / kMostTimesAStep + (ranks % kMostTimesAStep != 0);
  const bool end = step == last || step == 1;
  ReportsDue due{.log = step % log_every == 0 || end,
                 .ranks = every > 0 && (step % every == 0 || step == last)};
  due.times = due.ranks || end || (due.log && step / log_every % logs == 0);
  return due;
}

namespace {

/// The peak FLOP/s of all devices of the run together. Ranks that share cores or a GPU share its peak.
/// Collective; rank 0 measures the peak if it is not known.
///   known   of a rank; 0: it is not known
double all_ranks_peak(const DeviceUse& use, double known, parallel::Communicator& world,
                      kernels::Backend& backend) {
  if (backend.is_host()) {
    const double cores = std::max(1u, std::thread::hardware_concurrency());
    return known * std::min(double(world.size()), std::max(1.0, cores / use.threads_per_rank));
  }
  const double gpus = std::ceil(double(world.size()) / use.ranks_per_gpu);
  if (known > 0) return known * gpus;
  // A GPU that no table knows: one rank measures it.
  const double measured = world.rank() == 0 ? kernels::measure_matmul_flops_per_s(backend, use.compute) : 0;
  return measured * gpus;
}

}  // namespace

StepReporter::StepReporter(const RankOptions& options, RankResources& rank, Control& control)
    : observability_(rank.job.observability),
      tokens_per_step_(rank.job.tokens_per_step()),
      options_(options),
      rank_(rank),
      control_(control),
      flops_(flops_per_token(model_plan(rank.job.model), rank.job.data.seq_len)),
      peak_flops_per_s_(all_ranks_peak(rank.job, options.matmul_flops_per_s, rank.world, rank.backend)) {
  if (options.gpu >= 0) gpu_watch_ = std::make_unique<GpuWatch>(kernels::open_gpu_readings(options.gpu));
}

void StepReporter::report(StepLine line, const RankTimes& times, int64_t last,
                          const std::optional<ExpertSlots>& slots) {
  const ReportsDue due = reports_due(observability_, line.step, last, rank_.world.size());
  if (due.times) control_.report_times(line.step, with_readings(times));
  if (rank_.world.rank() != 0) return;
  // Milliseconds: what is finer says nothing about a step.
  line.unix_s = std::round(real_clock().unix_s() * 1e3) / 1e3;
  line.attempt = options_.epoch;
  if (slots) line.experts = expert_summary(*slots, line.step);
  // Each node holds the copies of one other.
  if (line.partner_step.value_or(-1) >= 0) line.partner_nodes = int(options_.nodes.size());
  // A peak that was measured on busy cores: a step that beats it shows that it is higher.
  const double reached = double(tokens_per_step_) * flops_.causal / std::max(1e-9, times.step_s);
  if (rank_.backend.is_host() && peak_flops_per_s_ > 0)
    peak_flops_per_s_ = std::max(peak_flops_per_s_, reached);
  const StepWork work{.tokens = tokens_per_step_,
                      .flops_per_token_causal = flops_.causal,
                      .flops_per_token_full = flops_.full,
                      .peak_flops_per_s = peak_flops_per_s_,
                      .stages = rank_.mesh.pp};
  // Where no times of the other ranks come, this rank's own: each step waits for all of them.
  StepReport report{.line = with_speed(std::move(line), work, times.step_s),
                    .log = due.log,
                    .work = std::nullopt,
                    .each_rank = due.ranks};
  if (due.times) report.work = work;
  if (slots)
    report.experts =
        expert_line(options_.epoch, report.line.step, *slots,
                    has_expert_map(report.line.step, last, observability_.rank_metrics_every_steps,
                                   slots->layers.size(), slots->experts));
  control_.report(report);
}

RankTimes StepReporter::with_readings(RankTimes times) const {
  const kernels::Backend& backend = rank_.backend;
  times.peak_bytes = double(backend.is_host() ? peak_resident_bytes() : backend.peak_allocated_bytes());
  if (!gpu_watch_) return times;
  const kernels::GpuReadings now = gpu_watch_->last();
  times.temperature_c = now.temperature_c.value_or(NAN);
  times.power_w = now.power_w.value_or(NAN);
  times.sm_clock_mhz = now.sm_clock_mhz.value_or(NAN);
  return times;
}

}  // namespace trainctl
