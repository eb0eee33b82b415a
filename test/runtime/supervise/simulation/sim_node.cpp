// Agents and ranks of the simulated cluster. What an agent decides is AgentState, what it says and obeys AgentDialogue;
// their effects are here.
#include <fmt/format.h>

#include "test/runtime/supervise/simulation/sim_world.h"

namespace trainctl::test {

using namespace sim;

namespace {

constexpr double kDialLimitS = 1, kStepS = 0.25, kLookAgainS = 0.2;
constexpr double kCollectiveLimitS = 2.5;  // a rank waits so long for its peers
constexpr AgentState::Options kAgent = {
    .silence_s = kSilenceS, .grace_s = kGraceS, .dial_s = 0.3, .beat_s = 0.5};

}  // namespace

namespace sim {

/// A node as the dialogue of its agent sees it.
class AgentSide final : public AgentDialogue::Effects, public Clock {
 public:
  AgentSide(SimCluster::World& world, int node)
      : world_(world), n_(node), dialogue_(name_of_node(node), me().state, *this, *this) {}

  AgentDialogue& dialogue() { return dialogue_; }
  void hear_welcome(const Message& m) {
    const AgentState::Options options = world_.agent_options(n_);
    const wire::Welcome welcome{.silence_s = options.silence_s,
                                .grace_s = options.grace_s,
                                .beat_s = options.beat_s,
                                .takeover_s = options.takeover_s,
                                .keep = m.how != 0,
                                .handled = m.mask ? std::optional<uint64_t>(m.sequence) : std::nullopt};
    tells_again_ = !m.mask;
    dialogue_.hear({.kind = wire::Kind::welcome, .payload = welcome.to_json()});
    tells_again_ = false;
  }

  // ---- AgentDialogue::Effects
  void send(const wire::Message& message) override {
    const Message m = sent_form(message);
    if (me().connection >= 0 && (!tells_again_ || is_told_again(m.say))) world_.send(me().connection, 0, m);
  }
  void send_state() override { world_.beat(n_); }
  void order(const wire::Message& order) override { world_.obey(n_, sent_form(order)); }
  std::optional<uint64_t> epoch() const override { return me().ranks.epoch; }
  void kill_all() override {
    if (world_.rules.welcome_ends_old_epochs) world_.kill_ranks(n_);
  }
  void welcomed(const wire::Welcome&) override { me().welcomed = true, me().word_s = world_.now_s; }
  void say(const std::string&) override {}
  void complain(const std::string&) override {}

  // ---- Clock
  double monotonic_s() override { return world_.local_s(n_); }
  double unix_s() override { return world_.now_s; }
  void sleep_s(double) override {}

 private:
  Node& me() const { return world_.node[size_t(n_)]; }
  bool is_told_again(Say say) const {
    const SimRules& rules = world_.rules;
    if (!rules.agents_tell_again) return false;
    if (say == Say::answered) return rules.answers_are_told_again;
    return rules.ends_are_told_again || (say != Say::done && say != Say::exited);
  }

  SimCluster::World& world_;
  const int n_;
  bool tells_again_ = false;
  AgentDialogue dialogue_;
};

}  // namespace sim

// ---- the agent

AgentState::Options SimCluster::World::agent_options(int n) const {
  AgentState::Options options = kAgent;
  if (!rules.agents_end_after_grace) options.grace_s = 1e6;
  if (takeovers && rules.agents_take_over) options.takeover_s = takeover_after_s(kSilenceS, kGraceS, n);
  return options;
}

/// Its process, a moment later: the lock decides. One that ended the run left no address.
void SimCluster::World::agent_takes_over(int n) {
  if (finished || disk.address < 0 || !lock_is_free()) return;
  const size_t before = supervisors.size();
  start_supervisor(n);
  result.takeovers += supervisors.size() > before;
}

void SimCluster::World::start_agent(int n) {
  Node& a = node[size_t(n)];
  if (a.agent) end_agent(n);  // an agent that starts ends its predecessor with all its ranks
  a.ranks = {};
  a.agent = true;
  ++a.life;
  a.welcomed = false;
  AgentState::Options options = agent_options(n);
  options.takeover_s = 0;  // it knows of it from its first welcome
  a.state = AgentState(options, local_s(n));
  a.word_s = now_s;
  a.tick_s = kNever;
  a.connection = -1;
  a.side = std::make_shared<AgentSide>(*this, n);
  agent_turn(n);
}

/// Its process is gone; its ranks end when they notice.
void SimCluster::World::end_agent(int n) {
  Node& a = node[size_t(n)];
  a.agent = false;
  ++a.life;
  if (a.connection >= 0) close(a.connection, 0);
  a.connection = -1;
  push(now_s + 0.05, {.what = What::ranks_gone, .a = n, .b = -1, .guard = a.ranks.epoch});
}

void SimCluster::World::lose_power(int n, bool quietly) {
  Node& a = node[size_t(n)];
  a.power = a.agent = false;
  ++a.life;
  a.ranks = {};
  a.newest_epoch = 0;
  a.pieces.clear();
  for (size_t id = 0; id < connections.size(); ++id)
    if (connections[id].node == n && connections[id].open[0]) {
      connections[id].open[0] = false;
      if (!quietly) push(now_s + 0.002, {.what = What::reset, .a = int(id), .b = 1});
    }
  a.connection = -1;
  for (size_t s = 0; s < supervisors.size(); ++s)
    if (supervisors[s].alive && supervisors[s].host == n) kill_supervisor(int(s));
}

void SimCluster::World::agent_turn(int n) {
  Node& a = node[size_t(n)];
  if (!a.agent) return;
  a.state.tick(local_s(n));
  for (const AgentState::Action action : a.state.take_actions()) agent_act(n, action);
  if (!a.agent) return;
  const double at_s = std::max((a.state.deadline_s() - a.offset_s) / a.rate, now_s + 0.001);
  if (a.tick_s > now_s && a.tick_s <= at_s) return;
  a.tick_s = at_s;
  push(at_s, {.what = What::agent_tick, .a = n, .guard = a.life});
}

void SimCluster::World::agent_act(int n, AgentState::Action action) {
  Node& a = node[size_t(n)];
  switch (action) {
    case AgentState::Action::dial: return dial(n);
    case AgentState::Action::greet:
      return send(a.connection, 0,
                  {.say = Say::hello,
                   .epoch = a.ranks.epoch,
                   .number = a.life,
                   .sequence = uint32_t(a.side->dialogue().greet(
                       std::to_string(connections[size_t(a.connection)].supervisor)))});
    case AgentState::Action::drop:
      if (a.connection >= 0) close(a.connection, 0);
      a.connection = -1;
      return;
    case AgentState::Action::beat: return beat(n);
    case AgentState::Action::take_over:
      say(fmt::format("n{}: agent starts a supervisor", n));
      return push(now_s + uniform(0.1, 0.5), {.what = What::agent_takes_over, .a = n});
    case AgentState::Action::kill_all:
      say(fmt::format("n{}: agent ends everything: {}", n, a.state.reason()));
      return kill_ranks(n);
    case AgentState::Action::leave:
      say(fmt::format("n{}: agent leaves", n));
      a.pieces.clear();
      end_agent(n);
      return;
  }
}

void SimCluster::World::dial(int n) {
  Node& a = node[size_t(n)];
  const int to = reachable(n, kDisk) ? disk.address : -1;
  const bool answers =
      to >= 0 && host_is_up(supervisors[size_t(to)].host) && reachable(n, supervisors[size_t(to)].host);
  const bool listens = answers && supervisors[size_t(to)].alive;
  const double delay_s = listens             ? 2 * latency_s(n, supervisors[size_t(to)].host)
                         : to < 0 || answers ? 0.001
                                             : kDialLimitS;
  push(now_s + delay_s, {.what = What::dialed, .a = n, .b = listens ? to : -1, .guard = a.life});
}

void SimCluster::World::dialed(const Event& event) {
  const int n = event.a;
  Node& a = node[size_t(n)];
  if (a.life != event.guard || a.state.phase() != AgentState::Phase::dialing) return;
  if (event.b < 0 || !supervisors[size_t(event.b)].alive) {
    a.state.disconnected(local_s(n));
  } else {
    a.connection = int(connections.size());
    connections.push_back({.node = n, .supervisor = event.b});
    a.state.connected(local_s(n));
  }
  agent_turn(n);
}

void SimCluster::World::agent_hears(int n, const Message& m) {
  Node& a = node[size_t(n)];
  if (m.say == Say::fin) {
    close(a.connection, 0, true);
    a.connection = -1;
    a.state.disconnected(local_s(n));
    return agent_turn(n);
  }
  a.state.heard(local_s(n));
  if (a.state.phase() == AgentState::Phase::attached) a.word_s = now_s;
  if (m.say == Say::welcome) {
    a.side->hear_welcome(m);
  } else {
    if (m.say == Say::saved && groups[m.epoch].said.contradicts(answer_of(m)))
      return violate(fmt::format("save {} of epoch {} is answered {} to some ranks and {} to others",
                                 m.number, m.epoch, int(!m.how), int(m.how)));
    a.side->dialogue().hear(order_form(m));
  }
  agent_turn(n);
}

void SimCluster::World::obey(int n, const Message& m) {
  Node& a = node[size_t(n)];
  switch (m.say) {
    case Say::start: return start_ranks(n, m);
    case Say::kill:
      if (a.ranks.epoch == m.epoch && a.ranks.alive) return kill_ranks(n);
      if (a.ranks.epoch == m.epoch) a.ranks = {};
      return tell(n, {.say = Say::gone, .epoch = m.epoch});
    case Say::stop:
      if (a.ranks.epoch == m.epoch && m.epoch < groups.size()) groups[m.epoch].stop = true;
      return;
    case Say::saved:
      groups[m.epoch].said.add(answer_of(m));
      if (a.ranks.epoch == m.epoch) save_answered(n, m);
      return;
    default: return;
  }
}

void SimCluster::World::tell(int n, const Message& m) {
  Node& a = node[size_t(n)];
  if (a.agent) a.side->dialogue().tell(said_form(m, rules));
}

void SimCluster::World::beat(int n) {
  Node& a = node[size_t(n)];
  if (a.connection < 0) return;
  const uint8_t there = a.ranks.up ? a.ranks.alive : 0;
  send(a.connection, 0,
       {.say = Say::beat,
        .mask = there,
        .how = uint8_t(there & ~a.ranks.stopped),
        .epoch = a.ranks.epoch,
        .number = uint32_t(a.side->dialogue().obeyed())});
}

// ---- its ranks

void SimCluster::World::start_ranks(int n, const Message& m) {
  Node& a = node[size_t(n)];
  if (m.epoch < a.newest_epoch)
    violate(fmt::format("n{} starts ranks of epoch {} after epoch {}", n, m.epoch, a.newest_epoch));
  a.newest_epoch = m.epoch;
  clear_pieces(n, groups[m.epoch]);
  a.ranks = {.epoch = m.epoch, .alive = kAllRanks};
  push(now_s + uniform(0.1, 0.4), {.what = What::ranks_up, .a = n, .b = int(a.life), .guard = m.epoch});
}

/// One that waits for the disk dies when that has answered.
void SimCluster::World::kill_ranks(int n) {
  Node& a = node[size_t(n)];
  const auto of_agent = a.state.epoch();
  if (!a.ranks.alive && !of_agent) return;
  const double delay_s = chance(0.05) ? uniform(kKillS, kLongestKillS) : kKillS;
  push(now_s + delay_s, {.what = What::ranks_gone,
                         .a = n,
                         .b = int(a.life),
                         .guard = a.ranks.alive ? a.ranks.epoch : uint32_t(*of_agent)});
}

void SimCluster::World::rank_ends(int n, uint8_t mask, Ended how) {
  Node& a = node[size_t(n)];
  mask &= a.ranks.alive;
  if (!mask) return;
  a.ranks.alive = uint8_t(a.ranks.alive & ~mask);
  const uint32_t epoch = a.ranks.epoch;
  Group& g = groups[epoch];
  if (how == well) g.well |= uint32_t(mask) << g.place_of(n) * kSlots;
  for (int r = 0; r < kSlots; ++r)
    if (mask >> r & 1) tell(n, {.say = Say::exited, .how = how, .rank = int8_t(r), .epoch = epoch});
}

// ---- groups

void SimCluster::World::schedule_group(uint32_t epoch, double delay_s) {
  push(now_s + delay_s, {.what = What::group, .a = int(epoch), .guard = ++groups[epoch].guard});
}

/// True if the group cannot go on now; ranks that see a peer gone, or wait too long for one, end.
bool SimCluster::World::stalled(Group& g, uint32_t epoch) {
  const auto here = [&](int n) {
    const Node& a = node[size_t(n)];
    return a.power && a.ranks.epoch == epoch && a.ranks.alive == kAllRanks;
  };
  bool whole = true;
  for (const int n : g.nodes) {
    whole = whole && here(n) && !node[size_t(n)].ranks.stopped;
    for (const int other : g.nodes) whole = whole && reachable(n, other);
  }
  if (whole) return false;
  bool any = false;
  for (const int n : g.nodes) {
    Node& a = node[size_t(n)];
    if (!a.power || a.ranks.epoch != epoch || !a.ranks.alive) continue;
    any = true;
    bool give_up = now_s - g.progress_s > kCollectiveLimitS;
    for (const int other : g.nodes)  // a system that lives tells that a peer's process is gone
      give_up = give_up || (!here(other) && node[size_t(other)].power && reachable(n, other));
    if (give_up) rank_ends(n, uint8_t(a.ranks.alive & ~a.ranks.stopped), lost_peer);
  }
  if (any)
    schedule_group(epoch, kLookAgainS);
  else
    g.phase = Group::over;
  return true;
}

void SimCluster::World::advance(uint32_t epoch, uint32_t guard) {
  Group& g = groups[epoch];
  if (guard != g.guard || g.phase == Group::over) return;
  if (g.phase == Group::joining) {
    for (const int n : g.nodes)
      if (node[size_t(n)].ranks.epoch != epoch || !node[size_t(n)].ranks.up) return;
    g.phase = Group::loading;
    g.progress_s = now_s;
  }
  if (stalled(g, epoch)) return;
  switch (g.phase) {
    case Group::loading: return load(g, epoch);
    case Group::stepping: return take_step(g, epoch);
    case Group::saving:
      // The answer is awaited; only a lost peer ends the wait.
      g.progress_s = now_s;
      return schedule_group(epoch, 1);
    default: return;
  }
}

void SimCluster::World::load(Group& g, uint32_t epoch) {
  for (const int n : g.nodes)
    if (!reachable(n, kDisk)) return schedule_group(epoch, kLookAgainS);
  g.step = 0;
  g.bits = 1;
  if (g.from_memory) {
    if (!load_pieces(g)) {
      rank_ends(g.nodes[0], 1, bad_checkpoint);
      return schedule_group(epoch, kLookAgainS);
    }
  } else if (g.from_step >= 0) {
    const auto it = std::find_if(disk.checkpoints.begin(), disk.checkpoints.end(),
                                 [&](const Saved& saved) { return saved.step == g.from_step; });
    if (it == disk.checkpoints.end() || it->unloadable) {
      rank_ends(g.nodes[0], 1, bad_checkpoint);
      return schedule_group(epoch, kLookAgainS);
    }
    g.step = it->step;
    g.bits = it->bits;
  }
  g.progress_s = now_s;
  if (g.step == kTotalSteps) return finish(g, epoch);
  g.phase = Group::stepping;
  schedule_group(epoch, uniform(0.1, 0.3));
}

void SimCluster::World::take_step(Group& g, uint32_t epoch) {
  ++g.step;
  g.bits = next_bits(g.bits, g.step, g.width);
  g.progress_s = now_s;
  keep_step(g, epoch);
  tell(g.nodes[0], {.say = Say::step, .epoch = epoch, .step = g.step, .bits = g.bits});
  if (g.step % kSaveEvery == 0 || g.step == kTotalSteps || g.stop) return begin_save(g, epoch);
  schedule_group(epoch, kStepS * uniform(0.8, 1.2));
}

void SimCluster::World::begin_save(Group& g, uint32_t epoch) {
  ++g.save;
  g.saved_step = g.step;
  for (const int n : g.nodes)
    push(now_s + uniform(0.02, 0.15), {.what = What::shard_written,
                                       .a = n,
                                       .b = int(node[size_t(n)].life),
                                       .guard = epoch,
                                       .message = {.number = g.save, .step = g.step, .bits = g.bits}});
  const bool waits = saves_wait || g.step == kTotalSteps || g.stop;
  if (waits) g.phase = Group::saving;
  schedule_group(epoch, waits ? 1 : kStepS);
}

void SimCluster::World::shard_written(const Event& event) {
  const int n = event.a;
  const uint32_t epoch = event.guard;
  Group& g = groups[epoch];
  Node& a = node[size_t(n)];
  if (a.ranks.epoch != epoch || a.ranks.alive != kAllRanks || a.ranks.stopped) return;
  if (!reachable(n, kDisk)) return push(now_s + 0.25, event);
  const auto same = [&](const Saving& s) { return s.epoch == epoch && s.step == event.message.step; };
  auto it = std::find_if(disk.saving.begin(), disk.saving.end(), same);
  if (it == disk.saving.end())
    it = disk.saving.insert(
        disk.saving.end(),
        {.epoch = epoch, .step = event.message.step, .width = g.width, .bits = event.message.bits});
  it->torn = it->torn || it->bits != event.message.bits || it->width != g.width;
  for (int r = 0; r < kSlots; ++r) {
    const int rank = g.place_of(n) * kSlots + r;
    // A disk may be full for one rank.
    const bool ok = !chance(0.025);
    if (ok) it->ranks |= 1u << rank;
    tell(n, {.say = Say::shard,
             .how = ok,
             .rank = int8_t(rank),
             .epoch = epoch,
             .number = event.message.number,
             .step = event.message.step});
  }
  Answered& save = g.answers[event.message.number];
  save.handed_in |= uint32_t(kAllRanks) << g.place_of(n) * kSlots;
  if (g.is_due(save)) save.since_s = std::min(save.since_s, now_s);
}

/// Ranks that wait go on together, when the last of them has the answer.
void SimCluster::World::save_answered(int n, const Message& m) {
  Group& g = groups[m.epoch];
  if (!g.runs()) return;
  Answered& answer = g.answers[m.number];
  answer.since_s = std::min(answer.since_s, now_s);
  answer.ranks |= m.rank < 0 ? uint32_t(kAllRanks) << g.place_of(n) * kSlots : 1u << m.rank;
  if (g.phase != Group::saving || g.save != m.number) return;
  g.progress_s = now_s;
  if (answer.ranks != g.all_ranks()) return;
  if (g.step < kTotalSteps && !g.stop) {
    g.phase = Group::stepping;
    return schedule_group(m.epoch, kStepS);
  }
  // The last one is tried again.
  if (!m.how) return begin_save(g, m.epoch);
  finish(g, m.epoch);
}

/// Every rank is done.
void SimCluster::World::finish(Group& g, uint32_t epoch) {
  g.phase = Group::over;
  g.progress_s = now_s;
  for (const int n : g.nodes) {
    Node& a = node[size_t(n)];
    if (a.ranks.epoch != epoch) continue;
    const uint8_t mask = uint8_t(a.ranks.alive & ~a.ranks.stopped);
    for (int r = 0; r < kSlots; ++r)
      if (mask >> r & 1) tell(n, {.say = Say::done, .rank = int8_t(r), .epoch = epoch});
    rank_ends(n, mask, well);
  }
}

}  // namespace trainctl::test
