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

/// A node for mpirun: its own host name and its number of ranks.
struct LaunchHost {
  std::string name;
  int ranks = 0;
};

struct LaunchInput {
  Environment env;                              ///< launcher.env
  int nccl_buffer_kib = NcclSpec{}.buffer_kib;  ///< parallelism.nccl.buffer_kib
  std::vector<LaunchHost> hosts;  ///< in the order of their ranks; empty or one: this machine
  std::string network;            ///< network for traffic between nodes, "10.77.0.0/24"; "": MPI's choice
  int world_size = 1;
  std::string mpirun;   ///< full path
  std::string program;  ///< this binary
  std::string run_directory;
  std::string session_folder, shared_memory_folder;
  std::string bundle;               ///< root of mpirun's bundle; "": mpirun is in no bundle
  bool homeless = false;            ///< HOME is not set
  bool root = false;                ///< running as root
  bool cross_memory_attach = true;  ///< processes of one user may read each other's memory
};

/// The line `mpirun -n N PROGRAM rank RUN` with OpenMPI's settings as environment variables, without quoting.
/// launcher.env overrides these settings. On several hosts mpirun's remote shell is `PROGRAM remote`, which
/// sends its requests to the agents.
LaunchLine mpirun_line(const LaunchInput& input);
/// The line `PROGRAM rank RUN` with the same settings, for ranks that their agent starts through PMIx.
LaunchLine rank_line(const LaunchInput& input);

/// The line for people, quoted for a shell: NAME=value ... program arguments.
std::string shell_text(const LaunchLine& line);

}  // namespace trainctl
