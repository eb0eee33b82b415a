#include "runtime/supervise/decide/supervision.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <utility>

#include "runtime/base/ensure.h"

namespace trainctl {
namespace {

/// A rank is silent after this many heartbeats; Open MPI's busy ranks delayed one by less than three.
constexpr double kMissedHeartbeats = 5;
constexpr double kSuspectHeartbeats = 3;  ///< where something else went wrong first
constexpr double kShortestSilenceS = 0.5;  ///< a loaded machine's scheduler must not look like a death
/// A recovery waits so long for a file system that does not answer: a busy one answers within a few seconds.
constexpr double kQuietAfterFailureS = 10;
/// When a rank seems silent, its node's next report is waited for in turns of this length.
constexpr double kReportTurnS = 0.05;

std::string list_of(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, ranks.size()); ++i)
    text += fmt::format("{}{}", i ? ", " : "", ranks[i]);
  if (ranks.size() > kMost) text += fmt::format(" and {} more", ranks.size() - kMost);
  return text;
}

}  // namespace

Supervision::Supervision(const Options& options, double now_s)
    : options_(options),
      entered_s_(now_s),
      started_s_(now_s),
      last_tick_s_(now_s),
      progressed_s_(now_s),
      ranks_(size_t(options.ranks)),
      launcher_alive_(options.launcher) {
  ENSURE(options.ranks > 0, "{} ranks", options.ranks);
}

void Supervision::enter(Phase phase, double now_s) {
  ENSURE(phase > phase_, "from phase {} to {}", int(phase_), int(phase));  // as drawn in the header
  phase_ = phase;
  entered_s_ = now_s;
  if (phase == Phase::collecting) actions_.push_back(Action::look);
  if (phase == Phase::ending) actions_.push_back(Action::kill);
}

RankView& Supervision::at(int rank) {
  ENSURE(rank >= 0 && rank < options_.ranks, "rank {} of {}", rank, options_.ranks);
  return ranks_[size_t(rank)];
}

int Supervision::count(RankView::Phase phase) const {
  return int(
      std::count_if(ranks_.begin(), ranks_.end(), [&](const RankView& r) { return r.phase == phase; }));
}

std::string Supervision::where(int rank) const {
  const RankView& r = ranks_[size_t(rank)];
  return r.activity ? fmt::format(" while: {}", render(*r.activity)) : "";
}

int Supervision::node_of(int rank) const {
  const auto after = std::upper_bound(options_.nodes.begin(), options_.nodes.end(), rank,
                                      [](int r, const NodeRanks& node) { return r < node.first; });
  return int(after - options_.nodes.begin()) - 1;
}

std::string Supervision::at_node(int rank) const {
  return options_.nodes.size() < 2 ? "" : " on " + options_.nodes[size_t(node_of(rank))].name;
}

void Supervision::hello(int rank, int pid, const std::string& host, double now_s) {
  RankView& r = at(rank);
  r.phase = RankView::present;
  r.pid = pid;
  r.host = host;
  r.heard_s = r.reported_s = now_s;
  check_all_here(now_s);
}

void Supervision::check_all_here(double now_s) {
  if (phase_ != Phase::starting || count(RankView::absent) > 0) return;
  progressed_s_ = now_s;
  all_came_ = true;
  enter(Phase::running, now_s);
}

void Supervision::heard(int rank, double now_s, double silent_s) {
  RankView& r = at(rank);
  r.heard_s = std::max(r.heard_s, now_s - silent_s);
  r.reported_s = now_s;
  // The node's answer to the look at the first evidence.
  if (phase_ == Phase::collecting) r.silent = r.silent || silent_by(r, *first_evidence_s_);
}

void Supervision::activity(int rank, const std::optional<Activity>& activity, double now_s) {
  RankView& r = at(rank);
  // What a stopped rank did when it was stopped stays: mpirun lets it go on for a moment when it ends all
  // ranks.
  if (!activity || r.stopped) return;
  // Steps are counted by their end. Elsewhere a rank that gets on, or that comes to another phase, is
  // progress of the run.
  const bool in_steps = is_step_phase(activity->phase) && (!r.activity || is_step_phase(r.activity->phase));
  if (!in_steps &&
      (!r.activity || r.activity->phase != activity->phase || r.activity->done != activity->done))
    progressed_s_ = now_s;
  r.activity = activity;
}

void Supervision::stopped(int rank, bool is_stopped) {
  RankView& r = at(rank);
  // Later, signals are at work: mpirun's, which begin with SIGCONT, and then our own.
  if (phase_ < Phase::collecting) r.stopped = is_stopped;
  if (phase_ == Phase::collecting) r.stopped = r.stopped || is_stopped;
}

bool Supervision::silent_by(const RankView& r, double by_s) const {
  const double limit_s = std::max(kShortestSilenceS, kSuspectHeartbeats * options_.heartbeat_s);
  return r.phase == RankView::present && std::min(r.reported_s, by_s) - r.heard_s > limit_s;
}

void Supervision::note_silence(double now_s) {
  for (RankView& r : ranks_) r.silent = silent_by(r, now_s);
}

void Supervision::progressed(int64_t step, double now_s) {
  progressed_s_ = now_s;
  if (step > last_step_) {
    last_step_ = step;
    stepped_ = true;
  }
}

void Supervision::done(int rank, double now_s) {
  at(rank).phase = RankView::done;
  if ((phase_ == Phase::running || phase_ == Phase::starting) && count(RankView::done) == options_.ranks)
    return enter(Phase::finishing, now_s);
  check_all_here(now_s);  // after an attach: it was done before
}

void Supervision::lost(int rank, const std::optional<CrashRecord>& record, double now_s) {
  RankView& r = at(rank);
  if (r.phase == RankView::done) return;
  r.phase = RankView::lost;
  if (record) activity(rank, record->activity, now_s);
  if (!record) {
    add({Evidence::vanished, ErrorCode::kWorker, rank,
         fmt::format("rank {} (pid {}{}) ended without a word{}", rank, r.pid, at_node(rank), where(rank))},
        now_s);
    return;
  }
  const bool effect = record->code == ErrorCode::kPeerLost;
  std::string at = where(rank);
  if (effect && r.activity) {
    // The message itself says for whom it waited.
    Activity before = *r.activity;
    before.kind = Activity::computing;
    at = fmt::format(" while: {}", render(before));
  }
  add({effect ? Evidence::peer_lost : Evidence::explained, record->code, rank,
       fmt::format("rank {} (pid {}{}): {}{}", rank, record->pid, at_node(rank), record->message, at)},
      now_s);
}

void Supervision::exited(int rank, int wait_status, const std::optional<CrashRecord>& record, double now_s) {
  RankView& r = at(rank);
  ++ended_;
  if (phase_ == Phase::finishing) {
    // The work of all is done, however one of them ends.
    if (ended_ == options_.ranks) enter(Phase::over, now_s);
    return;
  }
  if (r.phase == RankView::done && (wait_status == 0 || phase_ == Phase::ending)) return;  // or killed: it took long
  // Also of one that was lost before: then its record was not to be seen yet.
  if (record && r.phase != RankView::done) return lost(rank, record, now_s);
  const int signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
  r.phase = RankView::lost;
  std::string cause =
      signal ? fmt::format("rank {}{} was killed by {}{}", rank,
                           r.pid ? fmt::format(" (pid {}{})", r.pid, at_node(rank)) : at_node(rank),
                           describe_signal(signal), where(rank))
             : fmt::format("rank {}{} exited with status {}{}", rank,
                           r.pid ? fmt::format(" (pid {}{})", r.pid, at_node(rank)) : at_node(rank),
                           WEXITSTATUS(wait_status), where(rank));
  if (signal == SIGKILL) cause += "; unless a person killed it, the machine ran out of memory (see dmesg)";
  // Without a record a status says little: MPI in another rank may have more to say.
  add({signal ? Evidence::killed : Evidence::vanished, ErrorCode::kWorker, rank, cause}, now_s);
}

void Supervision::node_lost(int node, const std::string& why, double now_s, bool by_own_pause) {
  if (phase_ == Phase::over) return;
  ENSURE(node >= 0 && size_t(node) < options_.nodes.size(), "node {} of {}", node, options_.nodes.size());
  const NodeRanks& ranks = options_.nodes[size_t(node)];
  bool all_done = true;
  for (int rank = ranks.first; rank < ranks.first + ranks.count; ++rank) {
    all_done = all_done && ranks_[size_t(rank)].phase == RankView::done;
    if (ranks_[size_t(rank)].phase == RankView::present) ranks_[size_t(rank)].phase = RankView::lost;
  }
  lost_nodes_.push_back(node);
  if (all_done) return;
  const std::string which = ranks.count == 1
                                ? fmt::format("rank {}", ranks.first)
                                : fmt::format("ranks {}-{}", ranks.first, ranks.first + ranks.count - 1);
  add({Evidence::node, by_own_pause ? ErrorCode::kLauncher : ErrorCode::kHardware, -1,
       fmt::format("{} was lost with {}: {}", ranks.name, which, why)},
      now_s);
}

void Supervision::launcher_output(const std::string& text) { launcher_text_ = text; }

void Supervision::launcher_ended(int wait_status, double now_s, int node) {
  launcher_alive_ = false;
  if (phase_ == Phase::finishing) return enter(Phase::over, now_s);
  if (WIFSIGNALED(wait_status) && (phase_ == Phase::starting || phase_ == Phase::running))
    return add({Evidence::killed, ErrorCode::kLauncher, -1,
                fmt::format("mpirun was killed by {}", describe_signal(WTERMSIG(wait_status)))},
               now_s);
  const std::string said = launcher_reason(launcher_text_);
  add({Evidence::launcher, ErrorCode::kLauncher, -1,
       fmt::format("{} ended with status {}{}{}", options_.launcher ? "mpirun" : "the start of the ranks",
                   WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status),
                   count(RankView::absent) > 0 ? " before every rank had started" : "",
                   said.empty() ? "" : ": " + said),
       options_.launcher ? -1 : node},
      now_s);
}

void Supervision::stop(StopLevel level, double now_s, double left_s) {
  if (level == StopLevel::none) return;
  if (stop_until_s_ == kNever) {
    // A time in which this process was stopped, before the request, is none of the stop.
    if (now_s - last_tick_s_ > std::max(1.0, 2 * options_.heartbeat_s)) tick(now_s);
    stop_until_s_ = now_s + std::min(left_s, options_.exit_timeout_s);
  }
  raise(level, now_s);
}

void Supervision::regroup(double now_s) { raise(StopLevel::save_and_stop, now_s); }

void Supervision::raise(StopLevel level, double now_s) {
  if (level <= stop_level_) return;
  stop_level_ = level;
  if (level == StopLevel::save_and_stop) actions_.push_back(Action::tell_save_and_stop);
  const bool alive = phase_ == Phase::starting || phase_ == Phase::running || phase_ == Phase::finishing ||
                     phase_ == Phase::collecting;
  if (level == StopLevel::now && alive) enter(Phase::ending, now_s);
}

void Supervision::all_gone(double now_s) {
  processes_left_ = false;
  if (phase_ == Phase::ending) enter(Phase::over, now_s);
}

void Supervision::add(Evidence evidence, double now_s) {
  if (phase_ == Phase::ending || phase_ == Phase::over) return;
  if (evidence_.empty()) {
    note_silence(now_s);
    first_evidence_s_ = now_s;
  }
  evidence_.push_back(std::move(evidence));
  if (phase_ != Phase::collecting) enter(Phase::collecting, now_s);
}

bool Supervision::explained() const {
  return std::any_of(evidence_.begin(), evidence_.end(),
                     [](const Evidence& e) { return e.weight <= Evidence::hang; });
}

bool Supervision::collecting_is_enough(double now_s) const {
  // No process is left that could report more.
  if (options_.launcher ? !launcher_alive_ && count(RankView::present) == 0 : ended_ == options_.ranks) return true;
  const double waited_s = now_s - entered_s_;
  const bool known = std::any_of(evidence_.begin(), evidence_.end(),
                                 [](const Evidence& e) { return e.weight <= Evidence::killed; });
  if (known && waited_s >= options_.known_evidence_s) return true;
  // The reason why a rank vanished is not known yet; the launcher, its parent, reports it soon.
  if (!explained() && launcher_alive_ && !parse_death_notice(launcher_text_))
    return waited_s >= options_.launcher_evidence_s;
  return waited_s >= options_.evidence_s;
}

void Supervision::check_silence(double now_s) {
  const double limit_s = std::max(kShortestSilenceS, kMissedHeartbeats * options_.heartbeat_s);
  // On a machine that is too busy several may be late: one that is stopped is the cause, or the longest silent.
  int silent = -1;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const RankView& r = ranks_[size_t(rank)];
    if (r.phase != RankView::present || r.reported_s - r.heard_s <= limit_s) continue;
    const RankView* worst = silent < 0 ? nullptr : &ranks_[size_t(silent)];
    if (!worst || (r.stopped != worst->stopped ? r.stopped : r.heard_s < worst->heard_s)) silent = rank;
  }
  if (silent < 0) return;
  const RankView& r = ranks_[size_t(silent)];
  add({Evidence::hang, ErrorCode::kHang, silent,
       fmt::format("rank {} (pid {}{}) {} for {:.1f} s{}{}", silent, r.pid, at_node(silent),
                   r.stopped ? "is stopped (by SIGSTOP or a debugger) and sent no heartbeat"
                             : "sent no heartbeat",
                   now_s - r.heard_s, r.stopped ? "" : " (the process is stopped, or its machine hangs)",
                   where(silent))},
      now_s);
}

bool Supervision::stands_still(int rank) const {
  ENSURE(rank >= 0 && rank < options_.ranks, "rank {} of {}", rank, options_.ranks);
  return ranks_[size_t(rank)].stopped || ranks_[size_t(rank)].silent;
}

std::vector<int> Supervision::culprits(bool with_ended) const {
  // A rank that gave up on a peer is no suspect. One that has ended meanwhile may be: it was killed for what
  // another did.
  const auto gave_up = [&](int rank) {
    return std::any_of(evidence_.begin(), evidence_.end(),
                       [&](const Evidence& e) { return e.rank == rank && e.weight == Evidence::peer_lost; });
  };
  std::vector<int> stopped, silent, absent, computing;
  std::vector<const Activity*> all;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const RankView& r = ranks_[size_t(rank)];
    all.push_back(r.activity ? &*r.activity : nullptr);
    if (r.phase == RankView::absent) absent.push_back(rank);
    const bool started = r.phase == RankView::present || (with_ended && r.phase == RankView::lost);
    if (!started || gave_up(rank)) continue;
    if (stands_still(rank)) (r.stopped ? stopped : silent).push_back(rank);
    if (!r.activity || !r.activity->is_waiting()) computing.push_back(rank);
  }
  // Where a rank is stopped, others that are silent may only be late on a busy machine.
  if (!stopped.empty() || !silent.empty()) return stopped.empty() ? silent : stopped;
  return absent.empty() ? awaited_of(computing, all) : absent;
}

std::string Supervision::suspects() const {
  const std::vector<int> ranks = culprits(true);
  const auto saves = [](const RankView& r) {
    return r.activity && r.activity->communicator.view() == kSupervisorWait;
  };
  if (ranks.empty() && std::all_of(ranks_.begin(), ranks_.end(), saves))
    return "every rank has written its part of the checkpoint, and publishing it does not end: the file "
           "system of "
           "checkpoint.dir hangs";
  if (ranks.empty()) return fmt::format("every rank waits for another; rank 0{}", where(0));
  const RankView& first = ranks_[size_t(ranks[0])];
  const bool one = ranks.size() == 1;
  if (first.phase == RankView::absent)
    return one ? fmt::format("rank {}{} has not started", ranks[0], at_node(ranks[0]))
               : fmt::format("ranks {} have not started", list_of(ranks));
  if (!first.stopped && !first.silent && int(ranks.size()) == options_.ranks)
    return fmt::format("no rank waits for another; rank {}{}", ranks[0], where(ranks[0]));
  const std::string who = one ? fmt::format("rank {} (pid {}{})", ranks[0], first.pid, at_node(ranks[0]))
                              : "ranks " + list_of(ranks);
  const char* what = first.stopped  ? "stopped (by SIGSTOP or a debugger)"
                     : first.silent ? "silent (no heartbeats)"
                                    : nullptr;
  if (what) return fmt::format("{} {} {}{}", who, one ? "is" : "are", what, where(ranks[0]));
  return fmt::format("{} {} the others waiting{}", who, one ? "keeps" : "keep", where(ranks[0]));
}

Supervision::Patience Supervision::patience_in(RunPhase phase) const {
  switch (phase) {
    case RunPhase::starting:
    case RunPhase::joining:
    case RunPhase::building:
    case RunPhase::meeting:
      return {options_.setup_timeout_s, "setup_timeout_seconds"};
    case RunPhase::opening_data:
      return {options_.data_timeout_s, "data_timeout_seconds"};
    case RunPhase::loading:
      return {options_.load_timeout_s, "load_timeout_seconds"};
    case RunPhase::evaluating:
      return {options_.evaluation_timeout_s, "evaluation_timeout_seconds"};
    case RunPhase::saving:
      return {options_.save_timeout_s, "save_timeout_seconds"};
    default:
      return of_steps();
  }
}

Supervision::Patience Supervision::of_steps() const {
  return {options_.step_timeout_s, "step_timeout_seconds", "no step was finished"};
}

Supervision::Patience Supervision::patience() const {
  // The longest limit of those who hold the others up; of all, if everyone waits.
  std::vector<int> ranks = culprits(false);
  if (ranks.empty())
    for (int rank = 0; rank < options_.ranks; ++rank)
      if (ranks_[size_t(rank)].phase == RankView::present) ranks.push_back(rank);
  std::optional<Patience> longest;
  for (const int rank : ranks) {
    const auto& activity = ranks_[size_t(rank)].activity;
    const Patience p = patience_in(activity ? activity->phase : RunPhase::starting);
    if (!longest || p.limit_s > longest->limit_s) longest = p;
  }
  return longest.value_or(of_steps());
}

void Supervision::check_progress(double now_s) {
  if (phase_ != Phase::running) return;
  const Patience limit = patience();
  if (now_s - progressed_s_ <= limit.limit_s) return;
  note_silence(now_s);
  const std::vector<int> ranks = culprits(false);
  add({Evidence::hang, ErrorCode::kHang, ranks.size() == 1 ? ranks[0] : -1,
       fmt::format("{}; {} for {:.0f} s (fault_tolerance.{})", suspects(), limit.missed,
                   now_s - progressed_s_, limit.field)},
      now_s);
}

void Supervision::check_stop(double now_s) {
  const bool runs = phase_ == Phase::starting || phase_ == Phase::running || phase_ == Phase::finishing ||
                    phase_ == Phase::collecting;
  if (!runs || now_s < stop_until_s_) return;
  if (phase_ != Phase::finishing)
    gave_up_ = fmt::format("the stop did not end within {:.0f} s (checkpoint.exit_timeout_seconds); {}",
                           options_.exit_timeout_s,
                           phase_ == Phase::starting ? "its ranks had not all started" : suspects());
  enter(Phase::ending, now_s);
}

bool Supervision::waits_for_publishing(double quiet_s, double now_s) const {
  if (stop_level_ == StopLevel::now || now_s >= stop_until_s_) return false;
  if (stop_until_s_ < kNever) return true;
  return quiet_s < (first_evidence_s_ ? kQuietAfterFailureS : options_.exit_timeout_s);
}

void Supervision::check_start(double now_s) {
  if (phase_ != Phase::starting || now_s - started_s_ <= options_.start_timeout_s) return;
  std::vector<int> absent;
  for (int rank = 0; rank < options_.ranks; ++rank)
    if (ranks_[size_t(rank)].phase == RankView::absent) absent.push_back(rank);
  const std::string said = launcher_reason(launcher_text_);
  add({Evidence::hang, ErrorCode::kHang, absent.size() == 1 ? absent[0] : -1,
       fmt::format("{} {} did not start within {:.0f} s{}", absent.size() == 1 ? "rank" : "ranks",
                   list_of(absent), options_.start_timeout_s, said.empty() ? "" : "; mpirun says: " + said)},
      now_s);
}

void Supervision::tick(double now_s) {
  // The supervisor itself slept (a suspended laptop, a stopped shell): its ranks' silence proves nothing.
  if (now_s - last_tick_s_ > std::max(1.0, 2 * options_.heartbeat_s)) {
    for (RankView& r : ranks_) r.heard_s = std::max(r.heard_s, now_s);
    progressed_s_ += now_s - last_tick_s_;
    stop_until_s_ += now_s - last_tick_s_;
  }
  last_tick_s_ = now_s;
  if (phase_ == Phase::starting || phase_ == Phase::running) check_silence(now_s);
  check_progress(now_s);
  check_start(now_s);
  check_stop(now_s);
  const double waited_s = now_s - entered_s_;
  switch (phase_) {
    case Phase::finishing:
      if (waited_s >= options_.finish_limit_s) enter(Phase::ending, now_s);
      return;
    case Phase::collecting:
      if (collecting_is_enough(now_s)) enter(Phase::ending, now_s);
      return;
    case Phase::ending:
      if (waited_s >= options_.kill_limit_s) enter(Phase::over, now_s);
      return;
    default:
      return;
  }
}

double Supervision::deadline_s() const {
  switch (phase_) {
    case Phase::starting:
    case Phase::running: {
      double deadline = phase_ == Phase::starting ? started_s_ + options_.start_timeout_s
                                                  : progressed_s_ + patience().limit_s;
      const double silence_s = std::max(kShortestSilenceS, kMissedHeartbeats * options_.heartbeat_s);
      for (const RankView& r : ranks_)
        if (r.phase == RankView::present)
          deadline = std::min(deadline, std::max(r.heard_s + silence_s, last_tick_s_ + kReportTurnS));
      return std::min(deadline, stop_until_s_);
    }
    case Phase::finishing: return std::min(entered_s_ + options_.finish_limit_s, stop_until_s_);
    case Phase::collecting:
      for (const double limit_s : {options_.known_evidence_s, options_.evidence_s})
        if (last_tick_s_ - entered_s_ < limit_s) return std::min(entered_s_ + limit_s, stop_until_s_);
      return std::min(entered_s_ + options_.launcher_evidence_s, stop_until_s_);
    case Phase::ending:
      return entered_s_ + options_.kill_limit_s;
    case Phase::over:
      return kNever;
  }
  return kNever;
}

std::vector<Supervision::Action> Supervision::take_actions() { return std::exchange(actions_, {}); }

}  // namespace trainctl
