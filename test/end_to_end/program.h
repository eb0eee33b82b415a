// Runs the real trainctl as a user would: child processes, files, exit statuses.
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

}  // namespace trainctl::test
