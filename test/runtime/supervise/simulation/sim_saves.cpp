// The saves of the simulated cluster. Who answers them is AttemptSaves, and what agents say again is
// AgentDialogue; what saves bring about, and the disk on which they are published, is here.
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "runtime/run/record/run_directory.h"
#include "test/runtime/supervise/simulation/sim_world.h"

namespace trainctl::test {

using namespace sim;
using protocol::Down;

namespace sim {

/// An attempt as its saves see it: their effects, their disk and their clock.
class AttemptSide final : public AttemptSaves::Effects, public SavePublishing, public Clock {
 public:
  AttemptSide(SimCluster::World& world, int supervisor, bool attach)
      : world_(world),
        id_(supervisor),
        ranks_(int(me().members.size()) * kSlots),
        saves_(*this, *this, *this, ranks_, attach) {}

  AttemptSaves& saves() { return saves_; }
  int ranks() const { return ranks_; }
  bool is_publishing() const { return under_way_ > 0; }
  /// Whether it still waits for what it has begun on the disk under `number`.
  bool awaits(uint32_t number) const { return is_busy_ && number == begun_; }
  void ended(const SaveOutcome& outcome) { outcome_ = outcome; }

  // ---- AttemptSaves::Effects
  void send_ranks(const Down& down) override {
    if (down.kind == Down::saved) world_.send_answer(id_, -1, down);
  }
  void send_rank(int rank, const Down& down) override { world_.send_answer(id_, rank, down); }
  void save_progressed() override { me().supervision->progressed(0, world_.now_s); }
  void save_published(int64_t step) override { me().recovery->saved(step); }
  void save_ended(const SaveOutcome& outcome, double) override { world_.result.failed_saves += !outcome.ok; }
  void save_ended_before(const SaveOutcome&) override {}
  void save_superseded(int64_t, const std::string&) override {}
  void save_hangs(const std::string& text) override { world_.say(text); }

  // ---- SavePublishing
  void publish(CollectedSave save, std::vector<ckpt::StateInfo>) override {
    begin(int(save.state.step), save.failure.empty());
  }
  void remove_all() override { begin(-1, true); }
  bool is_busy() const override { return is_busy_; }
  std::optional<SaveOutcome> take() override {
    if (outcome_) is_busy_ = false;
    return std::exchange(outcome_, std::nullopt);
  }
  std::optional<double> answered_s() const override {
    return is_busy_ ? std::optional(began_s_) : std::nullopt;
  }
  double quiet_s() const override { return is_busy_ ? world_.now_s - began_s_ : 0; }
  std::string quiet_text() const override { return "the disk does not answer"; }
  SaveOutcome give_up() override {
    is_busy_ = false;
    return std::exchange(outcome_, std::nullopt)
        .value_or(SaveOutcome{.step = under_way_, .message = quiet_text()});
  }
  std::optional<SaveOutcome> published(int64_t step, uint64_t epoch) const override {
    for (const Saved& saved : world_.disk.checkpoints)
      if (saved.step == step && saved.epoch == epoch && !saved.unopenable)
        return SaveOutcome{.ok = true, .step = step};
    return std::nullopt;
  }

  // ---- Clock
  double monotonic_s() override { return world_.now_s; }
  double unix_s() override { return world_.now_s; }
  void sleep_s(double) override {}

 private:
  Supervisor& me() const { return world_.supervisors[size_t(id_)]; }
  void begin(int step, bool ok) {
    is_busy_ = true;
    under_way_ = step;
    began_s_ = world_.now_s;
    world_.push(world_.now_s + world_.uniform(0.02, 0.1),
                {.what = What::published,
                 .a = id_,
                 .b = int(world_.chance(0.5)),
                 .guard = me().epoch,
                 .message = {.how = ok, .number = ++begun_, .step = step}});
  }

  SimCluster::World& world_;
  const int id_, ranks_;
  bool is_busy_ = false;
  uint32_t begun_ = 0;
  int under_way_ = -1;
  double began_s_ = 0;
  std::optional<SaveOutcome> outcome_;
  AttemptSaves saves_;
};

bool is_publishing(const Supervisor& supervisor) {
  return supervisor.saves->is_busy() && supervisor.saves->is_publishing();
}

namespace {

wire::Message form_of(const Message& m, wire::Kind kind) {
  wire::Message form{.kind = kind, .epoch = m.epoch, .rank = m.rank, .sequence = m.sequence};
  form.text.assign(reinterpret_cast<const char*>(&m), sizeof m);
  return form;
}

}  // namespace

wire::Message said_form(const Message& m, const SimRules& rules) {
  wire::Message kept = form_of(m, wire::Kind::rank);
  if (m.say == Say::exited) kept.kind = wire::Kind::exited;
  if (m.say == Say::gone) kept.kind = wire::Kind::gone;
  protocol::Up up{.done = m.say == Say::done};
  if (m.say == Say::shard && rules.parts_are_kept_until_answered)
    up.shard = protocol::Shard{.epoch = m.epoch, .step = m.step, .number = m.number};
  if (up.done || up.shard) kept.payload = protocol::encode(up), kept.payload.pop_back();
  return kept;
}

wire::Message order_form(const Message& m) {
  switch (m.say) {
    case Say::beat: return {.kind = wire::Kind::beat, .sequence = m.sequence};
    case Say::end: return form_of(m, wire::Kind::end);
    case Say::start: return form_of(m, wire::Kind::start);
    case Say::kill: return form_of(m, wire::Kind::kill);
    default: break;
  }
  wire::Message line = form_of(m, wire::Kind::rank);
  line.payload = protocol::encode(
      m.say == Say::saved ? answer_of(m) : Down{.kind = Down::stop, .level = StopLevel::save_and_stop});
  return line;
}

Message sent_form(const wire::Message& kept) {
  if (kept.kind == wire::Kind::answered) {
    const Down answer = protocol::decode_down(kept.payload);
    return {.say = Say::answered,
            .how = answer.ok,
            .epoch = uint32_t(kept.epoch),
            .number = uint32_t(answer.number)};
  }
  Message m;
  std::memcpy(&m, kept.text.data(), sizeof m);
  m.sequence = uint32_t(kept.sequence);
  return m;
}

protocol::Down answer_of(const Message& m) {
  return {.kind = Down::saved, .ok = m.how != 0, .number = m.number};
}

}  // namespace sim

void SimCluster::World::begin_saves(int id, bool attach) {
  supervisors[size_t(id)].saves = std::make_shared<AttemptSide>(*this, id, attach);
}

void SimCluster::World::take_save(int id, const Message& m) {
  AttemptSide& side = *supervisors[size_t(id)].saves;
  if (m.say == Say::answered) return side.saves().answered_before(answer_of(m));
  const bool is_well = m.how || !rules.failed_parts_fail_the_save;
  const auto hand_in = [&](int rank) {
    side.saves().hand_in(
        rank,
        {.epoch = m.epoch, .step = m.step, .number = m.number, .failure = is_well ? "" : "the disk is full"});
  };
  hand_in(m.rank);
  if (rules.all_receipts_before_publishing) return;
  for (int rank = 0; rank < side.ranks(); ++rank) hand_in(rank);
}

/// False: another supervisor has the run.
bool SimCluster::World::saves_turn(int id) try {
  supervisors[size_t(id)].saves->saves().turn();
  return true;
} catch (const RunTaken&) {
  kill_supervisor(id);
  return false;
}

/// No rank is left; what is complete is published, or given up where the disk does not answer.
bool SimCluster::World::saves_are_finished(int id) try {
  Supervisor& s = supervisors[size_t(id)];
  AttemptSaves& saves = s.saves->saves();
  if (!std::exchange(s.finishing, true)) saves.finish();
  if (saves.is_busy() && s.supervision->waits_for_publishing(saves.quiet_s(), now_s)) return false;
  saves.give_up();
  return true;
} catch (const RunTaken&) {
  kill_supervisor(id);
  return false;
}

/// `rank` -1: all of the attempt.
void SimCluster::World::send_answer(int id, int rank, const Down& answer) {
  Supervisor& s = supervisors[size_t(id)];
  const Message message{.say = Say::saved,
                        .how = answer.ok,
                        .rank = int8_t(rank),
                        .epoch = s.epoch,
                        .number = uint32_t(answer.number)};
  const auto send_to = [&](int n) {
    if (s.connection[size_t(n)] >= 0) send(s.connection[size_t(n)], 1, message);
  };
  if (rank >= 0) return send_to(s.members[size_t(rank / kSlots)]);
  // It may die between two of its answers.
  const size_t to =
      !calm && chance(answer.ok ? 0.03 : 0.3) ? size_t(below(int(s.members.size()))) : s.members.size();
  for (size_t i = 0; i < (rules.answers_go_to_all_ranks ? to : 1); ++i) send_to(s.members[i]);
  if (to == s.members.size()) return;
  push(now_s + 1e-6, {.what = What::supervisor_dies, .a = id});
  if (answer.ok && chance(0.2)) damage_newest();  // with the machine
}

/// What is done on the disk for saves arrives there.
void SimCluster::World::published(const Event& event) {
  Supervisor& s = supervisors[size_t(event.a)];
  if (!reachable(s.host, kDisk)) return push(now_s + 0.25, event);
  if (s.alive && s.paused_until_s > now_s) return push(s.paused_until_s, event);
  const bool is_awaited =
      s.alive && s.saves && s.epoch == event.guard && s.saves->awaits(event.message.number);
  if (!is_awaited && !event.b) return;  // else it was on its way already
  SaveOutcome outcome{.step = event.message.step};
  if (s.alive && !owns_lock(event.a) && rules.lock_is_looked_at_before_publishing)
    outcome.taken = true;
  else if (event.message.step < 0)
    std::erase_if(disk.saving, [&](const Saving& folder) { return folder.epoch <= event.guard; });
  else if (event.message.how)
    outcome = publish(event.a, event.guard, event.message.step);
  else
    std::erase_if(disk.saving, [&](const Saving& folder) {
      return folder.epoch == event.guard && folder.step == event.message.step;
    });
  // A disk may fail after the rename.
  if (outcome.ok && chance(0.02)) outcome = {.step = outcome.step, .message = "its name is not durable"};
  if (!is_awaited) return;
  s.saves->ended(outcome);
  if (is_awake(event.a) && s.supervision) attempt_turn(event.a);
}

/// The rename that makes a checkpoint public.
SaveOutcome SimCluster::World::publish(int id, uint32_t epoch, int step) {
  const Supervisor& s = supervisors[size_t(id)];
  // The supervisor before may have published it a moment ago.
  for (const Saved& saved : disk.checkpoints)
    if (saved.step == step && saved.epoch == epoch && !saved.unopenable) return {.ok = true, .step = step};
  const auto saving = std::find_if(disk.saving.begin(), disk.saving.end(), [&](const Saving& folder) {
    return folder.epoch == epoch && folder.step == step;
  });
  if (saving == disk.saving.end()) return {.step = step, .message = "its files are gone"};
  // What a supervisor that is dead had on its way still belongs to the epoch, if that one goes on.
  if ((s.alive && id < disk.last_publisher) || epoch != disk.epoch)
    violate(fmt::format("supervisor {} publishes step {} of epoch {} after supervisor {}, epoch {}", id, step,
                        epoch, disk.last_publisher, disk.epoch));
  disk.last_publisher = std::max(disk.last_publisher, id);
  uint64_t expected = 1;
  for (int i = 1; i <= step; ++i) expected = next_bits(expected, i, 1);
  if (saving->ranks != groups[epoch].all_ranks())
    violate(fmt::format("checkpoint step {} is half written", step));
  if (saving->torn || saving->bits != expected) violate(fmt::format("checkpoint step {} is torn", step));
  // One of this epoch that is damaged is replaced.
  std::erase_if(disk.checkpoints, [&](const Saved& saved) { return saved.step == step; });
  disk.checkpoints.push_back({.step = step, .epoch = epoch, .bits = saving->bits});
  std::sort(disk.checkpoints.begin(), disk.checkpoints.end(),
            [](const Saved& a, const Saved& b) { return a.step < b.step; });
  disk.saving.erase(saving);
  ++result.saves;
  say(fmt::format("supervisor {} publishes step {} of epoch {}", id, step, epoch));
  return {.ok = true, .step = step};
}

}  // namespace trainctl::test
