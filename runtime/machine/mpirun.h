// The command line and environment that start the ranks. Pure.
#pragma once
#include <string>
#include <vector>

#include "runtime/machine/process.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

struct LaunchLine {
  std::vector<std::string> argv;
  Environment environment;
};

/// A node of a start by mpirun: the name it gives itself, and its ranks.
struct LaunchHost {
  std::string name;
  int ranks = 0;
};

struct LaunchInput {
  const JobSpec* job = nullptr;
  std::vector<LaunchHost> hosts;  ///< in the order of their ranks; none or one: this machine
  std::string network;            ///< "10.77.0.0/24", through which nodes talk; "": MPI's choice
  int world_size = 1;
  std::string mpirun;   ///< full path
  std::string program;  ///< this binary
  std::string run_directory;
  std::string session_folder, shared_memory_folder;
  std::string bundle;               ///< root of the bundle that mpirun is of; "" if none
  bool homeless = false;            ///< the environment names no home folder
  bool root = false;                ///< running as root
  bool cross_memory_attach = true;  ///< processes of one user may read each other's memory here
};

/// `mpirun -n N PROGRAM rank RUN` with OpenMPI's settings in the environment (no quoting); launcher.env comes
/// last and wins. On several hosts mpirun's remote shell is `PROGRAM remote`, which asks the agents.
LaunchLine mpirun_line(const LaunchInput& input);
/// `PROGRAM rank RUN` with the same settings, for ranks that their agent starts through PMIx.
LaunchLine rank_line(const LaunchInput& input);

/// For people: NAME=value ... program arguments, quoted for a shell.
std::string shell_text(const LaunchLine& line);

}  // namespace trainctl
