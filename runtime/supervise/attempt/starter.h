// What starts the ranks where the job leaves it open: PMIx where it works, mpirun otherwise.
#pragma once
#include <optional>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/machine/mpirun.h"
#include "runtime/supervise/nodes/fleet.h"
#include "runtime/supervise/attempt/run_log.h"

namespace trainctl {

/// "" if ranks can be started through PMIx on this machine: two were, and saw each other. Otherwise one
/// sentence. The answer is kept in `cache` ("": nowhere) as long as program, MPI library and libpmix are the
/// same files. Starts processes.
std::string pmix_start_problem(const LaunchLine& rank, FileSystem& fs, const std::string& cache);

/// Decides before the first attempt, and again after one that PMIx may have spoilt.
class Starter {
 public:
  Starter(const JobSpec& job, const Fleet& fleet, FileSystem& fs, RunLog& log)
      : job_(job), fleet_(fleet), fs_(fs), log_(log) {}
  /// Whether the agents start the ranks themselves. Error(kPreflight) naming a node that cannot do what the
  /// job asks for.
  bool by_pmix(const LaunchInput& input);
  /// Where PMIx was our choice and no rank came to its first step, mpirun may do better.
  void doubt(const Verdict& verdict, bool by_pmix);

 private:
  const JobSpec& job_;
  const Fleet& fleet_;
  FileSystem& fs_;
  RunLog& log_;
  std::optional<bool> pmix_;
};

/// $XDG_CACHE_HOME/trainctl/starts.json, or the same below ~/.cache; "" where neither is known.
std::string starts_cache_path();

}  // namespace trainctl
