// Time, chance and links of the simulated cluster.
#include "test/runtime/supervise/simulation/sim_world.h"

#include <fmt/format.h>

namespace trainctl::test {

using namespace sim;

namespace sim {

uint64_t next_bits(uint64_t bits, int step, int width) {
  std::array<uint64_t, kLanes> lane;
  for (int replica = 0; replica < width; ++replica)
    for (int l = replica * kLanes / width; l < (replica + 1) * kLanes / width; ++l)
      lane[size_t(l)] = mixed(bits, uint64_t(step) * 1000 + uint64_t(l));
  for (int stride = 1; stride < kLanes; stride *= 2)
    for (int l = 0; l < kLanes; l += 2 * stride)
      lane[size_t(l)] = mixed(lane[size_t(l)], lane[size_t(l + stride)]);
  return lane[0];
}

}  // namespace sim

void SimCluster::World::push(double at_s, const Event& event) {
  uint32_t slot = uint32_t(slots_.size());
  if (free_.empty()) {
    slots_.push_back(event);
  } else {
    slot = free_.back();
    free_.pop_back();
    slots_[slot] = event;
  }
  queue_.push_back({std::max(at_s, now_s), order_++, slot});
  std::push_heap(queue_.begin(), queue_.end());
}

double SimCluster::World::uniform(double low, double high) {
  random += 0x9E3779B97F4A7C15u;
  uint64_t z = random;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return low + (high - low) * (double((z ^ (z >> 31)) >> 11) * 0x1.0p-53);
}

int SimCluster::World::below(int n) { return int(uniform(0, n)); }

double SimCluster::World::latency_s(int from, int to) {
  const bool slow = now_s < slow_until_s[from] || now_s < slow_until_s[to];
  if (slow) return uniform(0.1, 1.2);
  return chance(0.02) ? uniform(0.01, 0.5) : uniform(0.0005, 0.004);
}

int SimCluster::World::host_of(const Connection& c, int side) const {
  return side == 0 ? c.node : supervisors[size_t(c.supervisor)].host;
}

void SimCluster::World::block(int from, int to, double until_s) {
  blocked_until_s[from][to] = std::max(blocked_until_s[from][to], until_s);
}

void SimCluster::World::say(const std::string& text) {
  if (logging) result.log += fmt::format("{:8.3f}  {}\n", now_s, text);
}

void SimCluster::World::violate(const std::string& text) {
  say("VIOLATION " + text);
  if (result.violation.empty()) result.violation = fmt::format("{} (at {:.3f} s)", text, now_s);
}

namespace {

bool is_order(Say say) {
  return say == Say::start || say == Say::kill || say == Say::stop || say == Say::saved || say == Say::end;
}

}  // namespace

void SimCluster::World::send(int id, int side, const Message& message) {
  Connection& c = connections[size_t(id)];
  if (!c.open[side]) return;
  const double at_s =
      std::max(now_s + latency_s(host_of(c, side), host_of(c, 1 - side)), c.last_s[side] + 1e-6);
  c.last_s[side] = at_s;
  Event event{.what = What::deliver, .a = id, .b = 1 - side, .guard = c.sent[side]++, .message = message};
  if (is_order(message.say) && message.sequence == 0) {
    Supervisor& s = supervisors[size_t(c.supervisor)];
    event.message.sequence = ++s.orders;
    s.unobeyed[size_t(c.node)].push_back(event.message);
  }
  push(at_s, event);
}

void SimCluster::World::close(int id, int side, bool quietly) {
  Connection& c = connections[size_t(id)];
  if (!c.open[side]) return;
  if (!quietly) send(id, side, {.say = Say::fin});
  c.open[side] = false;
}

void SimCluster::World::deliver(const Event& event) {
  Connection& c = connections[size_t(event.a)];
  const int side = event.b, from = host_of(c, 1 - side), to = host_of(c, side);
  const auto again = [&](double delay_s) { push(now_s + delay_s, event); };
  if (!flows(from, to)) {
    // The sender's system tries again until its process closes the connection or hears that the other end
    // has.
    if (c.open[side] || c.open[1 - side]) again(0.25);
    return;
  }
  if (!c.open[side]) {
    if (c.open[1 - side] && host_is_up(to))
      push(now_s + latency_s(to, from), {.what = What::reset, .a = event.a, .b = 1 - side});
    return;
  }
  if (event.guard != c.taken[1 - side]) return again(0.02);
  if (side == 1)
    if (const double wake_s = awake_s(supervisors[size_t(c.supervisor)]); wake_s > now_s)
      return again(wake_s - now_s);
  if (side == 1 && !is_awake(c.supervisor)) return again(0.02);
  ++c.taken[1 - side];
  if (side == 0) {
    if (node[size_t(c.node)].connection == event.a) agent_hears(c.node, event.message);
  } else {
    Supervisor& s = supervisors[size_t(c.supervisor)];
    if (event.message.say == Say::hello) return greet(c.supervisor, event.a, event.message);
    if (s.connection[size_t(c.node)] == event.a)
      supervisor_hears(c.supervisor, c.node, event.message);
    else if (event.message.say == Say::fin)
      close(event.a, 1, true);
  }
}

/// The other end does not exist any more.
void SimCluster::World::reset(const Event& event) {
  Connection& c = connections[size_t(event.a)];
  const int side = event.b;
  if (!c.open[side]) return;
  if (!flows(host_of(c, 1 - side), host_of(c, side))) return push(now_s + 0.25, event);
  if (side == 1)
    if (const double wake_s = awake_s(supervisors[size_t(c.supervisor)]); wake_s > now_s)
      return push(wake_s, event);
  if (side == 0) {
    if (node[size_t(c.node)].connection == event.a) return agent_hears(c.node, {.say = Say::fin});
  } else if (supervisors[size_t(c.supervisor)].connection[size_t(c.node)] == event.a) {
    return supervisor_hears(c.supervisor, c.node, {.say = Say::fin});
  }
  c.open[side] = false;
}

}  // namespace trainctl::test
