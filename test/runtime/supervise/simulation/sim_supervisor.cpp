// Supervisors of the simulated cluster: their life, their lock and their fleet of agents.
#include <fmt/format.h>

#include "test/runtime/supervise/simulation/sim_world.h"

namespace trainctl::test {

using namespace sim;

namespace {

constexpr double kTickS = 0.25, kBeatS = 0.5, kStatusS = 1, kAttachS = 3, kOwnPauseS = 1, kShellLimitS = 1;
constexpr double kFirstStartIntervalS = 1, kLongestStartIntervalS = 8;

}  // namespace

// ---- life

bool SimCluster::World::lock_is_free() const {
  if (disk.lock < 0 || !rules.one_supervisor_holds_the_lock) return true;
  const Supervisor& holder = supervisors[size_t(disk.lock)];
  if (leases && now_s - holder.renewed_s > kLeaseS) return true;
  if (holder.alive) return false;
  // The system of its host gives the lock back, if it lives and is heard.
  const bool told = host_is_up(holder.host) && reachable(holder.host, kDisk);
  return told || now_s - holder.died_s > kLeaseS;
}

/// When a supervisor that is stopped, or waits for the disk, goes on at the earliest.
double SimCluster::World::awake_s(const Supervisor& s) const {
  if (s.paused_until_s > now_s) return s.paused_until_s;
  return s.blocked ? now_s + 0.1 : now_s;
}

void SimCluster::World::start_supervisor(int host) {
  if (!host_is_up(host) || !reachable(host, kDisk) || !lock_is_free()) {
    say(fmt::format("a supervisor on {} finds the run busy", host));
    return;
  }
  const int id = int(supervisors.size());
  Supervisor& s = supervisors.emplace_back();
  s.host = host;
  s.alive = true;
  s.renewed_s = s.ticked_s = now_s;
  s.connection.fill(-1);
  s.heard_s.fill(0);
  s.taken.fill(0);
  s.interval_s.fill(kFirstStartIntervalS);
  s.next_start_s.fill(now_s);
  disk.lock = disk.address = id;
  ++result.supervisors;
  s.attaching = attaches && disk.attempt_lives;
  s.attach_until_s = now_s + kAttachS;
  Recovery::Options options{.tensor = kSlots,
                            .max_restarts = 1 << 20,
                            .loop_limit = 100,
                            .too_few = Recovery::TooFew::wait,
                            .wait_limit_s = 1e9,
                            .gather_limit_s = 5,
                            .rejoin_limit_s = 0.5,
                            .settle_s = 1,
                            .quarantine = {.failures = quarantines ? 3 : 0}};
  for (int data = most_width; data >= least_width; --data)
    options.widths.push_back({.data = data, .ranks = data * kSlots});
  for (int n = 0; n < nodes; ++n) options.nodes.push_back(name_of_node(n));
  for (const Saved& saved : disk.checkpoints)
    if (!saved.unopenable) options.from_step = saved.step;
  s.recovery.emplace(std::move(options), now_s);
  say(fmt::format("supervisor {} on {}{}", id, host, s.attaching ? ", attaching" : ""));
  if (s.attaching) s.next_start_s.fill(s.attach_until_s);
  supervisor_tick(id);
}

void SimCluster::World::kill_supervisor(int id) {
  Supervisor& s = supervisors[size_t(id)];
  if (!s.alive) return;
  say(fmt::format("supervisor {} is gone", id));
  s.alive = false;
  s.died_s = now_s;
  for (size_t c = 0; c < connections.size(); ++c)
    if (connections[c].supervisor == id && connections[c].open[1]) close(int(c), 1, !host_is_up(s.host));
}

/// The status file, and whether the run is still this supervisor's. False: nothing more may be done now.
bool SimCluster::World::write_status(int id) {
  Supervisor& s = supervisors[size_t(id)];
  s.blocked = !reachable(s.host, kDisk);
  if (s.blocked) return false;
  if (rules.lock_is_looked_at_before_publishing && !owns_lock(id)) {
    say(fmt::format("supervisor {} sees that it lost the lock", id));
    kill_supervisor(id);
    return false;
  }
  s.status_s = now_s;
  if (id < disk.last_publisher)
    violate(fmt::format("supervisor {} writes a status after supervisor {}", id, disk.last_publisher));
  disk.last_publisher = std::max(disk.last_publisher, id);
  return true;
}

void SimCluster::World::supervisor_tick(int id) {
  if (!supervisors[size_t(id)].alive) return;
  push(now_s + kTickS, {.what = What::supervisor_tick, .a = id});
  supervisor_turn(id);
}

/// Before it takes anything from a socket: one that was stopped may have lost its run meanwhile.
bool SimCluster::World::is_awake(int id) {
  const Supervisor& s = supervisors[size_t(id)];
  if (s.alive && now_s - s.ticked_s > kOwnPauseS && rules.lock_is_looked_at_before_publishing)
    supervisor_turn(id);
  return s.alive && !s.blocked;
}

void SimCluster::World::supervisor_turn(int id) {
  Supervisor& s = supervisors[size_t(id)];
  // The system of the host keeps the lock, whether the process runs or not.
  if (reachable(s.host, kDisk) && owns_lock(id)) s.renewed_s = now_s;
  if (s.paused_until_s > now_s) return;
  if ((s.blocked || now_s - s.status_s >= kStatusS || now_s - s.ticked_s > kOwnPauseS) && !write_status(id))
    return;
  const double pause_s = now_s - s.ticked_s > kOwnPauseS ? now_s - s.ticked_s : 0;
  s.ticked_s = now_s;
  fleet_turn(id, pause_s);
  if (s.attaching) attach(id);
  if (!s.attaching) attempt_turn(id);
  decide(id);
}

// ---- the fleet

void SimCluster::World::fleet_turn(int id, double pause_s) {
  Supervisor& s = supervisors[size_t(id)];
  const bool beats = now_s - s.beat_s >= kBeatS;
  if (beats) s.beat_s = now_s;
  for (int n = 0; n < nodes; ++n) {
    const size_t i = size_t(n);
    s.heard_s[i] = std::min(s.heard_s[i] + pause_s, now_s);
    if (s.connection[i] >= 0) {
      if (now_s - s.heard_s[i] > kSilenceS && rules.supervisor_notices_silence)
        lose_node(id, n, "silent");
      else if (beats)
        send(s.connection[i], 1, {.say = Say::beat, .sequence = s.taken[i]});
    } else if (now_s >= s.next_start_s[i] && (rules.lost_agents_are_started_again || now_s < 1)) {
      s.next_start_s[i] = now_s + 0.5 + s.interval_s[i];
      s.interval_s[i] = std::min(2 * s.interval_s[i], kLongestStartIntervalS);
      const bool can = node[i].power && reachable(s.host, n);
      push(now_s + (can ? uniform(0.2, 0.5) : kShellLimitS),
           {.what = What::agent_started, .a = n, .b = id, .guard = can});
      s.recovery->node_coming(name_of_node(n), now_s);
    }
  }
}

/// The remote shell of an agent's start has ended.
void SimCluster::World::agent_started(const Event& event) {
  const int n = event.a;
  if (event.guard && node[size_t(n)].power && !finished) return start_agent(n);
  Supervisor& s = supervisors[size_t(event.b)];
  if (!s.alive || s.connection[size_t(n)] >= 0) return;
  s.recovery->node_lost(name_of_node(n), "its agent could not be started", now_s);
  decide(event.b);
}

void SimCluster::World::greet(int id, int connection, const Message& m) {
  Supervisor& s = supervisors[size_t(id)];
  const int n = connections[size_t(connection)].node;
  const size_t i = size_t(n);
  if (s.connection[i] >= 0 && s.agent_life[i] == m.number) return take_back(id, connection, m);
  if (s.connection[i] >= 0) lose_node(id, n, "another agent has connected");
  s.agent_life[i] = m.number;
  s.unobeyed[i].clear();
  s.connection[i] = connection;
  s.heard_s[i] = now_s;
  s.taken[i] = 0;
  s.interval_s[i] = kFirstStartIntervalS;
  const bool keep = s.attaching && m.epoch != 0 && m.epoch == disk.epoch;
  s.kept = keep ? s.kept | 1u << n : s.kept & ~(1u << n);
  send(connection, 1, {.say = Say::welcome, .how = keep});
  s.recovery->node_ready(name_of_node(n), kSlots, now_s);
  decide(id);
}

/// The agent comes again, by another connection.
void SimCluster::World::take_back(int id, int connection, const Message& m) {
  Supervisor& s = supervisors[size_t(id)];
  const size_t i = size_t(connections[size_t(connection)].node);
  say(fmt::format("supervisor {} takes n{} back, orders up to {} obeyed", id, i, m.sequence));
  ++result.taken_back;
  close(s.connection[i], 1);
  s.connection[i] = connection;
  s.heard_s[i] = now_s;
  send(connection, 1, {.say = Say::welcome, .mask = 1, .how = 1, .sequence = s.taken[i]});
  std::deque<Message>& orders = s.unobeyed[i];
  while (!orders.empty() && orders.front().sequence <= m.sequence) orders.pop_front();
  result.given_again += int(orders.size());
  for (const Message& order : orders)
    if (rules.orders_are_given_again) send(connection, 1, order);
}

void SimCluster::World::lose_node(int id, int n, const char* why) {
  Supervisor& s = supervisors[size_t(id)];
  const size_t i = size_t(n);
  say(fmt::format("supervisor {} loses n{}: {}", id, n, why));
  close(s.connection[i], 1);
  s.connection[i] = -1;
  s.kept &= ~(1u << n);
  s.next_start_s[i] = now_s + s.interval_s[i];
  s.recovery->node_lost(name_of_node(n), why, now_s);
  const int index = index_of(s, n);
  if (index < 0 || !s.supervision) return;
  if (!(s.gone >> index & 1) && !s.supervision->over()) s.supervision->node_lost(index, why, now_s);
  s.gone |= 1u << index;
}

int SimCluster::World::index_of(const Supervisor& s, int n) const {
  const auto it = std::find(s.members.begin(), s.members.end(), n);
  return it == s.members.end() ? -1 : int(it - s.members.begin());
}

}  // namespace trainctl::test
