// The batch script of a job and the command lines for Slurm. Pure.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// A request to a scheduler. With "" and 0 the site's default applies.
struct SlurmRequest {
  std::string job_name;  ///< unique to one run, because jobs with the same name wait for each other
  std::string partition, account, qos, reservation, constraint;
  std::string time_limit;  ///< in a form of parse_time_limit
  int nodes = 1;           ///< nodes that the ranks need
  int spares = 0;          ///< additional nodes in reserve
  int gpus_per_node = 0;
  std::string gpu_type;              ///< "h100"; "": any
  int cpus_per_node = 0;             ///< 0: all CPUs, and no other job on the node (--exclusive)
  std::vector<std::string> exclude;  ///< nodes that Slurm must not use
  int signal_s = 300;                ///< Slurm sends SIGUSR1 so many seconds before the end of the time
  bool requeue = true;  ///< Slurm starts the job again after preemption or the loss of its first node
  int chain = 1;        ///< number of jobs to submit; they run one after another
  std::vector<std::string> extra;  ///< more arguments of sbatch, "--mem=0", "--constraint=ib"
  std::vector<std::string> setup;  ///< shell lines before the program starts, "module load openmpi"
};

/// The problems of the request, one sentence each; empty: none.
std::vector<std::string> problems_of(const SlurmRequest& request);

/// The batch script. Its last line is `exec PROGRAM resume RUN --in-allocation`, so that signals reach
/// trainctl and not a shell. `program` and `run` are absolute paths. Error(kUsage) with the problems of the
/// request, or for a path that Slurm cannot use (a line break; a backslash in `run`, which is part of a file
/// name pattern).
std::string batch_script(const SlurmRequest& request, const std::string& program, const std::string& run);

/// The step that starts one agent on each node.
struct AgentStep {
  int nodes = 1;
  /// Exactly these `nodes` nodes, to replace lost agents; empty: Slurm's choice
  std::vector<std::string> only_on;
  std::string logs;                  ///< folder; an agent's output goes to node-NAME.log there, not to srun
  std::vector<std::string> program;  ///< PROGRAM node --connect ADDRESS ...
};
/// srun and its arguments. Run it without the variables for which misleads_srun is true. It has no -c, which
/// would give the step only a part of the node.
std::vector<std::string> agent_step_command(const AgentStep& step);

std::vector<std::string> submit_command(const std::string& script);
std::vector<std::string> requeue_command(const std::string& job_id);
/// Ends a job and its steps, or removes it from the queue.
std::vector<std::string> cancel_command(const std::string& job_id);
/// Cancels the jobs of a chain that have not begun.
std::vector<std::string> cancel_waiting_command(const std::string& job_name, unsigned user);
/// squeue for one job, with kSqueueFormat.
std::vector<std::string> job_command(const std::string& job_id);

}  // namespace trainctl
