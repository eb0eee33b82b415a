// trainctl plan --against RUN.
#pragma once
#include <functional>
#include <string>

#include "cmd/commands.h"
#include "runtime/plan/device_model.h"

namespace trainctl::cmd {

struct AgainstOptions {
  std::string run, root;  ///< the run, and the folder in which to search for it
  std::string out;        ///< the corrected cluster file; "": none
};

void add_against_options(CommandLine command, AgainstOptions& options);

/// Compares the step that is predicted for a job with the one that the run measured; writes a corrected
/// cluster file. Without a JOB it is the run's own. device_of: that for which the job is planned, with its
/// cluster.
int plan_against(const AgainstOptions& options, const JobArguments& job,
                 const std::function<DeviceModel(const JobSpec&)>& device_of, const Context& context);

}  // namespace trainctl::cmd
