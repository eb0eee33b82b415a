// Starter decides what starts the ranks: the agents through PMIx, or mpirun. If the job leaves it open
// (launcher.start = auto), it chooses PMIx where PMIx works.
#pragma once
#include <optional>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/base/problem.h"
#include "runtime/machine/mpirun.h"
#include "runtime/supervise/nodes/fleet.h"
#include "runtime/supervise/attempt/run_log.h"

namespace trainctl {

/// None if ranks can be started through PMIx on this machine, otherwise why not, one sentence. Tests it by
/// starting two processes that must find each other. Keeps the result in the file `cache` ("": keeps none)
/// until the program or the MPI library changes.
Problem pmix_start_problem(const LaunchLine& rank, FileSystem& fs, const std::string& cache);

/// Decides before the first attempt, and again after an attempt that may have failed because of PMIx.
class Starter {
 public:
  /// `wanted`: launcher.start.
  Starter(RankStart wanted, const Fleet& fleet, FileSystem& fs, RunLog& log)
      : wanted_(wanted), fleet_(fleet), fs_(fs), log_(log) {}
  /// True if the agents start the ranks through PMIx. Error(kPreflight) names a node that cannot do what the
  /// job asks for.
  bool by_pmix(const LaunchInput& input);
  /// Call after an attempt. Chooses mpirun for the next attempts if PMIx was chosen automatically and the
  /// attempt failed before its first step.
  void doubt(const Verdict& verdict, bool by_pmix);

 private:
  const RankStart wanted_;
  const Fleet& fleet_;
  FileSystem& fs_;
  RunLog& log_;
  std::optional<bool> pmix_;
};

/// $XDG_CACHE_HOME/trainctl/starts.json, or ~/.cache/trainctl/starts.json; "" if no home folder is known.
std::string starts_cache_path();

}  // namespace trainctl
