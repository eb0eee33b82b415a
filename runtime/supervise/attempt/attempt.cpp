#include "runtime/supervise/attempt/attempt.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "runtime/base/ensure.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/run/wire/protocol.h"
#include "runtime/supervise/attempt/attempt_files.h"
#include "runtime/supervise/attempt/attempt_saves.h"
#include "runtime/supervise/attempt/attempt_trace.h"
#include "runtime/supervise/nodes/node_relay.h"

namespace trainctl {
namespace {

constexpr double kLongestPollS = 1.0;
constexpr double kFinishPollS = 0.1, kEndPollS = 0.05;
/// So long before a deadline the nodes are asked what their ranks do.
constexpr double kLookAheadS = 0.3;
constexpr double kLookIntervalS = 0.1;
/// For processes that outlive their attempt.
constexpr double kEndLimitS = 6;

using wire::Kind;
using wire::Message;

class Attempt final : AttemptSaves::Effects {
 public:
  Attempt(AttemptPlan plan, AttemptHooks hooks, Fleet& fleet, const RunDirectory& run, FileSystem& fs,
          Clock& clock, RunLog& log, StopSignals& signals)
      : plan_(std::move(plan)),
        hooks_(std::move(hooks)),
        fleet_(fleet),
        run_(run),
        clock_(clock),
        log_(log),
        signals_(signals),
        supervision_(plan_.limits, clock.monotonic_s()),
        publisher_(fs, clock, saves_of(plan_, hooks_)),
        saves_(publisher_, clock, *this, plan_.limits.ranks, plan_.attach),
        trace_(fs, clock, log, run, trace_of()),
        steps_(steps_of(plan_, log)),
        files_(fs, run, log.files()),
        gone_(plan_.nodes.size(), false),
        lost_(plan_.nodes.size(), false) {}
  ~Attempt() override {
    fleet_.set_handler({});
    fleet_.let_keep(plan_.nodes.front().node, std::nullopt);
  }

  AttemptResult run() {
    fleet_.set_handler(
        {.up =
             [this](int node, const wire::NodeHello&) {
               if (hooks_.node_up) hooks_.node_up(node);
             },
         .lost = [this](int node, const NodeLoss& loss) { on_node_lost(node, loss); },
         .paused = [this](double seconds) { log_.paused(seconds, run_.path); },
         .start_failed = hooks_.start_failed,
         .message = [this](int node, Message&& message) { on_message(node, std::move(message)); },
         .is_recorded = [this] { return log_.is_written(); }});
    plan_.attach ? attach() : start();
    read_signals();
    while (!supervision_.over()) turn();
    record(steps_.take_all());
    trace_.end(end_text());
    finish_saves();
    // Also after an orderly end something may be left on a node: a daemon of mpirun, a folder.
    end_everywhere();
    return {supervision_.verdict(), regrouped_, went_back_, supervision_.first_evidence_s()};
  }

 private:
  static SaveFolder::Options saves_of(const AttemptPlan& plan, const AttemptHooks& hooks) {
    SaveFolder::Options saves = plan.saves;
    saves.must_hold = hooks.must_hold;
    return saves;
  }
  static StepAssembly::Options steps_of(const AttemptPlan& plan, RunLog& log) {
    StepAssembly::Options steps{.ranks = plan.limits.ranks, .nodes = {}, .patience_s = plan.times_patience_s};
    if (plan.limits.nodes.size() > 1)
      for (const auto& node : plan.limits.nodes) steps.nodes.push_back({node.name, node.first, node.count});
    if (plan.attach) steps.after_step = log.status().step;  // the supervisor before has recorded them
    return steps;
  }
  AttemptTrace::Attempt trace_of() {
    AttemptTrace::Attempt attempt{
        .send_ranks = [this](const protocol::Down& down) { send_ranks(down); },
        .ask_clock = [this](int index,
                            int64_t question) { send(index, {.kind = Kind::clock, .number = question}); },
        .ranks = plan_.limits.ranks,
        .epoch = plan_.file.epoch};
    for (const AttemptPlan::Node& node : plan_.nodes)
      attempt.nodes.push_back({node.name, node.first, node.count});
    return attempt;
  }
  /// For a trace that is cut off.
  std::string end_text() const {
    const Verdict verdict = supervision_.verdict();
    const bool is_failure = verdict.outcome == Verdict::failed;
    return is_failure ? fmt::format("attempt {} failed ({})", plan_.file.epoch, verdict.cause)
                      : std::string("the run has ended");
  }
  void start() {
    files_.record(plan_.file);
    files_.log(fmt::format("--- {} attempt {}: {}", utc_text(clock_.unix_s()), plan_.file.epoch,
                           shell_text({plan_.line.argv, {}})));
    for (size_t i = 0; i < plan_.nodes.size(); ++i) {
      send(int(i), {.kind = Kind::start, .payload = start_order(plan_, i).to_json()});
      if (!fleet_.hello(plan_.nodes[i].node))
        supervision_.node_lost(int(i), "it is not connected", clock_.monotonic_s());
    }
  }

  /// The ranks have been going on without a supervisor.
  void attach() {
    supervision_.progressed(log_.status().step, clock_.monotonic_s());
    for (size_t i = 0; i < plan_.nodes.size(); ++i) {
      if (!plan_.nodes[i].missing.empty()) lose(int(i), {.why = plan_.nodes[i].missing});
      send(int(i), {.kind = Kind::look});
    }
  }

  void turn() {
    fleet_.await(wait_s(), {signals_.fd(), publisher_.fd()});
    if (hooks_.turn) hooks_.turn();
    const Supervision::Phase before = supervision_.phase();
    read_signals();
    fleet_.serve();
    saves_.turn();
    record(steps_.take(clock_.monotonic_s()));
    trace_.turn(supervision_.phase() == Supervision::Phase::running && supervision_.all_came());
    go_back();
    regroup();
    look_before_deadline();
    supervision_.tick(clock_.monotonic_s());
    for (const Supervision::Action action : supervision_.take_actions()) act(action);
    if (supervision_.phase() == Supervision::Phase::ending && all_gone())
      supervision_.all_gone(clock_.monotonic_s());
    log_.update(supervision_, supervision_.phase() != before);
    // Not by the phase: the last rank may come and another one die within one turn.
    if (supervision_.all_came() && !std::exchange(all_present_, true)) on_all_present();
  }

  void read_signals() {
    const StopLevel level = signals_.read();
    if (level == StopLevel::none) return;
    regrouped_ = false;
    supervision_.stop(level, clock_.monotonic_s(), signals_.left_s(plan_.limits.exit_timeout_s));
  }

  /// No rank is left. What the saves still do depends on a file system that may not answer: it is waited for
  /// in turns, which read signals and serve the nodes.
  void finish_saves() {
    saves_.finish();
    while (saves_.is_busy() && supervision_.waits_for_publishing(saves_.quiet_s(), clock_.monotonic_s())) {
      fleet_.await(kFinishPollS, {signals_.fd(), publisher_.fd()});
      if (hooks_.turn) hooks_.turn();
      read_signals();
      fleet_.serve();
      saves_.turn();
    }
    saves_.give_up();
  }

  double wait_s() const {
    const double deadline_s = std::min(
        {supervision_.deadline_s(), look_s(), fleet_.deadline_s(), steps_.deadline_s()});
    return std::clamp(deadline_s - clock_.monotonic_s(), 0.001, kLongestPollS);
  }

  void regroup() {
    if (regrouped_ || supervision_.phase() != Supervision::Phase::running ||
        supervision_.stop_level() != StopLevel::none)
      return;
    const std::string why = hooks_.regroup ? hooks_.regroup() : "";
    if (why.empty()) return;
    regrouped_ = true;
    log_.console().note("   " + why);
    supervision_.regroup(clock_.monotonic_s());
  }

  /// What the ranks compute and save meanwhile is given up.
  void go_back() {
    if (supervision_.stop_level() == StopLevel::now) return;
    if (!hooks_.goes_back || !hooks_.goes_back()) return;
    went_back_ = true;
    supervision_.stop(StopLevel::now, clock_.monotonic_s());
  }

  /// When the nodes are to be asked next: early enough that their answer comes before the deadline.
  double look_s() const {
    return std::max(supervision_.deadline_s() - kLookAheadS, looked_s_ + kLookIntervalS);
  }

  /// A verdict on a hang needs to know where everyone is at the end, not a second before.
  void look_before_deadline() {
    const double now_s = clock_.monotonic_s();
    if (now_s < look_s()) return;
    looked_s_ = now_s;
    send_all({.kind = Kind::look});
  }

  void act(Supervision::Action action) {
    switch (action) {
      case Supervision::Action::tell_save_and_stop:
        log_.event(regrouped_ ? EventKind::regroup : EventKind::stop_requested,
                   fmt::format(R"({{"step":{}}})", supervision_.last_step()));
        if (!regrouped_)
          log_.console().note(
              " stopping after this step and saving (a second stop or Ctrl-C ends it at once)…");
        send_ranks(stop_order());
        return;
      case Supervision::Action::look:
        return send_all({.kind = Kind::look});
      case Supervision::Action::kill:
        log_.console().clear();
        send_all({.kind = Kind::kill});
        return;
    }
  }

  // ---- to the nodes

  protocol::Down stop_order() const {
    return {.kind = protocol::Down::stop,
            .level = supervision_.stop_level(),
            .left_s = supervision_.stop_until_s() - clock_.monotonic_s()};
  }
  void send(int index, Message message) {
    ENSURE(index >= 0 && size_t(index) < plan_.nodes.size(), "node {} of {}", index, plan_.nodes.size());
    message.epoch = plan_.file.epoch;
    fleet_.machine(plan_.nodes[size_t(index)].node).order(message);
  }
  void send_all(const Message& message) {
    for (size_t i = 0; i < plan_.nodes.size(); ++i) send(int(i), message);
  }
  void send_ranks(const protocol::Down& down) override {
    send_all({.kind = Kind::rank, .payload = protocol::encode(down)});
  }
  void send_rank(int rank, const protocol::Down& down) override {
    send(node_of(rank), {.kind = Kind::rank, .rank = rank, .payload = protocol::encode(down)});
  }

  // ---- of the saves

  void save_progressed() override { supervision_.progressed(0, clock_.monotonic_s()); }
  void save_published(int64_t step) override {
    if (hooks_.saved) hooks_.saved(step);
  }
  void save_ended(const SaveOutcome& outcome, double seconds) override { log_.saved(outcome, seconds); }
  void save_ended_before(const SaveOutcome& outcome) override { log_.saved_before(outcome); }
  void save_superseded(int64_t step, const std::string& why) override {
    log_.event(EventKind::save_superseded,
               dump_json(Json{{"step", step}, {"tier", "directory"}, {"reason", why}}));
  }
  void save_hangs(const std::string& text) override { log_.publishing_hangs(text); }

  int node_of(int rank) const {
    const auto after = std::upper_bound(plan_.nodes.begin(), plan_.nodes.end(), rank,
                                        [](int r, const AttemptPlan::Node& node) { return r < node.first; });
    return int(after - plan_.nodes.begin()) - 1;
  }
  /// Which node of the attempt a node of the fleet is; -1: none.
  int index_of(int fleet_node) const {
    for (size_t i = 0; i < plan_.nodes.size(); ++i)
      if (plan_.nodes[i].node == fleet_node) return int(i);
    return -1;
  }

  bool all_gone() const {
    for (size_t i = 0; i < plan_.nodes.size(); ++i)
      if (!gone_[i] && fleet_.hello(plan_.nodes[i].node)) return false;
    return true;
  }

  void end_everywhere() {
    if (all_gone()) return;
    send_all({.kind = Kind::kill});
    const double until_s = clock_.monotonic_s() + kEndLimitS;
    while (!all_gone() && clock_.monotonic_s() < until_s) {
      fleet_.await(kEndPollS);
      fleet_.serve();
    }
  }

  // ---- from the nodes

  void on_node_lost(int fleet_node, const NodeLoss& loss) {
    if (hooks_.node_lost) hooks_.node_lost(fleet_node, loss);
    if (const int index = index_of(fleet_node); index >= 0) lose(index, loss);
  }

  void lose(int index, const NodeLoss& loss) {
    const std::string& node = plan_.nodes[size_t(index)].name;
    log_.event(EventKind::node_lost,
               dump_json(Json{{"epoch", plan_.file.epoch}, {"node", node}, {"reason", loss.why}}));
    if (!gone_[size_t(index)])
      supervision_.node_lost(index, loss.why, clock_.monotonic_s(), loss.by_own_pause);
    gone_[size_t(index)] = true;
    lost_[size_t(index)] = true;
  }

  void on_message(int fleet_node, Message&& m) {
    const int index = index_of(fleet_node);
    if (m.kind == Kind::warned) return supervision_.stop(StopLevel::save_and_stop, clock_.monotonic_s());
    if (m.kind == Kind::clock) return trace_.clock(index, m.number, m.text);
    // Whatever an old epoch says is refused.
    if (index < 0 || lost_[size_t(index)] || m.epoch != plan_.file.epoch) return;
    try {
      take(index, std::move(m));
    } catch (const Error& error) {
      files_.log(fmt::format("{}: {}", fleet_.name(fleet_node), error.what()));
    }
  }

  void take(int index, Message&& m) {
    // -1: the process that starts the ranks.
    if (m.rank < -1 || m.rank >= plan_.limits.ranks || (m.rank == -1 && m.kind == Kind::rank_lost)) return;
    switch (m.kind) {
      case Kind::beat: return on_beat(m.payload);
      case Kind::rank: return on_rank(m.rank, protocol::decode_up(m.payload), m.sequence);
      case Kind::times: return on_times(index, m.payload);
      case Kind::answered: return saves_.answered_before(protocol::decode_down(m.payload));
      case Kind::rank_lost:
        return supervision_.lost(m.rank, files_.crash_record(m.rank, plan_.file.epoch), clock_.monotonic_s());
      case Kind::exited: return on_exit(index, m.rank, int(m.number));
      case Kind::output: return on_output(index, m);
      case Kind::fence: return relay_.fence(index, std::move(m));
      case Kind::remote: return relay_.remote(index, m);
      case Kind::remote_ended: return relay_.remote_ended(index, m);
      case Kind::gone:
        gone_[size_t(index)] = true;
        if (m.number > 0)
          log_.console().note(fmt::format(" ! {} on {} could not be killed",
                                          count_of(m.number, "process", "processes"),
                                          plan_.nodes[size_t(index)].name));
        return;
      default:
        return;
    }
  }

  void on_beat(const std::string& payload) {
    const double now_s = clock_.monotonic_s();
    for (const wire::RankDigest& d : wire::unpack(payload)) {
      if (d.rank < 0 || d.rank >= plan_.limits.ranks) continue;
      const RankView& view = supervision_.ranks()[size_t(d.rank)];
      if (d.connected && view.phase == RankView::absent)
        supervision_.hello(d.rank, d.pid, host_of(d.rank), now_s);
      if (d.connected) supervision_.heard(d.rank, now_s, double(d.silent_s));
      // In this order: what a stopped rank does cannot change any more.
      if (d.has_activity) supervision_.activity(d.rank, d.activity, now_s);
      if (d.connected && view.phase == RankView::present) supervision_.stopped(d.rank, d.stopped);
    }
  }

  std::string host_of(int rank) const { return plan_.nodes[size_t(node_of(rank))].name; }

  void on_exit(int index, int rank, int status) {
    const double now_s = clock_.monotonic_s();
    if (rank >= 0)
      return supervision_.exited(rank, status, files_.crash_record(rank, plan_.file.epoch), now_s);
    // A rank that failed before it could connect has left nothing but its record.
    for (int r = 0; r < plan_.limits.ranks; ++r)
      if (supervision_.ranks()[size_t(r)].phase == RankView::absent)
        if (const auto record = files_.crash_record(r, plan_.file.epoch)) supervision_.lost(r, record, now_s);
    supervision_.launcher_ended(status, now_s, index);
  }

  void on_output(int index, const Message& m) {
    const bool many = plan_.nodes.size() > 1;
    const std::string text = files_.log_output(m.payload, many ? plan_.nodes[size_t(index)].name : "");
    supervision_.launcher_output(text);
    // Of a rank that failed before it could connect mpirun may report the end long before its own.
    const auto notice = parse_death_notice(text);
    if (!notice || notice->rank < 0 || notice->rank >= plan_.limits.ranks) return;
    if (supervision_.ranks()[size_t(notice->rank)].phase != RankView::absent) return;
    if (const auto record = files_.crash_record(notice->rank, plan_.file.epoch))
      supervision_.lost(notice->rank, record, clock_.monotonic_s());
  }

  void on_all_present() {
    const double seconds = clock_.monotonic_s() - started_s_;
    if (hooks_.all_present) hooks_.all_present();
    log_.event(plan_.attach ? EventKind::attached : EventKind::ranks_up,
               fmt::format(R"({{"epoch":{},"ranks":{},"seconds":{:.3f}}})", plan_.file.epoch,
                           plan_.limits.ranks, seconds));
    log_.console().note(fmt::format("✓ {} rank{} {} in {:.1f} s", plan_.limits.ranks,
                                    plan_.limits.ranks == 1 ? "" : "s", plan_.attach ? "attached" : "up",
                                    seconds));
  }

  // ---- from the ranks

  void on_hello(const protocol::Hello& hello) {
    supervision_.hello(hello.rank, hello.pid, hello.host, clock_.monotonic_s());
    if (supervision_.stop_level() != StopLevel::none) send_rank(hello.rank, stop_order());
    saves_.hello(hello.rank);
  }

  /// Writes what is complete. What is not stays with the agent of rank 0: this supervisor may die.
  void record(const std::vector<StepRecord>& records) {
    for (const StepRecord& record : records) {
      log_.step(record);
      if (hooks_.progressed) hooks_.progressed(record.line.step);
    }
    fleet_.let_keep(plan_.nodes.front().node, steps_.oldest_sequence());
  }

  void on_times(int index, const std::string& payload) {
    const AttemptPlan::Node& node = plan_.nodes[size_t(index)];
    for (const wire::RankStepTimes& t : wire::unpack_times(payload))
      if (t.rank >= node.first && t.rank < node.first + node.count) steps_.times(t.step, t.rank, t.times);
    record(steps_.take(clock_.monotonic_s()));
  }

  void on_rank(int rank, protocol::Up&& up, uint64_t sequence) {
    if (rank < 0 || (up.hello && up.hello->rank != rank)) return;
    const double now_s = clock_.monotonic_s();
    if (up.hello) return on_hello(*up.hello);
    supervision_.heard(rank, now_s);
    if (up.step) {
      supervision_.progressed(up.step->line.step, now_s);
      steps_.report(*up.step, sequence, now_s);
      record(steps_.take(now_s));
    } else if (up.times) {
      steps_.times(up.times->step, rank, up.times->times);
      record(steps_.take(now_s));
    } else if (up.event) {
      log_.rank_event(up.event->kind, up.event->json);
      supervision_.progressed(0, now_s);
    } else if (up.shard) {
      saves_.hand_in(rank, std::move(*up.shard));
    } else if (up.trace) {
      trace_.handed_in(rank, *up.trace);
    } else if (up.done) {
      supervision_.done(rank, now_s);
    }
  }

  const AttemptPlan plan_;
  const AttemptHooks hooks_;
  Fleet& fleet_;
  NodeRelay relay_{int(plan_.nodes.size()), [this](int index, const Message& m) { send(index, m); },
                   [this](const std::string& host) {
                     const int node = fleet_.find_host(host), index = node < 0 ? -1 : index_of(node);
                     return index >= 0 && fleet_.hello(node) ? index : -1;
                   }};
  const RunDirectory& run_;
  Clock& clock_;
  RunLog& log_;
  StopSignals& signals_;
  const double started_s_ = clock_.monotonic_s();
  Supervision supervision_;
  SavePublisher publisher_;
  AttemptSaves saves_;
  AttemptTrace trace_;
  StepAssembly steps_;
  AttemptFiles files_;
  double looked_s_ = 0;
  bool regrouped_ = false, went_back_ = false, all_present_ = false;
  std::vector<bool> gone_;             // of each node: nothing of the epoch is left there, or it is lost
  std::vector<bool> lost_;  // of each node: it left this attempt, and what it says when it returns does not count
};

}  // namespace

AttemptResult run_attempt(AttemptPlan plan, AttemptHooks hooks, Fleet& fleet, const RunDirectory& run,
                          FileSystem& fs, Clock& clock, RunLog& log, StopSignals& signals) {
  ENSURE(plan.file.epoch > 0 && !plan.nodes.empty() && plan.limits.nodes.size() == plan.nodes.size());
  return Attempt(std::move(plan), std::move(hooks), fleet, run, fs, clock, log, signals).run();
}

}  // namespace trainctl
