// The command line and environment that start the ranks. Pure.
#pragma once
#include <string>
#include <vector>

#include "runtime/machine/process.h"
#include "runtime/spec/job.h"

namespace trainctl {

struct LaunchLine {
  std::vector<std::string> argv;
  Environment environment;
};

struct LaunchInput {
  const JobSpec* job = nullptr;
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
/// last and wins.
LaunchLine launch_line(const LaunchInput& input);

/// For people: NAME=value ... program arguments, quoted for a shell.
std::string shell_text(const LaunchLine& line);

}  // namespace trainctl
