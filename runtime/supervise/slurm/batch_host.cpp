#include "runtime/supervise/slurm/batch_host.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <ctime>
#include <functional>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/supervise/slurm/slurm_commands.h"

namespace trainctl {
namespace {

constexpr double kAskEveryS = 3;
constexpr double kLimitS = 1800;

bool heard(const std::string& state) { return !state.ends_with('*') && !state.starts_with("down"); }

/// True when SIGTERM comes, which Slurm sends to the job that another agent gave back.
bool terminated_within(double seconds) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  const timespec limit{.tv_sec = time_t(seconds), .tv_nsec = 0};
  return ::sigtimedwait(&set, nullptr, &limit) == SIGTERM;
}

}  // namespace

bool batch_host_heard(const std::string& batch_host, const NodeStates& states) {
  return std::none_of(states.begin(), states.end(),
                      [&](const auto& state) { return state.first == batch_host && !heard(state.second); });
}

OrphanAct orphan_act(const std::string& own, const std::optional<SlurmJob>& job,
                     const std::string& batch_host, const NodeStates& states) {
  if (!job || job->state != SlurmState::running) return OrphanAct::leave;
  std::string first;
  for (const auto& [name, state] : states) {
    const bool has = std::find(job->nodes.begin(), job->nodes.end(), name) != job->nodes.end();
    if (first.empty() && name != batch_host && has && heard(state)) first = name;
  }
  return !batch_host_heard(batch_host, states) && first == own ? OrphanAct::requeue : OrphanAct::wait;
}

namespace {

/// Asks Slurm again and again; `look` says whether that was enough.
void watch_job(const SlurmAllocation& allocation,
               const std::function<bool(const SlurmCommands& slurm, const std::optional<SlurmJob>& job,
                                        const std::string& batch_host, const NodeStates& states)>& look) {
  std::vector<std::string> nodes;
  for (const SlurmNode& node : allocation.nodes) nodes.push_back(node.name);
  const SlurmCommands slurm;
  const double until_s = real_clock().monotonic_s() + kLimitS;
  fmt::print("waiting for what Slurm says about {}, where the supervisor ran\n", nodes.front());
  std::fflush(stdout);
  while (real_clock().monotonic_s() < until_s && !terminated_within(kAskEveryS)) try {
      if (!slurm.is_batch(allocation.job_id)) return;  // salloc: a person ends it
      if (look(slurm, slurm.job(allocation.job_id), nodes.front(), slurm.states_of(nodes))) return;
    } catch (const Error& error) {
      fmt::print("{}\n", error.what());
      std::fflush(stdout);
    }
}

}  // namespace

void give_back_lost_job(const SlurmAllocation& allocation) {
  watch_job(allocation, [&](const SlurmCommands& slurm, const std::optional<SlurmJob>& job,
                            const std::string& batch_host, const NodeStates& states) {
    const OrphanAct act = orphan_act(allocation.this_node, job, batch_host, states);
    if (act != OrphanAct::requeue) return act == OrphanAct::leave;
    fmt::print("Slurm hears nothing from {}, where the supervisor ran: job {} goes back to the queue\n",
               batch_host, allocation.job_id);
    std::fflush(stdout);
    slurm.requeue(allocation.job_id);
    return true;
  });
}

void end_lost_job(const SlurmAllocation& allocation) {
  watch_job(allocation, [&](const SlurmCommands& slurm, const std::optional<SlurmJob>& job,
                            const std::string& batch_host, const NodeStates& states) {
    if (!job || job->state != SlurmState::running) return true;
    if (batch_host_heard(batch_host, states)) return false;
    fmt::print("Slurm hears nothing from {}, where the supervisor ran: job {} is cancelled, its run has ended"
               "\n",
               batch_host, allocation.job_id);
    std::fflush(stdout);
    slurm.cancel(allocation.job_id);
    return true;
  });
}

}  // namespace trainctl
