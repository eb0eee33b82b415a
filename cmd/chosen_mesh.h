// `parallelism: "auto"`: the mesh of a job, chosen before anything else is decided about it.
#pragma once
#include <functional>
#include <optional>

#include "cmd/commands.h"
#include "runtime/plan/choice_costs.h"
#include "runtime/plan/mesh_choice.h"

namespace trainctl::cmd {

/// What the choice needs of the command.
struct MeshChoosing {
  std::function<DeviceModel(const JobSpec&)> device_of;
  std::function<int(const JobSpec&, const DeviceModel&)> ranks_on_node;
  std::optional<MeshChoice> settled = {};  ///< of a run that exists: it is kept, without a search
  bool here = true;  ///< this machine is one of the run's nodes, where the job names none
};

/// The job itself where its mesh is given. Otherwise `arguments` gets the chosen settings, and the result is the
/// job with them; stderr says which. nullopt: the job then has mistakes, which are printed. Error(kPlan): no mesh
/// fits; Error(kUsage): the number of ranks, or the device, is not known.
std::optional<ParsedJob> with_chosen_mesh(ParsedJob parsed, JobArguments& arguments,
                                          const MeshChoosing& choosing, const Context& context);

/// To choose for a launch now and here: the mesh of the run that the job goes on with, else one for this
/// machine or the nodes of the job.
MeshChoosing choosing_here(const JobSpec& job);

/// To choose for nodes that are not here, whose devices are `device` (device_named): the mesh of the run
/// that the job goes on with, else one for them. Error(kUsage): a mesh has to be chosen, and `device` is
/// empty; `command` is the command with the option that names it.
MeshChoosing choosing_for(const JobSpec& job, const std::string& device, const std::string& command);
/// --device of such a command.
Option add_nodes_device(CommandLine& command, std::string& device);

/// For how many ranks `cores` are enough: each has one, or as many as parallelism.threads_per_rank gives it. At
/// least 1.
int ranks_on_cores(const ParsedJob& parsed, int cores);

/// For commands that need the mesh and cannot choose it: Error(kUsage) where it is not given.
void require_mesh(MeshFrom mesh, const std::string& command);

}  // namespace trainctl::cmd
