// What trainctl gives to Slurm: the script of a job, and the arguments of the commands. Pure.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// What a job asks a scheduler for. Empty texts and zeros leave the choice to the site.
struct SlurmRequest {
  std::string job_name;  ///< must belong to one run: jobs of one name wait for each other
  std::string partition, account, qos, reservation, constraint;
  std::string time_limit;  ///< as parse_time_limit takes it
  int nodes = 1;           ///< that ranks need
  int spares = 0;          ///< more nodes, hot
  int gpus_per_node = 0;
  std::string gpu_type;              ///< "h100"; "": any
  int cpus_per_node = 0;             ///< 0: all of them, and no other job (--exclusive)
  std::vector<std::string> exclude;  ///< nodes not to use
  int signal_s = 300;                ///< SIGUSR1 that long before the end of the time
  bool requeue = true;  ///< Slurm starts the job again after preemption or the loss of its first node
  int chain = 1;        ///< jobs submitted at once, of which one runs at a time
  std::vector<std::string> extra;  ///< more arguments of sbatch, "--mem=0", "--constraint=ib"
  std::vector<std::string> setup;  ///< lines of shell before the program starts, "module load openmpi"
};

/// What is wrong with the request, one sentence each; empty: nothing.
std::vector<std::string> problems_of(const SlurmRequest& request);

/// The batch script. Its last line is `exec PROGRAM resume RUN --in-allocation`: signals reach trainctl
/// itself, not a shell. `program` and `run` are absolute paths. Error(kUsage) with the problems of the
/// request, or for a path that Slurm cannot take (a line break; a backslash in `run`, which would end up in
/// a name pattern).
std::string batch_script(const SlurmRequest& request, const std::string& program, const std::string& run);

/// The step that starts one agent on each node.
struct AgentStep {
  int nodes = 1;
  std::vector<std::string> only_on;  ///< these nodes alone, `nodes` of them: a lost agent of a living node
  std::string logs;                  ///< a folder: an agent's output goes to node-NAME.log there, not to srun
  std::vector<std::string> program;  ///< PROGRAM node --connect ADDRESS ...
};
/// srun and its arguments. Call it without the variables that `misleads_srun` names. Never with -c, which
/// would give the step a part of the node.
std::vector<std::string> agent_step_command(const AgentStep& step);

std::vector<std::string> submit_command(const std::string& script);
std::vector<std::string> requeue_command(const std::string& job_id);
/// Ends a job, its steps and what waits of it.
std::vector<std::string> cancel_command(const std::string& job_id);
/// Ends the jobs of a chain that have not begun.
std::vector<std::string> cancel_waiting_command(const std::string& job_name, unsigned user);
std::vector<std::string> job_command(const std::string& job_id);

}  // namespace trainctl
