// A Slurm allocation as its environment variables describe it: the place of this process, the nodes, the end
// of the time. Also the variables that children must not inherit, and the parsers of Slurm's output. Pure;
// safe from any thread. runtime/supervise/slurm/slurm_commands.h calls the commands.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/machine/process.h"

namespace trainctl {

/// The place of a process in an allocation.
enum class SlurmPlace {
  batch_script,  ///< on the first node, started by sbatch
  step,          ///< started by srun: an agent, or the shell of `salloc` on sites that start it on a node
  login_node,    ///< started below `salloc`, on a node outside the allocation
};

struct SlurmNode {
  std::string name;
  int cpus = 0;  ///< CPUs of the job on this node; 0: not known
};

struct SlurmAllocation {
  std::string job_id;  ///< the id for scontrol and squeue; for a task of an array the task's own job id
  std::string job_name;
  SlurmPlace place = SlurmPlace::batch_script;
  std::vector<SlurmNode> nodes;
  std::string this_node;                    ///< Slurm's name of this node; "" on a login node
  /// GPUs of the job on this node. On a login node: GPUs of the job on each node, if salloc had
  /// --gpus-per-node. nullopt: none requested, or not known.
  std::optional<int> gpus_on_this_node;
  std::string switch_path;                  ///< above this node, "spine.leaf0"; "": not known
  int restart_count = 0;                    ///< how often Slurm has requeued the job
  std::optional<std::string> array_job_id;  ///< this and array_task_id: only for a task of an array
  std::optional<int> array_task_id;
  /// End of the job's time; older Slurms do not set it, then see SlurmCommands::job
  std::optional<double> end_unix_s;
  /// The node of the batch script; "" if this process is not the batch script.
  std::string batch_host() const { return place == SlurmPlace::batch_script ? this_node : ""; }
};

/// Returns the value of a variable, like std::getenv; nullopt if it is not set.
using Variables = std::function<std::optional<std::string>(const char* name)>;
/// This process's environment.
Variables process_variables();

/// The allocation of this process; nullopt outside of an allocation. Error(kLauncher), one sentence, if a
/// variable does not have Slurm's form or two variables contradict each other.
std::optional<SlurmAllocation> allocation_from_environment(const Variables& variables);

/// Whether the variable `name` would change what our srun does in spite of its arguments: the job's
/// SLURM_NTASKS overrides --ntasks-per-node, SLURM_MPI_TYPE=pmix turns PMIx on. False for SLURM_JOB_* and for
/// variables that srun needs to reach the controller.
bool misleads_srun(std::string_view name);
/// Whether the variable `name` would change what our sbatch does, or would pass from the current job to the
/// new one.
bool misleads_sbatch(std::string_view name);
/// `environment` without the variables for which `of` is true. Use it with is_of_outer_launcher for ranks and
/// mpirun.
Environment without(Environment environment, const std::function<bool(std::string_view)>& of);
/// The names of this process's variables for which `of` is true, for ChildProcess's `unset`.
std::vector<std::string> names_of(const std::function<bool(std::string_view)>& of);

/// What Slurm's many words for the state of a job mean for a run; `other`: it is on its way between these.
enum class SlurmState { pending, running, over, other };
/// "RUNNING" is running; over are the states in which a job stays.
SlurmState slurm_state(std::string_view word);

/// A job as squeue reports it.
struct SlurmJob {
  std::string id;
  SlurmState state = SlurmState::other;
  std::string state_word;            ///< Slurm's own: "PENDING", "RUNNING", "COMPLETING", ...
  std::string reason;                ///< why it is pending, "Resources"; "None"
  std::optional<double> end_unix_s;  ///< end of its time; nullopt before it runs
  /// Its current nodes; with --no-kill, nodes that went down are not in it
  std::vector<std::string> nodes;
};
/// The format for squeue, and the parser of its output: one job per line. Ignores lines of another form,
/// which are warnings. Error(kLauncher) if a field is not in Slurm's form.
inline constexpr const char* kSqueueFormat = "--format=%i|%T|%e|%r|%N";
std::vector<SlurmJob> parse_squeue(const std::string& output);
/// The job id in the output of `sbatch --parsable`, which may begin with warnings: "1234" from
/// "1234;cluster"; "" if there is none.
std::string parse_submitted(const std::string& output);

}  // namespace trainctl
