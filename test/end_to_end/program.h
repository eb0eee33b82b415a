// Runs the real trainctl as a user would: child processes, files, exit statuses.
//
// The program has limits of its own: ranks and nodes that say nothing are taken for dead, exchanges have
// deadlines. Here they are so long that none passes on a slow machine (TRAINCTL_SET__... in the environment
// of all programs), so that nothing fails which a test did not break. A test that is about a limit sets it.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "test/support/child.h"

namespace trainctl::test {

std::string trainctl_path();
/// The same program on an emulated GPU.
std::string emulated_trainctl_path();
Outcome run_trainctl(const std::string& directory, std::vector<std::string> arguments, double seconds = 120,
                 const std::vector<std::string>& extra_environment = {});

/// The one run directory in directory/runs whose name starts with `name`.
std::string run_of(const std::string& directory, const std::string& name);
int line_count(const std::string& path);
std::vector<double> losses_of(const std::string& run);
/// The folder of the run on the memory file system; "" if there is none.
std::string memory_of(const std::string& run);
/// The events of this kind of a run, in order.
std::vector<Json> events_of(const std::string& run, const std::string& kind);
/// The events `loaded` of a run, as "memory 9".
std::vector<std::string> loads_of(const std::string& run);
/// Pids of the ranks that wrote the newest heading of their log.
std::vector<pid_t> rank_pids(const std::string& run, int ranks);
/// Whether that process exists and is a trainctl rank.
bool rank_alive(pid_t pid);
/// Whether that process is stopped by a signal.
bool rank_stopped(pid_t pid);
/// The variable by which rank `rank` stops itself at the forward pass of a step; for the epochs 1, 2, ... in
/// turn. A run in which one is stopped does not end while the test acts.
struct StopInStep {
  int rank;
  int64_t step;
};
std::string stop_variable(const std::vector<StopInStep>& of_epochs);
/// Waits until rank `rank` of `ranks` has stopped itself in that epoch. Returns the processes of all ranks.
std::vector<pid_t> await_stopped_rank(Child& child, const std::string& run, int ranks, int rank,
                                      int epoch = 1);
/// Waits until each of `ranks` ranks but `stopped` has heard that the run is to save and stop. Ranks leave
/// together, after the step in which one of them has heard it: with `stopped` going on again, after this one.
void await_stop_heard(Child& child, const std::string& run, int ranks, int stopped);

}  // namespace trainctl::test
