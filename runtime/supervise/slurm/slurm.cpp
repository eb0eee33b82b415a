#include "runtime/supervise/slurm/slurm.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/record.h"
#include "runtime/supervise/slurm/slurm_nodes.h"

extern char** environ;

namespace trainctl {
namespace {

std::optional<int64_t> whole_number(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  return value;
}

bool starts_with_one_of(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

/// Says where the controller is and who asks.
bool reaches_slurm(std::string_view name) {
  return name == "SLURM_CONF" || name == "SLURM_JWT" || name == "SLURM_WORKING_CLUSTER";
}

bool is_job_id(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// parse(text), where a refusal is not the user's mistake: Slurm wrote the text.
template <typename Parse>
auto written_by_slurm(Parse parse, const std::string& text) {
  try {
    return parse(text);
  } catch (const Error& error) {
    throw Error(ErrorCode::kLauncher, error.what());
  }
}

std::vector<SlurmNode> nodes_of(const std::string& list, const std::optional<std::string>& cpus) {
  std::vector<SlurmNode> nodes;
  for (std::string& name : written_by_slurm(parse_node_list, list))
    nodes.push_back({.name = std::move(name)});
  const std::vector<int> counts = cpus ? written_by_slurm(parse_repeated_counts, *cpus) : std::vector<int>();
  if (counts.empty()) return nodes;
  if (counts.size() != nodes.size())
    throw Error(ErrorCode::kLauncher,
                fmt::format("Slurm's variables disagree: SLURM_JOB_NODELIST = {} has {} nodes, "
                            "SLURM_JOB_CPUS_PER_NODE = {} has {}",
                            list, nodes.size(), *cpus, counts.size()));
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i].cpus = counts[i];
  return nodes;
}

}  // namespace

Variables process_variables() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

std::optional<SlurmAllocation> allocation_from_environment(const Variables& variables) {
  const auto job = variables("SLURM_JOB_ID"), list = variables("SLURM_JOB_NODELIST");
  if (!job || job->empty() || !list || list->empty()) return std::nullopt;
  SlurmAllocation allocation;
  allocation.job_id = *job;
  allocation.job_name = variables("SLURM_JOB_NAME").value_or("");
  allocation.nodes = nodes_of(*list, variables("SLURM_JOB_CPUS_PER_NODE"));
  allocation.this_node = variables("SLURMD_NODENAME").value_or("");
  allocation.place = allocation.this_node.empty() ? SlurmPlace::login_node
                     : variables("SLURM_STEP_ID") ? SlurmPlace::step
                                                  : SlurmPlace::batch_script;
  if (!allocation.this_node.empty()) {
    if (const auto gpus = whole_number(variables("SLURM_GPUS_ON_NODE")))
      allocation.gpus_on_this_node = int(*gpus);
    allocation.switch_path = switch_path_of(variables("SLURM_TOPOLOGY_ADDR").value_or(""),
                                            variables("SLURM_TOPOLOGY_ADDR_PATTERN").value_or(""));
  } else if (const auto gpus = variables("SLURM_GPUS_PER_NODE")) {
    // Below salloc on a login node; "2" or "a100:2".
    if (const auto count = whole_number(gpus->substr(gpus->find(':') + 1)))
      allocation.gpus_on_this_node = int(*count);
  }
  allocation.restart_count = int(whole_number(variables("SLURM_RESTART_COUNT")).value_or(0));
  allocation.array_job_id = variables("SLURM_ARRAY_JOB_ID");
  if (const auto task = whole_number(variables("SLURM_ARRAY_TASK_ID"))) allocation.array_task_id = int(*task);
  if (const auto end = whole_number(variables("SLURM_JOB_END_TIME"))) allocation.end_unix_s = double(*end);
  return allocation;
}

bool misleads_srun(std::string_view name) {
  // What says which job this is and how to reach Slurm; everything else has an argument of srun's, or no use.
  if (reaches_slurm(name)) return false;
  if (name.starts_with("SLURM_JOB_") || name == "SLURM_JOBID") return name == "SLURM_JOB_NUM_NODES";
  return starts_with_one_of(name, {"SLURM_", "SRUN_", "PMI_", "PMIX_"}) && !name.starts_with("PMIX_MCA_");
}

bool misleads_sbatch(std::string_view name) {
  if (reaches_slurm(name)) return false;
  return starts_with_one_of(name, {"SBATCH_", "SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_"}) &&
         !name.starts_with("PMIX_MCA_");
}

Environment without(Environment environment, const std::function<bool(std::string_view)>& of) {
  std::erase_if(environment, [&](const auto& variable) { return of(variable.first); });
  return environment;
}

std::vector<std::string> names_of(const std::function<bool(std::string_view)>& of) {
  std::vector<std::string> names;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    if (of(name)) names.emplace_back(name);
  }
  return names;
}

SlurmState slurm_state(std::string_view word) {
  if (word == "PENDING") return SlurmState::pending;
  if (word == "RUNNING") return SlurmState::running;
  for (const std::string_view over : {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT"})
    if (word == over) return SlurmState::over;
  return SlurmState::other;
}

std::vector<SlurmJob> parse_squeue(const std::string& output) {
  std::vector<SlurmJob> jobs;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> fields;
    std::istringstream parts(line);
    for (std::string part; std::getline(parts, part, '|');) fields.push_back(part);
    if (line.ends_with('|')) fields.push_back("");
    // "12", "12_3", "12_[4-9]": an array's tasks that wait are one line.
    if (fields.size() != 5 || !is_job_id(fields[0].substr(0, fields[0].find('_')))) continue;
    SlurmJob job{
        .id = fields[0], .state = slurm_state(fields[1]), .state_word = fields[1], .reason = fields[3]};
    const auto end = whole_number(fields[2]);
    if (end) {
      job.end_unix_s = double(*end);
    } else if (fields[2] != "N/A" && fields[2] != "NONE" && fields[2] != "Unknown") {
      throw Error(
          ErrorCode::kLauncher,
          fmt::format("squeue wrote '{}' where the end of job {} belongs; it was asked for seconds by "
                      "SLURM_TIME_FORMAT=%s",
                      fields[2], job.id));
    }
    job.nodes = written_by_slurm(parse_node_list, fields[4]);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

std::string parse_submitted(const std::string& output) {
  std::istringstream lines(output);
  std::string id;
  for (std::string line; std::getline(lines, line);) {
    const std::string first = line.substr(0, line.find(';'));
    if (is_job_id(first)) id = first;
  }
  return id;
}

}  // namespace trainctl
