#include "runtime/supervise/slurm/slurm_commands.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/machine/process.h"
#include "runtime/supervise/slurm/slurm_nodes.h"

namespace trainctl {
namespace {

/// A command that writes more than this is no answer of Slurm's.
constexpr size_t kMostOutput = 64 << 20;

/// Slurm's own words: the last line that is not empty, without the name of the command before it.
std::string words_of(const std::string& output, const std::string& command) {
  std::string last;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) last = line;
  for (const std::string& prefix : {command + ": ", std::string("error: "), std::string("fatal: ")})
    if (last.starts_with(prefix)) last.erase(0, prefix.size());
  return last.empty() ? "it gave no reason" : last;
}

}  // namespace

bool SlurmCommands::present() { return !find_program("sbatch").empty(); }

SlurmCommands::Answer SlurmCommands::call(const std::vector<std::string>& command, double limit_s) const {
  if (find_program(command[0]).empty())
    throw Error(ErrorCode::kLauncher,
                fmt::format("there is no Slurm here: {} is not on PATH; use a login node of the cluster",
                            command[0]));
  const double deadline_s = real_clock().monotonic_s() + limit_s;
  // Seconds since 1970, whatever the user has set; and from a job, nothing of it for the new one.
  ChildProcess child(command, {{"SLURM_TIME_FORMAT", "%s"}}, names_of(misleads_sbatch));
  Answer answer;
  for (;;) {
    answer.output += child.read_output();
    if (const auto status = child.reap()) {
      answer.output += child.read_output();
      answer.status = WIFSIGNALED(*status) ? 128 + WTERMSIG(*status) : WEXITSTATUS(*status);
      return answer;
    }
    const double left_s = deadline_s - real_clock().monotonic_s();
    if (left_s <= 0 || answer.output.size() > kMostOutput)
      throw Error(
          ErrorCode::kLauncher,
          fmt::format("{} gave no answer within {:g} s; Slurm's controller may be down: see `scontrol ping`",
                      command[0], limit_s));
    pollfd waits[] = {{child.output_fd(), POLLIN, 0}, {child.exit_fd(), POLLIN, 0}};
    ::poll(waits, 2, int(std::ceil(left_s * 1000)));
  }
}

std::string SlurmCommands::must(const std::vector<std::string>& command, double limit_s) const {
  const Answer answer = call(command, limit_s);
  if (answer.status != 0)
    throw Error(ErrorCode::kLauncher, fmt::format("{} refused (status {}): {}", fmt::join(command, " "),
                                                  answer.status, words_of(answer.output, command[0])));
  return answer.output;
}

std::vector<std::string> SlurmCommands::submit(const std::string& script_path, int count) const {
  std::vector<std::string> ids;
  const std::vector<std::string> command = submit_command(script_path);
  try {
    while (int(ids.size()) < count) {
      const std::string output = must(command, limits_.change_s);
      ids.push_back(parse_submitted(output));
      if (ids.back().empty()) {
        ids.pop_back();
        throw Error(ErrorCode::kLauncher, fmt::format("sbatch accepted {} and printed no job id: {}",
                                                      script_path, words_of(output, "sbatch")));
      }
    }
  } catch (const Error&) {
    for (const std::string& id : ids) call(cancel_command(id), limits_.change_s);
    throw;
  }
  return ids;
}

std::optional<SlurmJob> SlurmCommands::job(const std::string& job_id) const {
  const std::vector<std::string> command = job_command(job_id);
  const Answer answer = call(command, limits_.query_s);
  if (answer.status != 0 && answer.output.find("Invalid job id") == std::string::npos)
    throw Error(ErrorCode::kLauncher, fmt::format("squeue cannot report on job {} (status {}): {}", job_id,
                                                  answer.status, words_of(answer.output, "squeue")));
  const std::vector<SlurmJob> jobs = parse_squeue(answer.output);
  if (jobs.empty()) return std::nullopt;
  return jobs.front();
}

void SlurmCommands::requeue(const std::string& job_id) const {
  must(requeue_command(job_id), limits_.change_s);
}

void SlurmCommands::cancel(const std::string& job_id) const {
  must(cancel_command(job_id), limits_.change_s);
}

bool SlurmCommands::is_batch(const std::string& job_id) const {
  return must({"scontrol", "show", "job", job_id}, limits_.query_s).find("BatchFlag=1") != std::string::npos;
}

bool SlurmCommands::is_preempted(const std::string& job_id) const {
  const std::string shown = must({"scontrol", "show", "job", job_id}, limits_.query_s);
  const size_t at = shown.find(" PreemptTime=");
  return at != std::string::npos && shown.compare(at + 13, 4, "None") != 0;
}

std::string SlurmCommands::batch_script(const std::string& job_id) const {
  return must({"scontrol", "write", "batch_script", job_id, "-"}, limits_.query_s);
}

std::vector<std::pair<std::string, std::string>> SlurmCommands::states_of(
    const std::vector<std::string>& nodes) const {
  std::istringstream lines(must({"sinfo", "--noheader", "--Node", "--nodes=" + compress_node_list(nodes),
      "--format=%N %T"},
                                limits_.query_s));
  std::vector<std::pair<std::string, std::string>> states;
  for (std::string name, state; lines >> name >> state;)
    if (states.empty() || states.back().first != name) states.push_back({name, state});  // a line a partition
  return states;
}

void SlurmCommands::cancel_waiting(const std::string& job_name) const {
  must(cancel_waiting_command(job_name, unsigned(::getuid())), limits_.change_s);
}

std::vector<std::string> SlurmCommands::known_of(const std::vector<std::string>& nodes) const {
  if (nodes.empty()) return {};
  const std::string output = must({"sinfo", "--noheader", "--Node", "--format=%N"}, limits_.query_s);
  std::set<std::string> known;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) known.insert(line);
  std::vector<std::string> both = nodes;
  std::erase_if(both, [&](const std::string& node) { return known.count(node) == 0; });
  return both;
}

std::string SlurmCommands::cluster_name() const {
  std::istringstream lines(must({"scontrol", "show", "config"}, limits_.query_s));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key, equals, name;
    if (words >> key >> equals >> name && key == "ClusterName") return name;
  }
  return "";
}

}  // namespace trainctl
