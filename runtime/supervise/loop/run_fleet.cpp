#include "runtime/supervise/loop/run_fleet.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/ensure.h"
#include "runtime/base/json.h"
#include "runtime/run/wire/environment.h"
#include "runtime/run/wire/supervisor_file.h"
#include "runtime/supervise/loop/run_source.h"

namespace trainctl {
namespace {

constexpr double kEndAgentsS = 3;
constexpr double kAgentsTurnS = 0.05, kLongestWaitS = 0.5;
/// For the answer of an agent, which reads a few pages of memory for it.
constexpr double kPiecesS = 2;
/// For agents that a dead supervisor left, which dial every 0.1 s.
constexpr double kOrphansS = 0.5;
/// For the agents of a supervisor that died: they dial every 0.1 s. Of one that is stopped: after its
/// silence.
constexpr double kAttachLimitS = 3;

Fleet::Options fleet_options(const SupervisePlan& plan, const std::string& run_directory,
                             const SessionFolders& folders) {
  const FaultSpec& fault = plan.job.job.fault_tolerance;
  Fleet::Options options{
      .run_directory = run_directory,
      .program = plan.program,
      .mpirun = plan.mpirun,
      .start = plan.nodes.start,
      .listen = plan.nodes.listen.empty() ? "unix:" + folders.session() + "/supervisor" : plan.nodes.listen,
      .numerics = plan.nodes.one_machine ? "" : plan.numerics,
      .silence_s = fault.node_silence_seconds,
      .grace_s = fault.grace_seconds,
      .takeover = fault.supervisor_takeover && plan.nodes.start.way != AgentStart::Way::awaited,
      .requeue = plan.slurm.requeue,
      .chain = plan.slurm.chain};
  const JobSpec& job = plan.job.job;
  for (const ClusterNode& node : plan.nodes.nodes) {
    options.nodes.push_back(node.name);
    if (!plan.nodes.one_machine && job.device == DeviceChoice::cuda)
      options.gpus_needed.push_back((node.slots + job.launcher.ranks_per_gpu - 1) /
                                    job.launcher.ranks_per_gpu);
  }
  return options;
}

/// The fields of the event node_up: address and facts of the node, offset of its clock.
std::string node_up_json(const Fleet& fleet, int node) {
  const wire::NodeHello& hello = *fleet.hello(node);
  Json fields = {
      {"node", fleet.name(node)}, {"address", hello.address}, {"facts", parse_json(hello.facts.to_json())}};
  if (const auto offset_s = fleet.clock_offset_s(node)) fields["clock_offset_s"] = *offset_s;
  return dump_json(fields);
}

}  // namespace

RunFleet::RunFleet(SupervisedRun& run, Recovery& recovery)
    : run_(run), recovery_(recovery), has_orphans_(run.fs.exists(supervisor_file(run.directory.path))) {}

RunFleet::Left RunFleet::attach(const SessionFolders& folders) {
  if (!run_.plan.attach) return Left::nothing;
  ENSURE(!fleet_);
  const AttemptFile& file = *run_.plan.attach;
  Fleet::Options options = fleet_options(run_.plan, run_.directory.path, folders);
  options.attach_to = file.epoch;
  fleet_.emplace(std::move(options), run_.clock);
  const double silence_s = run_.plan.job.job.fault_tolerance.node_silence_seconds;
  // Each says at once what it has: one without ranks of the attempt gets none later.
  await_agents(std::max(kAttachLimitS, silence_s + 1), [&] {
    return std::all_of(file.nodes.begin(), file.nodes.end(), [&](const AttemptFile::Node& node) {
      const int index = fleet_->find(node.name);
      return index >= 0 && fleet_->hello(index);
    });
  });
  fleet_->end_attach();
  const bool has_ranks = nodes_there(file) > 0;
  if (!has_ranks && fleet_->ready_count() == 0) {
    fleet_->end(kEndAgentsS);
    fleet_.reset();
    return Left::nothing;
  }
  fleet_->keep_agents(true);
  listen();
  if (has_ranks) return Left::ranks;
  for (int i = 0; i < fleet_->size(); ++i)
    if (const wire::NodeHello* hello = fleet_->hello(i); hello && hello->epoch)
      fleet_->machine(i).order({.kind = wire::Kind::kill, .epoch = *hello->epoch});
  fleet_->start_agents();
  return Left::agents;
}

/// The number of nodes on which the ranks of that attempt still run; 0 if one of them is not in this fleet.
size_t RunFleet::nodes_there(const AttemptFile& file) const {
  size_t count = 0;
  for (const AttemptFile::Node& node : file.nodes) {
    const int index = fleet_->find(node.name);
    if (index < 0) return 0;
    count += missing_from(fleet_->hello(index), file.epoch).is_none();
  }
  return count;
}

void RunFleet::begin(const SessionFolders& folders) {
  ENSURE(!fleet_);
  fleet_.emplace(fleet_options(run_.plan, run_.directory.path, folders), run_.clock);
  listen();
  // Agents of a dead supervisor dial by themselves; a second agent on a node would only end the first.
  if (has_orphans_ && !run_.plan.nodes.one_machine)
    await_agents(kOrphansS, [this] { return fleet_->ready_count() == fleet_->size(); });
  fleet_->start_agents();
}

void RunFleet::await_agents(double limit_s, const std::function<bool()>& enough) {
  const double until_s = run_.clock.monotonic_s() + limit_s;
  while (!enough() && run_.clock.monotonic_s() < until_s) {
    fleet_->await(kAgentsTurnS);
    fleet_->serve();
  }
}

Fleet::Handler RunFleet::handler() {
  return {.up = [this](int node, const wire::NodeHello&) { node_up(node); },
          .lost = [this](int node, const NodeLoss& loss) { node_lost(node, loss, false); },
          .start_failed = [this](int node, const std::string& why) { start_failed(node, why); },
          .message = {}};
}

std::vector<NodePieces> RunFleet::pieces(const std::function<void()>& turn) {
  if (run_.plan.nodes.one_machine) return {pieces_here(run_.plan, run_.directory, run_.fs)};
  return ask_for_pieces(*fleet_, run_.clock, kPiecesS, handler(), turn);
}

void RunFleet::listen() {
  ENSURE(fleet_);
  fleet_->set_handler(handler());
  for (int i = 0; i < fleet_->size(); ++i)
    if (fleet_->hello(i) && !is_up_.contains(i)) node_up(i);
}

void RunFleet::poll(double until_s, int other_fd) const {
  const double left_s = std::min(until_s, fleet_->deadline_s()) - run_.clock.monotonic_s();
  fleet_->await(std::min(left_s, kLongestWaitS), {other_fd});
}

void RunFleet::node_up(int node) {
  ENSURE(node >= 0 && size_t(node) < run_.plan.nodes.nodes.size() && fleet_->hello(node), "node {}", node);
  is_up_.insert(node);
  const int slots = run_.plan.nodes.nodes[size_t(node)].slots;
  recovery_.node_ready(fleet_->name(node), slots, run_.clock.monotonic_s());
  if (const double apart_s = std::abs(fleet_->clock_offset_s(node).value_or(0)); apart_s > kClocksApartS)
    run_.log.console().note(fmt::format(
        " ! the clock of {} is {:.1f} s apart from this one: times in its logs are, too; set it by NTP",
        fleet_->name(node), apart_s));
  run_.log.event(EventKind::node_up, node_up_json(*fleet_, node));
}

void RunFleet::node_lost(int node, const NodeLoss& loss, bool is_recorded) {
  is_up_.erase(node);
  recovery_.node_lost(fleet_->name(node), loss.why, run_.clock.monotonic_s(), loss.by_own_pause);
  if (!is_recorded)
    run_.log.event(EventKind::node_lost, dump_json(Json{{"node", fleet_->name(node)}, {"reason", loss.why}}));
  run_.log.console().note(fmt::format(" ! {}: {}", fleet_->name(node), loss.why));
}

void RunFleet::start_failed(int node, const std::string& why) {
  if (run_.plan.nodes.one_machine) throw Error(ErrorCode::kLauncher, why);
  recovery_.node_lost(fleet_->name(node), why, run_.clock.monotonic_s());
  if (std::exchange(start_problems_[node], why) == why) return;
  run_.log.console().note(fmt::format(" ! {}: {}", fleet_->name(node), why));
  run_.log.event(EventKind::node_failed, dump_json(Json{{"node", fleet_->name(node)}, {"reason", why}}));
}

std::vector<NodeStatus> RunFleet::statuses(const std::vector<AttemptPlan::Node>& places) const {
  std::vector<NodeStatus> list;
  if (!fleet_ || run_.plan.nodes.one_machine) return list;
  const double offset_s = run_.clock.unix_s() - run_.clock.monotonic_s();
  for (const PoolNode& pool : recovery_.pool()) {
    const int node = fleet_->find(pool.name);
    NodeStatus status{.name = pool.name, .state = NodeState::absent, .since_unix_s = pool.since_s + offset_s};
    for (const AttemptPlan::Node& place : places)
      if (place.node == node && recovery_.running()) status.first = place.first, status.count = place.count;
    if (pool.state == PoolNode::ready)
      status.state = pool.quarantined   ? NodeState::quarantined
                     : status.count > 0 ? NodeState::running
                                        : NodeState::spare;
    if (pool.state == PoolNode::lost) status.state = NodeState::lost, status.reason = pool.why;
    if (node >= 0 && fleet_->heard_s(node) > 0) status.heard_unix_s = fleet_->heard_s(node) + offset_s;
    if (node >= 0 && fleet_->hello(node)) {
      status.facts = fleet_->hello(node)->facts;
      status.usage = fleet_->usage(node);
      status.clock_offset_s = fleet_->clock_offset_s(node);
    }
    list.push_back(status);
  }
  return list;
}

std::string RunFleet::with_problems(std::string why) const {
  ENSURE(last_problems_.size() <= run_.plan.nodes.nodes.size());
  for (size_t i = 0; i < last_problems_.size(); ++i)
    if (!last_problems_[i].empty())
      why += fmt::format("; {}: {}", run_.plan.nodes.nodes[i].name, last_problems_[i]);
  return why;
}

void RunFleet::end() {
  if (!fleet_) return;
  for (int i = 0; i < fleet_->size(); ++i) last_problems_.push_back(fleet_->problem(i));
  RunStatus& status = run_.log.status();
  // A resume on several nodes begins before it knows what they hold.
  const bool keeps_memory = run_.plan.nodes.one_machine && status.saved_step < status.step;
  if (!keeps_memory) status.staged_step = status.partner_step = -1;
  fleet_->end(kEndAgentsS, keeps_memory);
  fleet_.reset();
}

void RunFleet::leave() {
  if (fleet_) fleet_->leave();
}

void RunFleet::end_leftovers() {
  for (int tries = 0; tries < 100 && signal_marked(kRunVariable, run_.directory.path, SIGKILL) > 0; ++tries)
    run_.clock.sleep_s(0.02);
}

}  // namespace trainctl
