#include "runtime/supervise/batch_host.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <ctime>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/supervise/slurm_commands.h"

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

OrphanAct orphan_act(const std::string& own, const std::optional<SlurmJob>& job,
    const std::string& batch_host,
                     const std::vector<std::pair<std::string, std::string>>& states) {
  if (!job || job->state != "RUNNING") return OrphanAct::leave;
  bool batch_host_heard = true;
  std::string first;
  for (const auto& [name, state] : states) {
    if (name == batch_host) batch_host_heard = heard(state);
    const bool has = std::find(job->nodes.begin(), job->nodes.end(), name) != job->nodes.end();
    if (first.empty() && name != batch_host && has && heard(state)) first = name;
  }
  return !batch_host_heard && first == own ? OrphanAct::requeue : OrphanAct::wait;
}

void give_back_lost_job(const SlurmAllocation& allocation) {
  std::vector<std::string> nodes;
  for (const SlurmNode& node : allocation.nodes) nodes.push_back(node.name);
  const SlurmCommands slurm;
  const double until_s = real_clock().monotonic_s() + kLimitS;
  fmt::print("waiting for what Slurm says about {}, where the supervisor ran\n", nodes.front());
  while (real_clock().monotonic_s() < until_s && !terminated_within(kAskEveryS)) try {
      if (!slurm.is_batch(allocation.job_id)) return;  // salloc: nothing could start it again
      switch (orphan_act(allocation.this_node, slurm.job(allocation.job_id), nodes.front(),
          slurm.states_of(nodes))) {
        case OrphanAct::wait:
          break;
        case OrphanAct::leave:
          return;
        case OrphanAct::requeue:
          fmt::print("Slurm hears nothing from {}, where the supervisor ran: job {} goes back to the queue\n",
                     nodes.front(), allocation.job_id);
          return slurm.requeue(allocation.job_id);
      }
    } catch (const Error& error) {
      fmt::print("{}\n", error.what());
      std::fflush(stdout);
    }
}

}  // namespace trainctl
