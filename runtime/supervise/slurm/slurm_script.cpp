#include "runtime/supervise/slurm/slurm_script.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/supervise/slurm/slurm.h"
#include "runtime/supervise/slurm/slurm_nodes.h"

namespace trainctl {
namespace {

constexpr std::string_view kPlain =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%[]";

bool is_plain_word(std::string_view text) {
  return !text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos;
}

bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; });
}

/// An argument as sbatch reads it from the script: in quotes a backslash takes the next character as it is.
std::string directive_word(std::string_view text) {
  if (is_plain_word(text)) return std::string(text);
  std::string word = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') word += '\\';
    word += c;
  }
  return word + "\"";
}

/// A path in a pattern of Slurm's for file names.
std::string pattern_path(std::string_view path) {
  std::string pattern;
  for (const char c : path) pattern += c == '%' ? std::string("%%") : std::string(1, c);
  return pattern;
}

std::vector<std::string> options_of(const SlurmRequest& r, const std::string& run) {
  std::vector<std::string> options;
  const auto add = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) options.push_back(fmt::format("--{}={}", name, value));
  };
  add("job-name", r.job_name);
  add("partition", r.partition);
  add("account", r.account);
  add("qos", r.qos);
  add("reservation", r.reservation);
  add("constraint", r.constraint);
  add("time", r.time_limit);
  add("nodes", std::to_string(r.nodes + r.spares));
  add("ntasks-per-node", "1");
  if (r.cpus_per_node > 0)
    add("cpus-per-task", std::to_string(r.cpus_per_node));
  else
    options.push_back("--exclusive");
  if (r.gpus_per_node > 0)
    add("gpus-per-node", r.gpu_type.empty() ? std::to_string(r.gpus_per_node)
                                            : fmt::format("{}:{}", r.gpu_type, r.gpus_per_node));
  add("exclude", compress_node_list(r.exclude));
  options.push_back("--no-kill");
  options.push_back(r.requeue ? "--requeue" : "--no-requeue");
  options.push_back("--open-mode=append");
  add("signal", fmt::format("B:USR1@{}", r.signal_s));
  add("output", pattern_path(run) + "/logs/slurm-%j.out");
  if (r.chain > 1) add("dependency", "singleton");
  options.insert(options.end(), r.extra.begin(), r.extra.end());
  return options;
}

}  // namespace

std::vector<std::string> problems_of(const SlurmRequest& r) {
  std::vector<std::string> problems;
  const auto check = [&](bool fine, std::string problem) {
    if (!fine) problems.push_back(std::move(problem));
  };
  const auto in_range = [&](const char* what, int value, int from, int upto) {
    check(value >= from && value <= upto,
          fmt::format("{} = {} is not between {} and {}", what, value, from, upto));
  };
  in_range("nodes", r.nodes, 1, 1'000'000);
  in_range("spares", r.spares, 0, 1'000'000);
  in_range("gpus_per_node", r.gpus_per_node, 0, 1024);
  in_range("cpus_per_node", r.cpus_per_node, 0, 65536);
  in_range("signal_s", r.signal_s, 1, 65535);
  in_range("chain", r.chain, 1, 1000);
  check(r.chain == 1 || !r.job_name.empty(),
        "a chain of jobs needs a job_name of its own: its jobs wait for each other by name");
  try {
    parse_time_limit(r.time_limit);
  } catch (const Error& error) {
    problems.push_back(error.what());
  }
  for (const auto& [what, text] : {std::pair<const char*, const std::string&>{"job_name", r.job_name},
                                   {"partition", r.partition},
                                   {"account", r.account},
                                   {"qos", r.qos},
                                   {"reservation", r.reservation},
                                   {"constraint", r.constraint},
                                   {"gpu_type", r.gpu_type}})
    check(!has_control(text), fmt::format("{} holds a line break or another control character", what));
  for (const std::string& node : r.exclude)
    check(is_plain_word(node) && node.find_first_of("[],") == std::string::npos,
          fmt::format("exclude: '{}' is no name of a node", node));
  for (const std::string& option : r.extra)
    check(option.starts_with('-') && !has_control(option),
          fmt::format("extra: '{}' is no argument of sbatch; it begins with '-' and is one line", option));
  return problems;
}

std::string batch_script(const SlurmRequest& request, const std::string& program, const std::string& run) {
  std::vector<std::string> problems = problems_of(request);
  for (const std::string& path : {program, run})
    if (!path.starts_with('/') || has_control(path))
      problems.push_back(fmt::format("the path '{}' is not absolute, or holds a line break", path));
  if (run.find('\\') != std::string::npos)
    problems.push_back(fmt::format("Slurm takes no backslash in the name of a log file: '{}'", run));
  if (!problems.empty())
    throw Error(ErrorCode::kUsage,
                fmt::format("no batch script can be written: {}", fmt::join(problems, "; ")));
  std::string script = "#!/bin/bash\n";
  for (const std::string& option : options_of(request, run))
    script += fmt::format("#SBATCH {}\n", directive_word(option));
  for (const std::string& line : request.setup) script += line + "\n";
  return script + fmt::format("exec {} resume {} --in-allocation\n", shell_quoted(program), shell_quoted(run));
}

std::vector<std::string> agent_step_command(const AgentStep& step) {
  const std::string count = std::to_string(step.nodes);
  std::vector<std::string> words = {"srun",
                                    "--overlap",
                                    "--mpi=none",
                                    "--cpu-bind=none",
                                    "--nodes=" + count,
                                    "--ntasks=" + count,
                                    "--ntasks-per-node=1",
                                    "--no-kill",
                                    "--kill-on-bad-exit=0",
                                    "--wait=0",
                                    "--input=none",
                                    "--open-mode=append",
                                    "--output=" + pattern_path(step.logs) + "/node-%N.log"};
  if (!step.only_on.empty()) words.push_back("--nodelist=" + compress_node_list(step.only_on));
  words.insert(words.end(), step.program.begin(), step.program.end());
  return words;
}

std::vector<std::string> submit_command(const std::string& script) {
  return {"sbatch", "--parsable", script};
}

std::vector<std::string> requeue_command(const std::string& job_id) {
  return {"scontrol", "requeue", job_id};
}

std::vector<std::string> cancel_command(const std::string& job_id) { return {"scancel", job_id}; }

std::vector<std::string> cancel_waiting_command(const std::string& job_name, unsigned user) {
  return {"scancel", "--state=PENDING", "--name=" + job_name, "--user=" + std::to_string(user)};
}

std::vector<std::string> job_command(const std::string& job_id) {
  return {"squeue", "--noheader", "--jobs=" + job_id, kSqueueFormat};
}

}  // namespace trainctl
