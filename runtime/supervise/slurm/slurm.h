// What a Slurm allocation gives to trainctl: where this process is, which nodes it has, until when; and
// what its environment must lose on the way to children. Pure; safe from any thread. The commands of Slurm
// are called in runtime/supervise/slurm/slurm_commands.h.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/machine/process.h"

namespace trainctl {

/// Where in an allocation a process runs.
enum class SlurmPlace {
  batch_script,  ///< on the first node, started by sbatch
  step,          ///< started by srun: an agent, or the shell of `salloc` on sites that start it on a node
  login_node,    ///< below `salloc`, on a node that is none of the allocation's
};

struct SlurmNode {
  std::string name;
  int cpus = 0;  ///< that the job has there; 0: not known
};

struct SlurmAllocation {
  std::string job_id;  ///< of an array's task: its own, what scontrol and squeue take
  std::string job_name;
  SlurmPlace place = SlurmPlace::batch_script;
  std::vector<SlurmNode> nodes;
  std::string this_node;                    ///< Slurm's name of it; "" on a login node
  /// Of this node; on a login node of each node, where salloc was asked for them by --gpus-per-node. Nothing:
  /// none asked for, or not known.
  std::optional<int> gpus_on_this_node;
  std::string switch_path;                  ///< above this node, "spine.leaf0"; "": not known
  int restart_count = 0;                    ///< how often Slurm has requeued the job
  std::optional<std::string> array_job_id;  ///< with array_task_id: of an array's task
  std::optional<int> array_task_id;
  std::optional<double> end_unix_s;  ///< only newer Slurms give it; else ask SlurmCommands::job
  /// The batch script's node, which the job cannot lose; "": not the batch script, so not known.
  std::string batch_host() const { return place == SlurmPlace::batch_script ? this_node : ""; }
};

/// Looks a variable up, like std::getenv; nothing where it is not set.
using Variables = std::function<std::optional<std::string>(const char* name)>;
/// This process's environment.
Variables process_variables();

/// Nothing outside of an allocation. Error(kLauncher), one sentence, where a variable is not of Slurm's
/// form or two contradict each other.
std::optional<SlurmAllocation> allocation_from_environment(const Variables& variables);

/// Whether the variable would change what our srun does, beyond what its arguments say: SLURM_NTASKS of the
/// job wins over --ntasks-per-node, SLURM_MPI_TYPE=pmix turns PMIx on. SLURM_JOB_* and what reaches the
/// controller stay.
bool misleads_srun(std::string_view name);
/// Whether the variable would change what our sbatch does, or reach the new job from the job around us.
bool misleads_sbatch(std::string_view name);
/// `environment` without the variables for which `of` holds. With is_of_outer_launcher: for ranks and mpirun.
Environment without(Environment environment, const std::function<bool(std::string_view)>& of);
/// The names among this process's variables for which `of` holds: what ChildProcess is to leave out.
std::vector<std::string> names_of(const std::function<bool(std::string_view)>& of);

/// How a job looks from outside.
struct SlurmJob {
  std::string id, state;             ///< "PENDING", "RUNNING", ...
  std::string reason;                ///< why it is pending, "Resources"; "None"
  std::optional<double> end_unix_s;  ///< when its time is over; nothing before it runs
  std::vector<std::string> nodes;    ///< it has now; a node that went down under --no-kill is no longer there
};
/// What squeue is asked, and the reading of its answer: one job a line. Lines of another form are warnings
/// and passed over. Error(kLauncher) where a field is not what Slurm writes.
inline constexpr const char* kSqueueFormat = "--format=%i|%T|%e|%r|%N";
std::vector<SlurmJob> parse_squeue(const std::string& output);
/// Of `sbatch --parsable`, which may print warnings before: "1234" from "1234;cluster". "" if there is none.
std::string parse_submitted(const std::string& output);

}  // namespace trainctl
