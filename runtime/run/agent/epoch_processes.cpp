#include "runtime/run/agent/epoch_processes.h"

#include <signal.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/run/wire/environment.h"

namespace trainctl {
namespace {

/// Between two looks whether killed processes are gone.
constexpr double kKillIntervalS = 0.005;
/// A process that outlives SIGKILL for so long hangs in the kernel; the epoch is reported gone with what is
/// left.
constexpr double kKillLimitS = 5;
/// mpirun ends every rank when it gets one of these, also where a scheduler sends it to all processes of
/// its job while the supervisor saves. It is ended by SIGKILL, and its ranks start with none blocked. Its
/// daemons on other nodes get no mask: a shell starts them, and dash clears it.
const std::vector<int> kNotForMpirun = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

}  // namespace

EpochProcesses::EpochProcesses(std::string mark, Clock& clock, Handler handler)
    : mark_(std::move(mark)), clock_(clock), handler_(std::move(handler)) {}

void EpochProcesses::start_rank(int rank, const std::vector<std::string>& argv,
                                const Environment& environment) {
  ENSURE(rank >= 0 && std::none_of(children_.begin(), children_.end(),
                                   [&](const Child& child) { return child.rank == rank; }),
         "rank {} was started", rank);
  children_.push_back({rank, 0, std::make_unique<ChildProcess>(argv, environment)});
}

void EpochProcesses::start_mpirun(const std::vector<std::string>& argv, const Environment& environment) {
  ENSURE(children_.empty(), "{} processes before mpirun", children_.size());
  children_.push_back(
      {-1, 0, std::make_unique<ChildProcess>(argv, environment, std::vector<std::string>{}, kNotForMpirun)});
}

void EpochProcesses::start_shell(int64_t request, const std::string& command,
                                 const Environment& environment) {
  if (std::any_of(children_.begin(), children_.end(),
                  [&](const Child& child) { return child.request == request; }))
    return;
  // mpirun writes a line for a shell; it may begin with assignments.
  const std::vector<std::string> words = {"/bin/sh", "-c", command};
  children_.push_back({-1, request, std::make_unique<ChildProcess>(words, environment)});
}

void EpochProcesses::add_to(std::vector<pollfd>& fds, bool hold_output) const {
  for (const Child& child : children_) {
    fds.push_back({.fd = hold_output ? -1 : child.process->output_fd(), .events = POLLIN, .revents = 0});
    if (!child.has_ended) fds.push_back({.fd = child.process->exit_fd(), .events = POLLIN, .revents = 0});
  }
}

void EpochProcesses::watch(bool hold_output) {
  for (Child& child : children_) {
    if (!hold_output) pass_output(child);
    const std::optional<int> status = child.process->reap();
    if (!status || child.has_ended) continue;
    child.has_ended = true;
    handler_.ending();
    pass_output(child);
    handler_.ended(child.rank, child.request, *status);
  }
}

void EpochProcesses::pass_output(Child& child) {
  std::string text = child.process->read_output();
  if (!text.empty()) handler_.output(child.rank, std::move(text));
}

bool EpochProcesses::owns(pid_t pid) const {
  return std::any_of(children_.begin(), children_.end(),
                     [&](const Child& child) { return child.process->pid() == pid && !child.has_ended; });
}

int EpochProcesses::kill_marked() const { return signal_marked(kAttemptVariable, mark_, SIGKILL); }

void EpochProcesses::kill_now(int tries) {
  for (; tries > 0 && kill_marked() > 0; --tries) clock_.sleep_s(kKillIntervalS);
}

void EpochProcesses::begin_to_kill() {
  if (killing_s_) return;
  killing_s_ = clock_.monotonic_s();
  next_kill_s_ = 0;
}

std::optional<int> EpochProcesses::kill_step() {
  const double now_s = clock_.monotonic_s();
  if (!killing_s_ || now_s < next_kill_s_) return std::nullopt;
  // The limit counts from the first kill: this process may have been stopped before it.
  if (next_kill_s_ == 0) killing_s_ = now_s;
  // A process may have been starting while the others were killed: until none is left.
  const int left = kill_marked();
  next_kill_s_ = now_s + kKillIntervalS;
  if (left > 0 && now_s - *killing_s_ < kKillLimitS) return std::nullopt;
  return left;
}

double EpochProcesses::deadline_s() const {
  return killing_s_ ? next_kill_s_ : std::numeric_limits<double>::infinity();
}

}  // namespace trainctl
