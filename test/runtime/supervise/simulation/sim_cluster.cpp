// Faults, people and invariants of the simulated cluster, and the loop over its events.
#include "test/runtime/supervise/simulation/sim_cluster.h"

#include <fmt/format.h>

#include "test/runtime/supervise/simulation/sim_world.h"

namespace trainctl::test {

using namespace sim;

namespace {

constexpr int kMostFaults = 8;
constexpr double kResumeS = 30, kFinishS = 60, kLeftoverS = kGraceS + 3;
constexpr int kMostEvents = 200000;
/// For a node to connect again and hand in again, and for the answer to come.
constexpr double kAnswerS = 3;
/// The last agent's turn, another try of one whose first came too early, the start of the process.
constexpr double kTakeoverS = 0.75 * kGraceS + kGraceS / 10 + 0.5;

enum FaultKind {
  rank_killed,
  rank_stopped,
  agent_killed,
  node_crashes,
  node_silent,
  supervisor_killed,
  supervisor_stopped,
  checkpoint_damaged,
  second_supervisor,
  run_stopped,
  node_cut,
  pair_cut,
  disk_cut,
  connection_reset,
  host_slow,
  kFaultKinds,
  first_of_links = node_cut,
};
constexpr const char* kFaultNames[] = {
    "rank killed",       "rank stopped",           "agent killed",       "node crashes",
    "node goes silent",  "supervisor killed",      "supervisor stopped", "checkpoint damaged",
    "second supervisor", "a person stops the run", "node cut off",       "two nodes cut apart",
    "disk cut off",      "connection reset",       "host slow"};

}  // namespace

// ---- faults and people

void SimCluster::World::plan_faults() {
  double at_s = uniform(0, 3);
  const int n = below(kMostFaults + 1);
  calm = n == 0;
  for (int i = 0; i < n; ++i) {
    push(at_s, {.what = What::fault, .a = below(kFaultKinds), .b = i + 1 == n});
    at_s += chance(0.3) ? uniform(0, 0.6) : uniform(0.3, 4);
  }
}

void SimCluster::World::happen(int kind) {
  ++result.faults;
  last_fault_s = now_s;
  const int n = below(nodes);
  Node& a = node[size_t(n)];
  const double for_s = chance(0.5) ? uniform(0.2, 2.5) : uniform(2.5, 12);
  const double until_s = now_s + for_s;
  const int host = chance(0.5) ? supervisors.back().host : n;
  say(fmt::format("FAULT {}: n{} host {} for {:.1f} s", kFaultNames[kind], n, host, for_s));
  if (kind >= first_of_links) return happen_to_links(kind, n, host, until_s);
  quiet_s = std::max(quiet_s, now_s);
  const auto last_alive =
      std::find_if(supervisors.rbegin(), supervisors.rend(), [](const Supervisor& s) { return s.alive; });
  switch (kind) {
    case rank_killed: rank_ends(n, uint8_t(1 << below(kSlots)), killed); return;
    case rank_stopped: a.ranks.stopped |= uint8_t(1 << below(kSlots)); return;
    case agent_killed:
      if (a.agent) end_agent(n);
      return;
    case node_crashes:
    case node_silent:
      if (!a.power) return;
      lose_power(n, kind == node_silent);
      if (chance(0.75)) push(now_s + uniform(0.5, 8), {.what = What::boot, .a = n});
      return;
    case supervisor_killed:
      if (last_alive != supervisors.rend()) kill_supervisor(int(supervisors.rend() - last_alive) - 1);
      return;
    case supervisor_stopped:
      if (last_alive == supervisors.rend()) return;
      last_alive->paused_until_s = until_s;
      quiet_s = std::max(quiet_s, until_s);
      return;
    case checkpoint_damaged: return damage_newest();
    case run_stopped:
      if (last_alive == supervisors.rend()) return;
      ++result.stops;
      last_alive->stop_asked = true;
      last_alive->recovery->stop(StopLevel::save_and_stop);
      return;
    case second_supervisor: return start_supervisor(chance(0.5) ? kHead : n);
    default: return;
  }
}

/// At least one checkpoint is left.
void SimCluster::World::damage_newest() {
  const auto good = std::count_if(disk.checkpoints.begin(), disk.checkpoints.end(),
                                  [](const Saved& c) { return !c.unopenable && !c.unloadable; });
  if (good > 1)
    (chance(0.5) ? disk.checkpoints.back().unopenable : disk.checkpoints.back().unloadable) = true;
}

/// Index into SimResult::cuts_in_save; nothing while no save is under way.
std::optional<size_t> SimCluster::World::phase_of_save() const {
  const Group& g = groups[disk.epoch];
  if (!g.runs() || g.save == 0) return std::nullopt;
  if (const auto answer = g.answers.find(g.save);
      answer != g.answers.end() && answer->second.ranks == g.all_ranks())
    return std::nullopt;
  for (const Saved& saved : disk.checkpoints)
    if (saved.step == g.saved_step) return 3;
  for (const Supervisor& s : supervisors)
    if (s.alive && s.saves && s.epoch == disk.epoch && is_publishing(s)) return 2;
  for (const Saving& folder : disk.saving)
    if (folder.epoch == disk.epoch && folder.step == g.saved_step) return 1;
  return 0;
}

void SimCluster::World::happen_to_links(int kind, int n, int host, double until_s) {
  const auto phase = phase_of_save();
  if (phase && kind != connection_reset && kind != host_slow) ++result.cuts_in_save[*phase];
  if (kind != connection_reset) quiet_s = std::max(quiet_s, until_s);
  switch (kind) {
    case node_cut: {
      const int way = below(3);
      for (int other = 0; other < kHosts; ++other) {
        if (other == n) continue;
        if (way != 1) block(n, other, until_s);
        if (way != 2) block(other, n, until_s);
      }
      return;
    }
    case pair_cut: {
      const int other = chance(0.5) ? host : below(nodes);
      if (other == n) return;
      block(n, other, until_s);
      if (chance(0.5)) block(other, n, until_s);
      return;
    }
    case disk_cut:
      block(host, kDisk, until_s);
      block(kDisk, host, until_s);
      return;
    case connection_reset:
      if (node[size_t(n)].connection < 0) return;
      for (const int side : {0, 1})
        push(now_s, {.what = What::reset, .a = node[size_t(n)].connection, .b = side});
      return;
    case host_slow: slow_until_s[n] = until_s; return;
    default: return;
  }
}

/// After the last fault: of the nodes that are off, so many come back that the run fits and a majority lives.
void SimCluster::World::calm_down() {
  calm = true;
  int live = 0;
  for (int n = 0; n < nodes; ++n) live += node[size_t(n)].power;
  for (int n = 0; n < nodes; ++n) {
    if (node[size_t(n)].power || live >= std::max(least_width, nodes / 2 + 1)) continue;
    ++live;
    push(now_s + uniform(0, 2), {.what = What::boot, .a = n});
  }
}

// ---- invariants

void SimCluster::World::check() {
  for (int n = 0; n < nodes; ++n) {
    const Node& a = node[size_t(n)];
    if (a.ranks.alive && now_s - a.word_s > kGraceS / a.rate + kLongestKillS + 0.3)
      return violate(fmt::format("ranks of epoch {} live on n{} {:.2f} s after the last word of a supervisor",
                                 a.ranks.epoch, n, now_s - a.word_s));
    if (a.ranks.alive &&
        now_s - groups[a.ranks.epoch].given_up_s > (kSilenceS + kGraceS) / a.rate + kLongestKillS + 0.3)
      return violate(fmt::format("ranks of epoch {} live on n{} {:.2f} s after it was given up",
                                 a.ranks.epoch, n, now_s - groups[a.ranks.epoch].given_up_s));
  }
  check_takeover();
  check_answers();
  if (finished || !calm) return;
  if (now_s - std::max(quiet_s, last_step_s) > kResumeS)
    return violate(fmt::format("no step for {:.0f} s without a fault", kResumeS));
  if (now_s - quiet_s > kFinishS)
    violate(fmt::format("not finished {:.0f} s after the last fault", kFinishS));
}

void SimCluster::World::check_takeover() {
  const bool ended = finished || disk.address < 0;
  const bool supervised =
      std::any_of(supervisors.begin(), supervisors.end(), [](const Supervisor& s) { return s.alive; });
  int can = 0;
  for (int n = 0; n < nodes; ++n)
    can += node[size_t(n)].agent && node[size_t(n)].welcomed && reachable(n, kDisk) &&
           node[size_t(n)].state.phase() != AgentState::Phase::ending;
  if (!takeovers || ended || supervised || !lock_is_free() || can <= nodes / 2) orphaned_s = now_s;
  if (now_s - orphaned_s > kTakeoverS)
    violate(fmt::format("no agent has started a supervisor for {:.1f} s", now_s - orphaned_s));
}

void SimCluster::World::check_answers() {
  const Group& g = groups[disk.epoch];
  if (!g.runs()) return;
  const auto due = std::find_if(g.answers.begin(), g.answers.end(),
                                [&](const auto& answer) { return g.is_due(answer.second); });
  if (due == g.answers.end()) return;
  const double since_s = std::max({due->second.since_s, quiet_s, last_fault_s});
  for (const Supervisor& s : supervisors) {
    if (!s.alive || !s.supervision || s.epoch != disk.epoch || s.clearing) continue;
    const bool has_all =
        std::all_of(s.members.begin(), s.members.end(), [&](int n) { return s.connection[size_t(n)] >= 0; });
    if (has_all && now_s - std::max(since_s, s.began_s) > kAnswerS)
      violate(fmt::format("ranks wait for the answer to save {} of epoch {} for {:.1f} s", due->first,
                          disk.epoch, now_s - due->second.since_s));
  }
}

void SimCluster::World::check_end() {
  for (int n = 0; n < nodes; ++n)
    if (node[size_t(n)].agent || node[size_t(n)].ranks.alive)
      violate(fmt::format("n{} has {} {:.0f} s after the end", n,
                          node[size_t(n)].agent ? "an agent" : "ranks", kLeftoverS));
  const int saved = disk.checkpoints.empty() ? 0 : disk.checkpoints.back().step;
  if (saved != kTotalSteps || disk.metrics_step != kTotalSteps)
    violate(fmt::format("the run ended at step {} with step {} saved", disk.metrics_step, saved));
}

// ---- the loop

void SimCluster::World::dispatch(const Event& e) {
  switch (e.what) {
    case What::deliver: return deliver(e);
    case What::reset: return reset(e);
    case What::dialed: return dialed(e);
    case What::agent_tick:
      if (node[size_t(e.a)].life == e.guard && node[size_t(e.a)].tick_s == now_s) agent_turn(e.a);
      return;
    case What::agent_started: return agent_started(e);
    case What::agent_takes_over: return agent_takes_over(e.a);
    case What::ranks_up: {
      Node& a = node[size_t(e.a)];
      if (a.ranks.epoch != e.guard || int(a.life) != e.b || !a.ranks.alive) return;
      a.ranks.up = true;
      beat(e.a);
      return schedule_group(e.guard, 0.001);
    }
    case What::ranks_gone: {
      Node& a = node[size_t(e.a)];
      if (e.b >= 0 && int(a.life) != e.b) return;
      if (a.ranks.epoch == e.guard) a.ranks = {};
      if (e.b < 0) return;
      tell(e.a, {.say = Say::gone, .epoch = e.guard});
      return agent_turn(e.a);
    }
    case What::group: return advance(uint32_t(e.a), e.guard);
    case What::shard_written: return shard_written(e);
    case What::published: return published(e);
    case What::supervisor_tick: return supervisor_tick(e.a);
    case What::supervisor_dies:
      if (!supervisors[size_t(e.a)].alive) return;
      ++result.faults;
      last_fault_s = quiet_s = std::max(quiet_s, now_s);
      return kill_supervisor(e.a);
    case What::supervisor_started: {
      // A person looks now and then whether the run has a supervisor; where agents do, after the last of
      // them.
      if (finished) return;
      push(now_s + uniform(0.5, 3), {.what = What::supervisor_started});
      const bool agents = std::any_of(node.begin(), node.end(), [](const Node& a) { return a.agent; });
      if (takeovers && disk.address >= 0 && agents) return;
      const bool any =
          std::any_of(supervisors.begin(), supervisors.end(), [](const Supervisor& s) { return s.alive; });
      if (any && !(leases && lock_is_free())) return;
      int host = chance(0.5) ? kHead : below(nodes);
      for (int tries = 0; tries < 8 && !host_is_up(host); ++tries) host = below(nodes);
      return start_supervisor(host);
    }
    case What::fault:
      if (!finished) happen(e.a);
      if (e.b) calm_down();
      return;
    case What::boot:
      node[size_t(e.a)].power = true;
      quiet_s = std::max(quiet_s, now_s);
      return;
  }
}

SimResult SimCluster::World::run(uint64_t seed, const SimRules& wanted, bool log) {
  rules = wanted;
  random = seed * 0x9E3779B97F4A7C15u;
  now_s = quiet_s = last_step_s = last_fault_s = 0;
  finished_s = kNever;
  logging = log;
  finished = false;
  nodes = 3 + below(kMostNodes - 2);
  most_width = nodes - below(2);
  least_width = 1 + below(most_width);
  leases = chance(0.5), attaches = chance(0.5), quarantines = chance(0.2), takeovers = chance(0.5);
  saves_wait = chance(0.5);
  orphaned_s = 0;
  supervisor_home = chance(0.5) ? kHead : below(nodes);
  supervisors.clear(), connections.clear(), queue_.clear(), slots_.clear(), free_.clear();
  groups.assign(1, {});
  disk = {};
  order_ = 0;
  for (auto& row : blocked_until_s) std::fill(std::begin(row), std::end(row), 0.0);
  std::fill(std::begin(slow_until_s), std::end(slow_until_s), 0.0);
  for (Node& a : node) {
    a = {};
    a.rate = uniform(0.98, 1.02);
    a.offset_s = uniform(0, 1e6);
  }
  result = {};
  say(fmt::format("{} nodes, widths {} to {}, {}{}{}{}{}", nodes, least_width, most_width,
                  leases ? "leases " : "", attaches ? "attach " : "", quarantines ? "quarantine " : "",
                  takeovers ? "takeover " : "", saves_wait ? "waits for saves" : ""));
  plan_faults();
  start_supervisor(supervisor_home);
  push(uniform(0.5, 3), {.what = What::supervisor_started});
  while (!queue_.empty() && result.violation.empty()) {
    std::pop_heap(queue_.begin(), queue_.end());
    const Due due = queue_.back();
    queue_.pop_back();
    free_.push_back(due.slot);
    if (due.at_s > finished_s + kLeftoverS) {
      now_s = finished_s + kLeftoverS;
      check_end();
      break;
    }
    now_s = due.at_s;
    const Event event = slots_[due.slot];
    dispatch(event);
    check();
    if (++result.events > kMostEvents) violate("the history does not end");
  }
  if (!finished && result.violation.empty()) violate("nothing happens any more");
  result.simulated_s = now_s;
  return result;
}

SimCluster::SimCluster() : world_(std::make_unique<World>()) {}
SimCluster::~SimCluster() = default;

SimResult SimCluster::run(uint64_t seed, const SimRules& rules, bool log) {
  return world_->run(seed, rules, log);
}

}  // namespace trainctl::test
