// How Fleet starts agents on its nodes, and again where one has ended.
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/run/wire/environment.h"
#include "runtime/supervise/nodes/fleet.h"
#include "runtime/supervise/nodes/own_address.h"
#include "runtime/supervise/slurm/slurm.h"
#include "runtime/supervise/slurm/slurm_script.h"

namespace trainctl {
namespace {

constexpr size_t kMostAtOnce = 64;  ///< remote shells that run at a time
constexpr double kLongestStartIntervalS = 30;
constexpr size_t kMostStarterText = 4096;  ///< kept of what a remote shell or srun says

std::string start_problem(int wait_status, const std::string& words) {
  return fmt::format("its agent could not be started (status {}){}{}",
                     WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status),
                     words.empty() ? "" : ": ", last_line_of(words));
}

}  // namespace

void Fleet::start_agents() {
  keep_agents_ = true;
  const double now_s = clock_.monotonic_s();
  const bool none = ready_count() == 0;
  if (options_.start.way == AgentStart::Way::slurm && none) return start_all_agents();
  if (options_.start.way == AgentStart::Way::awaited) {
    keep_agents_ = false;
    return;
  }
  for (int i = 0; i < size(); ++i)
    if (!nodes_[size_t(i)].hello)
      to_start_.push_back(i), nodes_[size_t(i)].next_start_s = now_s + kLongestStartIntervalS;
  watch_starters();
}

void Fleet::start_all_agents() {
  const AgentStep step{
      .nodes = size(), .logs = options_.run_directory + "/logs", .program = agent_words(agent_program(), "")};
  start_all_text_.clear();
  start_all_ =
      std::make_unique<ChildProcess>(agent_step_command(step), Environment{}, names_of(misleads_srun));
  for (Node& node : nodes_) node.next_start_s = clock_.monotonic_s() + kLongestStartIntervalS;
}

/// Where the one srun fails, for a node that has died meanwhile, each node gets one of its own.
void Fleet::watch_start_of_all(double now_s) {
  if (!start_all_) return;
  start_all_text_ += start_all_->read_output();
  if (start_all_text_.size() > kMostStarterText)
    start_all_text_.erase(0, start_all_text_.size() - kMostStarterText);
  const auto status = start_all_->reap();
  if (!status) return;
  start_all_.reset();
  if (*status == 0) return;
  for (Node& node : nodes_)
    if (!node.hello) node.problem = start_problem(*status, start_all_text_), node.next_start_s = now_s;
}

void Fleet::start_agent(int index) {
  Node& node = nodes_[size_t(index)];
  node.starter_text.clear();
  node.greeted_s = 0;
  std::vector<std::string> words = agent_words(agent_program(), node.name);
  std::vector<std::string> unset;
  Environment environment;
  if (options_.start.way == AgentStart::Way::slurm) {
    const std::string logs = options_.run_directory + "/logs";
    words = agent_step_command({.nodes = 1, .only_on = {node.name}, .logs = logs, .program = words});
    unset = names_of(misleads_srun);
  } else if (options_.start.way == AgentStart::Way::shell && !is_this_machine(node.name)) {
    words = shell_words(options_.start, agent_program(), node.name);
  } else {
    // Without `env`, which a machine with no more than this program may lack.
    words.erase(words.begin(), words.begin() + 3);
    environment = {{kRunVariable, options_.run_directory}, {kNodeVariable, node.name}};
  }
  try {
    node.starter = std::make_unique<ChildProcess>(words, environment, unset);
    ++starting_;
  } catch (const Error& error) {
    node.problem = error.what();
    if (handler_.start_failed) handler_.start_failed(index, node.problem);
  }
}

/// An agent that had worked is replaced at once: the node is needed, and the new agent removes what the
/// killed one left there, also where the run ends a moment later.
double Fleet::restart_s(const Node& node, double now_s) {
  return std::max(now_s, (node.greeted_s > 0 ? node.greeted_s : now_s) + node.start_interval_s);
}

void Fleet::watch_starters() {
  while (!to_start_.empty() && starting_ < int(kMostAtOnce)) {
    const int index = to_start_.front();
    to_start_.pop_front();
    if (!nodes_[size_t(index)].hello && !nodes_[size_t(index)].starter) start_agent(index);
  }
  const double now_s = clock_.monotonic_s();
  starting_ = 0;
  for (int i = 0; i < size(); ++i) {
    Node& node = nodes_[size_t(i)];
    if (node.starter) {
      node.starter_text += node.starter->read_output();
      if (node.starter_text.size() > kMostStarterText)
        node.starter_text.erase(0, node.starter_text.size() - kMostStarterText);
      if (const auto status = node.starter->reap()) {
        // One that had come is lost, not one that cannot be started.
        if (!node.hello && *status != 0 && node.greeted_s == 0) {
          node.problem = start_problem(*status, node.starter_text);
          if (handler_.start_failed) handler_.start_failed(i, node.problem);
        }
        node.starter.reset();
        if (!node.hello) node.next_start_s = restart_s(node, now_s);
      } else if (!node.hello) {
        ++starting_;
      }
    } else if (keep_agents_ && !ending_ && !node.hello && now_s >= node.next_start_s &&
               std::find(to_start_.begin(), to_start_.end(), i) == to_start_.end()) {
      node.start_interval_s = std::min(2 * node.start_interval_s, kLongestStartIntervalS);
      node.next_start_s = now_s + node.start_interval_s;
      to_start_.push_back(i);
    }
  }
  watch_start_of_all(now_s);
}

/// An agent that is stopped does not end by itself, and the next one is started when it has ended.
void Fleet::kill_starter(Node& node) {
  if (!ending_ && node.starter) node.starter->signal_group(SIGKILL);
}

}  // namespace trainctl
