// Attempts of the simulated cluster. What comes next is decided by Recovery and Supervision; their effects,
// the reports of the ranks and the saves are here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "test/runtime/supervise/simulation/sim_world.h"

namespace trainctl::test {

using namespace sim;

namespace {

constexpr double kClearS = 6;  // for ranks that outlive their attempt

int node_named(const std::string& name) { return name[1] - '0'; }

}  // namespace

// ---- an attempt

void SimCluster::World::begin_attempt(int id, const StartAttempt& start) {
  Supervisor& s = supervisors[size_t(id)];
  if (!reachable(s.host, kDisk)) return;  // the next tick tries again
  if (!reaches_memory(s, start)) return s.recovery->memory_out_of_reach();
  s.epoch = ++disk.epoch;
  disk.attempt_lives = true;
  ++result.epochs;
  if (start.width.data < most_width) ++result.narrower;
  if (rules.saves_of_old_epochs_are_swept) disk.saving.clear();
  const int64_t from = start.step.value_or(0);
  disk.beginnings = with_beginning(disk.beginnings, {s.epoch, from});
  std::erase_if(disk.checkpoints, [&](const Saved& saved) { return saved.step > from; });
  s.members.clear();
  for (const std::string& name : start.nodes) s.members.push_back(node_named(name));
  disk.metrics_step = int(from);
  give_up_groups();
  groups.resize(size_t(s.epoch) + 1);
  groups[s.epoch] = {.nodes = s.members,
                     .width = start.width.data,
                     .from_step = start.step.value_or(-1),
                     .from_memory = start.in_memory ? s.from_memory : std::nullopt,
                     .progress_s = now_s};
  say(fmt::format("supervisor {} starts epoch {} on {} of width {} from {}: {}", id, s.epoch,
                  fmt::join(start.nodes, " "), start.width.data, start.step.value_or(-1), start.why));
  s.recovery->attempt_started(start, now_s);
  s.attached = false;
  attempt_begins(id, start.width);
  for (const int n : s.members) {
    if (s.connection[size_t(n)] < 0)
      return violate(fmt::format("epoch {} begins on n{}, which is not connected", s.epoch, n));
    send(s.connection[size_t(n)], 1, {.say = Say::start, .epoch = s.epoch});
  }
}

void SimCluster::World::give_up_groups() {
  for (Group& g : groups) g.given_up_s = std::min(g.given_up_s, now_s);
}

/// Supervision of the epoch that runs from now on.
void SimCluster::World::attempt_begins(int id, const Width& width) {
  Supervisor& s = supervisors[size_t(id)];
  Supervision::Options limits{.ranks = width.ranks,
                              .launcher = false,
                              .target_step = kTotalSteps,
                              .heartbeat_s = 0.5,
                              .step_timeout_s = 6,
                              .setup_timeout_s = 6,
                              .data_timeout_s = 6,
                              .load_timeout_s = 6,
                              .evaluation_timeout_s = 6,
                              .save_timeout_s = 6,
                              .start_timeout_s = 4};
  for (size_t i = 0; i < s.members.size(); ++i)
    limits.nodes.push_back({name_of_node(s.members[i]), int(i) * kSlots, kSlots});
  s.supervision.emplace(limits, now_s);
  s.gone = 0;
  s.began_s = now_s;
  s.finishing = s.clearing = s.regrouping = false;
  begin_saves(id, s.attached);
}

bool SimCluster::World::all_gone(const Supervisor& s) const {
  for (size_t i = 0; i < s.members.size(); ++i)
    if (!(s.gone >> i & 1) && s.connection[size_t(s.members[i])] >= 0) return false;
  return true;
}

void SimCluster::World::attempt_turn(int id) {
  Supervisor& s = supervisors[size_t(id)];
  if (!s.supervision) return;
  const auto to_all = [&](Say what) {
    for (const int n : s.members)
      if (s.connection[size_t(n)] >= 0) send(s.connection[size_t(n)], 1, {.say = what, .epoch = s.epoch});
  };
  if (s.clearing) {
    if (all_gone(s) || now_s >= s.clear_until_s) attempt_is_over(id);
    return;
  }
  if (!saves_turn(id)) return;
  Supervision& attempt = *s.supervision;
  const bool runs = attempt.phase() == Supervision::Phase::running && attempt.stop_level() == StopLevel::none;
  if (runs && s.recovery->regroup(now_s) != Recovery::Regroup::none) {
    say(fmt::format("supervisor {} ends epoch {} to regroup", id, s.epoch));
    s.regrouping = true;
    ++result.regroups;
    attempt.stop(StopLevel::save_and_stop, now_s);
  }
  if (s.stop_asked) attempt.stop(StopLevel::save_and_stop, now_s);
  attempt.tick(now_s);
  for (const Supervision::Action action : attempt.take_actions()) {
    if (action == Supervision::Action::tell_save_and_stop) to_all(Say::stop);
    if (action == Supervision::Action::kill) to_all(Say::kill);
  }
  if (attempt.phase() == Supervision::Phase::ending && all_gone(s)) attempt.all_gone(now_s);
  if (!attempt.over() || !saves_are_finished(id)) return;
  s.clearing = true;
  s.clear_until_s = now_s + kClearS;
  if (!all_gone(s))
    to_all(Say::kill);
  else
    attempt_is_over(id);
}

void SimCluster::World::attempt_is_over(int id) {
  Supervisor& s = supervisors[size_t(id)];
  s.saves.reset();
  const Verdict v = s.supervision->verdict();
  const Group& g = groups[s.epoch];
  if (v.outcome == Verdict::failed && v.code == ErrorCode::kHang && g.well == g.all_ranks() &&
      s.supervision->first_evidence_s() > g.progress_s)
    violate(fmt::format("all ranks of epoch {} ended well, and it failed: {}", s.epoch, v.cause));
  const int64_t last = std::max<int64_t>(s.supervision->last_step(), groups[s.epoch].from_step);
  AttemptEnd end{.code = v.code, .cause = v.cause, .rank = v.rank};
  if (v.rank >= 0) end.node = name_of_node(s.members[size_t(v.rank / kSlots)]);
  end.how = v.outcome == Verdict::failed                            ? AttemptEnd::failed
            : v.outcome == Verdict::finished && last == kTotalSteps ? AttemptEnd::finished
            : v.outcome == Verdict::finished
                ? AttemptEnd::regrouped  // a supervisor that died since had asked them to stop
            : s.regrouping && !s.stop_asked ? AttemptEnd::regrouped
                                            : AttemptEnd::stopped;
  // A rank that fails while it saves and stops for a regroup is a failure like any other.
  say(fmt::format("supervisor {}: epoch {} is over: {} {}", id, s.epoch, int(end.how), v.cause));
  s.supervision.reset();
  s.members.clear();
  disk.attempt_lives = false;
  give_up_groups();
  s.recovery->attempt_ended(end, now_s);
  decide(id);
}

void SimCluster::World::decide(int id) {
  while (true) {
    Supervisor& s = supervisors[size_t(id)];
    if (!s.alive || s.supervision || s.attaching) return;
    const Decision d = s.recovery->next(now_s);
    if (const auto* start = std::get_if<StartAttempt>(&d)) return begin_attempt(id, *start);
    if (std::holds_alternative<Wait>(d)) return;
    if (const auto* find = std::get_if<FindCheckpoint>(&d)) {
      if (!reachable(s.host, kDisk)) return;
      look_for_state(id, *find);
      continue;
    }
    const auto* stop = std::get_if<StopRun>(&d);
    finished = stop && stop->exit_code == 0;
    if (finished)
      finished_s = now_s;
    else if (!s.stop_asked)
      violate("the run gave up: " + (stop ? stop->why : std::get<RequeueJob>(d).why));
    return end_run(id);
  }
}

void SimCluster::World::end_run(int id) {
  Supervisor& s = supervisors[size_t(id)];
  say(fmt::format("supervisor {} ends the run", id));
  give_up_groups();
  for (int n = 0; n < nodes; ++n)
    if (s.connection[size_t(n)] >= 0) send(s.connection[size_t(n)], 1, {.say = Say::end});
  disk.lock = disk.address = -1;
  kill_supervisor(id);
}

/// Waits for the agents of a supervisor that is gone, and goes on with their ranks, or at least with them.
void SimCluster::World::attach(int id) {
  Supervisor& s = supervisors[size_t(id)];
  const Group& g = groups[disk.epoch];
  const auto runs = [&](int n) { return s.connection[size_t(n)] >= 0 && (s.kept >> n & 1); };
  const auto there = std::count_if(g.nodes.begin(), g.nodes.end(), runs);
  const bool all = there == int(g.nodes.size());
  if (!all && now_s < s.attach_until_s) return;
  s.attaching = false;
  s.next_start_s.fill(now_s);
  if (there == 0) {
    say(fmt::format("supervisor {} cannot attach", id));
    s.early.clear();
    return;
  }
  ++result.attached;
  result.partly_attached += !all;
  s.epoch = disk.epoch;
  s.members = g.nodes;
  StartAttempt start{.width = {.data = g.width, .ranks = g.width * kSlots}};
  for (const int n : s.members) start.nodes.push_back(name_of_node(n));
  if (g.from_step >= 0) start.step = g.from_step;
  if (g.from_memory) start.in_memory = g.from_memory->state;
  say(fmt::format("supervisor {} attaches to epoch {}", id, s.epoch));
  s.recovery->attempt_started(start, now_s);
  s.attached = true;
  attempt_begins(id, start.width);
  result.partly_answered += g.runs() && std::any_of(g.answers.begin(), g.answers.end(),
                                                    [&](const auto& a) { return g.is_partial(a.second); });
  for (size_t i = 0; i < s.members.size(); ++i) {
    if (runs(s.members[i])) continue;
    s.supervision->node_lost(int(i), "it is not connected", now_s);
    s.gone |= 1u << i;
  }
  for (const auto& [n, message] : std::exchange(s.early, {}))
    if (s.connection[size_t(n)] >= 0) supervisor_hears(id, n, message);
}

// ---- what agents say

void SimCluster::World::supervisor_hears(int id, int n, const Message& m) {
  Supervisor& s = supervisors[size_t(id)];
  if (m.say == Say::fin) {
    lose_node(id, n, "its connection is gone");
    if (s.supervision) attempt_turn(id);
    return;
  }
  s.heard_s[size_t(n)] = now_s;
  if (m.say == Say::beat)
    while (!s.unobeyed[size_t(n)].empty() && s.unobeyed[size_t(n)].front().sequence <= m.number)
      s.unobeyed[size_t(n)].pop_front();
  if (s.attaching) return s.early.push_back({n, m});
  s.taken[size_t(n)] = std::max(s.taken[size_t(n)], m.sequence);
  const int index = index_of(s, n);
  if (index < 0 || !s.supervision || m.epoch != s.epoch) return;
  if (s.gone >> index & 1) return;  // it was lost, or its ranks are gone: what comes now comes too late
  Supervision& attempt = *s.supervision;
  const int first = index * kSlots;
  switch (m.say) {
    case Say::beat:
      for (int r = 0; r < kSlots; ++r) {
        if (!(m.mask >> r & 1)) continue;
        if (attempt.ranks()[size_t(first + r)].phase == RankView::absent)
          attempt.hello(first + r, 1, "", now_s);
        const double since_s = attempt.ranks()[size_t(first + r)].heard_s;
        attempt.heard(first + r, now_s, m.how >> r & 1 ? 0 : now_s - since_s);
        if (!(m.how >> r & 1)) attempt.stopped(first + r, true);
      }
      return;
    case Say::step: return take_step_report(id, m);
    case Say::shard:
    case Say::answered: return take_save(id, m);
    case Say::done:
      attempt.done(first + m.rank, now_s);
      // It may die before it hears of the others.
      if (chance(0.01)) push(now_s + uniform(0, 0.01), {.what = What::supervisor_dies, .a = id});
      break;
    case Say::exited: {
      const int rank = first + m.rank;
      std::optional<CrashRecord> record;
      if (m.how == lost_peer)
        record = CrashRecord{.rank = rank, .code = ErrorCode::kPeerLost, .message = "waited"};
      if (m.how == bad_checkpoint)
        record = CrashRecord{.rank = rank, .code = ErrorCode::kCheckpoint, .message = "damaged"};
      attempt.exited(rank, m.how == killed ? 9 : m.how == well ? 0 : 1 << 8, record, now_s);
      break;
    }
    case Say::gone: s.gone |= 1u << index; break;
    default: return;
  }
  attempt_turn(id);
}

void SimCluster::World::take_step_report(int id, const Message& m) {
  Supervisor& s = supervisors[size_t(id)];
  if (m.epoch < disk.metrics_epoch)
    violate(fmt::format("a step of epoch {} is taken after one of {}", m.epoch, disk.metrics_epoch));
  disk.metrics_epoch = std::max(disk.metrics_epoch, m.epoch);
  // After an attach some come twice.
  if (m.step > disk.metrics_step + 1)
    violate(fmt::format("step {} follows step {}", m.step, disk.metrics_step));
  disk.metrics_step = std::max(disk.metrics_step, m.step);
  uint64_t expected = 1;
  for (int step = 1; step <= m.step; ++step) expected = next_bits(expected, step, 1);
  if (m.bits != expected) violate(fmt::format("step {} of epoch {} has other bits", m.step, m.epoch));
  s.supervision->progressed(m.step, now_s);
  s.recovery->progressed(m.step);
  result.longest_standstill_s = std::max(result.longest_standstill_s, now_s - std::max(quiet_s, last_step_s));
  last_step_s = now_s;
}

}  // namespace trainctl::test
