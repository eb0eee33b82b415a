#include "runtime/launch/supervision.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <utility>

#include "runtime/observe/status.h"

namespace trainctl {
namespace {

/// A rank is silent after this many heartbeats; OpenMPI's busy ranks were seen to delay one by less than three.
constexpr double kMissedHeartbeats = 5;
/// When something else went wrong first, as many missed already speak against a rank.
constexpr double kSuspectHeartbeats = 3;
/// With very short heartbeats a loaded machine's scheduler must not look like a death.
constexpr double kShortestSilenceS = 0.5;
constexpr double kNever = std::numeric_limits<double>::infinity();

/// The last lines of the launcher's output that say something.
std::string gist(const std::string& text) {
  std::string result;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t first = line.find_first_not_of(" \t-\r");
    if (first == std::string::npos) continue;
    if (!result.empty()) result += ' ';
    result += line.substr(first);
  }
  constexpr size_t kMost = 400;
  return result.size() > kMost ? result.substr(0, kMost) + " ..." : result;
}

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
      ranks_(size_t(options.ranks)) {}

void Supervision::enter(Phase phase, double now_s) {
  phase_ = phase;
  entered_s_ = now_s;
  if (phase == Phase::ending) actions_.push_back(Action::terminate);
  if (phase == Phase::killing) actions_.push_back(Action::kill);
}

int Supervision::count(RankView::Phase phase) const {
  return int(std::count_if(ranks_.begin(), ranks_.end(), [&](const RankView& r) { return r.phase == phase; }));
}

std::string Supervision::where(int rank) const {
  const RankView& r = ranks_[size_t(rank)];
  return r.doing.empty() ? "" : fmt::format(" while: {}", r.doing);
}

void Supervision::hello(int rank, int pid, const std::string& host, double now_s) {
  RankView& r = ranks_[size_t(rank)];
  r.phase = RankView::present;
  r.pid = pid;
  r.host = host;
  r.heard_s = now_s;
  if (phase_ == Phase::starting && count(RankView::absent) == 0) {
    progressed_s_ = now_s;
    enter(Phase::running, now_s);
  }
}

void Supervision::heard(int rank, const std::string& doing, double now_s) {
  ranks_[size_t(rank)].heard_s = now_s;
  this->doing(rank, doing);
}

void Supervision::doing(int rank, const std::string& what) {
  if (!what.empty()) ranks_[size_t(rank)].doing = what;
}

void Supervision::stopped(int rank, bool is_stopped) {
  // Later, our own signals are at work.
  if (phase_ <= Phase::collecting) ranks_[size_t(rank)].stopped = is_stopped;
}

void Supervision::note_silence(double now_s) {
  const double limit_s = std::max(kShortestSilenceS, kSuspectHeartbeats * options_.heartbeat_s);
  for (RankView& r : ranks_) r.silent = r.phase == RankView::present && now_s - r.heard_s > limit_s;
}

void Supervision::progressed(int64_t step, double now_s) {
  progressed_s_ = now_s;
  if (step > last_step_) {
    last_step_ = step;
    stepped_ = true;
  }
}

void Supervision::done(int rank, double now_s) {
  ranks_[size_t(rank)].phase = RankView::done;
  if ((phase_ == Phase::running || phase_ == Phase::starting) && count(RankView::done) == options_.ranks)
    enter(Phase::finishing, now_s);
}

void Supervision::lost(int rank, const std::optional<CrashRecord>& record, double now_s) {
  RankView& r = ranks_[size_t(rank)];
  if (r.phase == RankView::done) return;
  r.phase = RankView::lost;
  if (record && !record->doing.empty()) r.doing = record->doing;
  if (!record) {
    add({Evidence::vanished, ErrorCode::kWorker, rank,
         fmt::format("rank {} (pid {}) ended without a word{}", rank, r.pid, where(rank))},
        now_s);
    return;
  }
  const bool effect = record->code == ErrorCode::kPeerLost;
  add({effect ? Evidence::peer_lost : Evidence::explained, record->code, rank,
       fmt::format("rank {} (pid {}): {}{}", rank, record->pid, record->message, where(rank))},
      now_s);
}

void Supervision::launcher_output(const std::string& text) { launcher_text_ = text; }

void Supervision::launcher_ended(int wait_status, double now_s) {
  launcher_alive_ = false;
  if (phase_ == Phase::finishing) return enter(Phase::over, now_s);
  if (WIFSIGNALED(wait_status) && (phase_ == Phase::starting || phase_ == Phase::running))
    return add({Evidence::killed, ErrorCode::kLauncher, -1,
                fmt::format("mpirun was killed by {}", describe_signal(WTERMSIG(wait_status)))},
               now_s);
  const std::string said = gist(launcher_text_);
  add({Evidence::launcher, ErrorCode::kLauncher, -1,
       fmt::format("mpirun ended with status {}{}{}",
                   WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status),
                   count(RankView::absent) > 0 ? " before every rank had started" : "",
                   said.empty() ? "" : ": " + said)},
      now_s);
}

void Supervision::stop(StopLevel level, double now_s) {
  if (level <= stop_level_) return;
  stop_level_ = level;
  if (level == StopLevel::save_and_stop) actions_.push_back(Action::tell_save_and_stop);
  const bool alive = phase_ == Phase::starting || phase_ == Phase::running || phase_ == Phase::finishing ||
                     phase_ == Phase::collecting;
  if (level == StopLevel::now && alive) enter(Phase::ending, now_s);
}

void Supervision::all_gone(double now_s) {
  processes_left_ = false;
  if (phase_ == Phase::ending || phase_ == Phase::killing) enter(Phase::over, now_s);
}

void Supervision::add(Evidence evidence, double now_s) {
  if (phase_ == Phase::ending || phase_ == Phase::killing || phase_ == Phase::over) return;
  if (evidence_.empty()) note_silence(now_s);
  evidence_.push_back(std::move(evidence));
  if (phase_ != Phase::collecting) enter(Phase::collecting, now_s);
}

bool Supervision::explained() const {
  return std::any_of(evidence_.begin(), evidence_.end(),
                     [](const Evidence& e) { return e.weight <= Evidence::hang; });
}

bool Supervision::collecting_is_enough(double now_s) const {
  if (!launcher_alive_ && count(RankView::present) == 0) return true;
  const double waited_s = now_s - entered_s_;
  // Nobody knows yet why a rank vanished, and the launcher, its parent, is about to say so.
  if (!explained() && launcher_alive_ && !parse_death_notice(launcher_text_))
    return waited_s >= options_.launcher_evidence_s;
  return waited_s >= options_.evidence_s;
}

void Supervision::check_silence(double now_s) {
  const double limit_s = std::max(kShortestSilenceS, kMissedHeartbeats * options_.heartbeat_s);
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const RankView& r = ranks_[size_t(rank)];
    if (r.phase == RankView::present && now_s - r.heard_s > limit_s)
      return add({Evidence::hang, ErrorCode::kHang, rank,
                  fmt::format("rank {} (pid {}) sent no heartbeat for {:.1f} s (the process is stopped, or its "
                              "machine hangs){}",
                              rank, r.pid, now_s - r.heard_s, where(rank))},
                 now_s);
  }
}

std::vector<int> Supervision::culprits(bool with_ended) const {
  // A rank that gave up on a peer is no suspect. One that has ended meanwhile may be: it was killed for what
  // another did.
  const auto gave_up = [&](int rank) {
    return std::any_of(evidence_.begin(), evidence_.end(),
                       [&](const Evidence& e) { return e.rank == rank && e.weight == Evidence::peer_lost; });
  };
  std::vector<int> still, busy;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const RankView& r = ranks_[size_t(rank)];
    const bool started = r.phase == RankView::present || (with_ended && r.phase == RankView::lost);
    if (!started || gave_up(rank)) continue;
    if (r.stopped || r.silent) still.push_back(rank);
    if (!waits_for_peers(r.doing)) busy.push_back(rank);
  }
  return still.empty() ? busy : still;
}

std::string Supervision::suspects() const {
  const std::vector<int> ranks = culprits(true);
  if (ranks.empty()) return fmt::format("every rank waits for another; rank 0{}", where(0));
  const RankView& first = ranks_[size_t(ranks[0])];
  if (first.stopped || first.silent)
    return fmt::format("{} {} (pid {}) {} {}{}", ranks.size() == 1 ? "rank" : "ranks", list_of(ranks), first.pid,
                       ranks.size() == 1 ? "is" : "are",
                       first.stopped ? "stopped (by SIGSTOP or a debugger)" : "silent (no heartbeats)",
                       where(ranks[0]));
  if (int(ranks.size()) == options_.ranks)
    return fmt::format("no rank waits for another; rank {}{}", ranks[0], where(ranks[0]));
  return fmt::format("the others wait for {} {}, last heard{}", ranks.size() == 1 ? "rank" : "ranks",
                     list_of(ranks), where(ranks[0]));
}

void Supervision::check_progress(double now_s) {
  if (phase_ != Phase::running || now_s - progressed_s_ <= options_.step_timeout_s) return;
  note_silence(now_s);
  const std::vector<int> ranks = culprits(false);
  add({Evidence::hang, ErrorCode::kHang, ranks.size() == 1 ? ranks[0] : -1,
       fmt::format("no step was finished for {:.0f} s (fault_tolerance.step_timeout_seconds): {}",
                   now_s - progressed_s_, suspects())},
      now_s);
}

void Supervision::check_start(double now_s) {
  if (phase_ != Phase::starting || now_s - started_s_ <= options_.start_timeout_s) return;
  std::vector<int> absent;
  for (int rank = 0; rank < options_.ranks; ++rank)
    if (ranks_[size_t(rank)].phase == RankView::absent) absent.push_back(rank);
  const std::string said = gist(launcher_text_);
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
  }
  last_tick_s_ = now_s;
  if (phase_ == Phase::starting || phase_ == Phase::running) check_silence(now_s);
  check_progress(now_s);
  check_start(now_s);
  const double waited_s = now_s - entered_s_;
  switch (phase_) {
    case Phase::finishing:
      if (waited_s >= options_.finish_limit_s) enter(Phase::ending, now_s);
      return;
    case Phase::collecting:
      if (collecting_is_enough(now_s)) enter(Phase::ending, now_s);
      return;
    case Phase::ending:
      if (waited_s >= options_.term_grace_s) enter(Phase::killing, now_s);
      return;
    case Phase::killing:
      if (waited_s >= options_.kill_limit_s) enter(Phase::over, now_s);
      return;
    default: return;
  }
}

double Supervision::deadline_s() const {
  switch (phase_) {
    case Phase::starting:
    case Phase::running: {
      double deadline = phase_ == Phase::starting ? started_s_ + options_.start_timeout_s
                                                  : progressed_s_ + options_.step_timeout_s;
      const double silence_s = std::max(kShortestSilenceS, kMissedHeartbeats * options_.heartbeat_s);
      for (const RankView& r : ranks_)
        if (r.phase == RankView::present) deadline = std::min(deadline, r.heard_s + silence_s);
      return deadline;
    }
    case Phase::finishing: return entered_s_ + options_.finish_limit_s;
    case Phase::collecting: return entered_s_ + options_.evidence_s;
    case Phase::ending: return entered_s_ + options_.term_grace_s;
    case Phase::killing: return entered_s_ + options_.kill_limit_s;
    case Phase::over: return kNever;
  }
  return kNever;
}

std::vector<Supervision::Action> Supervision::take_actions() { return std::exchange(actions_, {}); }

const Supervision::Evidence* Supervision::first_cause() const {
  // min_element keeps the first of equals, so the earliest.
  const auto it = std::min_element(evidence_.begin(), evidence_.end(),
                                   [](const Evidence& a, const Evidence& b) { return a.weight < b.weight; });
  return it == evidence_.end() ? nullptr : &*it;
}

void Supervision::describe_death(const DeathNotice& notice, Verdict& v) const {
  const int pid = ranks_[size_t(notice.rank)].pid;
  const std::string who =
      pid ? fmt::format("rank {} (pid {})", notice.rank, pid) : fmt::format("rank {}", notice.rank);
  v.rank = notice.rank;
  v.code = ErrorCode::kWorker;
  v.cause = notice.signal
                ? fmt::format("{} was killed by {}{}", who, describe_signal(notice.signal), where(notice.rank))
                : fmt::format("{} exited with status {}{}", who, notice.exit_code, where(notice.rank));
  if (notice.signal == SIGKILL) v.cause += "; if nobody killed it, the machine ran out of memory (see dmesg)";
}

Verdict Supervision::verdict() const {
  ENSURE(over(), "phase = {}", int(phase_));
  Verdict v;
  v.before_first_step = !stepped_;
  const Evidence* first = first_cause();
  if (!first) {
    const bool complete = count(RankView::done) == options_.ranks;
    v.outcome = !complete                                                             ? Verdict::aborted
                : stop_level_ != StopLevel::none && last_step_ < options_.target_step ? Verdict::stopped
                                                                                      : Verdict::finished;
    return v;
  }
  v.outcome = stop_level_ == StopLevel::now ? Verdict::aborted : Verdict::failed;
  // The launcher is the parent of the ranks: it knows who ended first, and of what signal.
  const auto notice = parse_death_notice(launcher_text_);
  const bool named =
      first->weight >= Evidence::vanished && notice && notice->rank >= 0 && notice->rank < options_.ranks;
  if (named) {
    const auto told = std::find_if(evidence_.begin(), evidence_.end(), [&](const Evidence& e) {
      return e.rank == notice->rank && e.weight == Evidence::peer_lost;
    });
    // A rank that gave up on a peer exits with a status, too: its own record says more than that.
    if (told != evidence_.end() && notice->signal == 0) first = &*told;
  }
  v.code = first->code;
  v.rank = first->rank;
  v.cause = first->cause;
  if (first->weight == Evidence::peer_lost) {
    // Nobody died of itself: somebody does not answer.
    v.code = ErrorCode::kHang;
    v.cause = first->cause + "; " + suspects();
    const std::vector<int> ranks = culprits(true);
    const auto stands_still = [&](int rank) {
      return ranks_[size_t(rank)].stopped || ranks_[size_t(rank)].silent;
    };
    if (ranks.size() == 1 && stands_still(ranks[0])) v.rank = ranks[0];
  } else if (named) {
    describe_death(*notice, v);
  }
  const int others = int(std::count_if(ranks_.begin(), ranks_.end(),
                                       [](const RankView& r) {
                                         return r.phase != RankView::absent && r.phase != RankView::done;
                                       })) -
                     (v.rank >= 0 ? 1 : 0);
  if (others > 0) v.effect = fmt::format("{} other rank{} ended", others, others == 1 ? " was" : "s were");
  return v;
}

std::optional<DeathNotice> parse_death_notice(const std::string& text) {
  const auto number_after = [&](const std::string& key, size_t from) -> std::optional<int> {
    const size_t at = text.find(key, from);
    if (at == std::string::npos) return std::nullopt;
    return std::atoi(text.c_str() + at + key.size());
  };
  if (const size_t at = text.find("noticed that process rank "); at != std::string::npos) {
    const auto rank = number_after("process rank ", at), signal = number_after("exited on signal ", at);
    if (rank && signal) return DeathNotice{.rank = *rank, .signal = *signal};
  }
  // "Process name: [[19821,1],2]" and "Exit code:    10"
  if (const size_t at = text.find("Process name: [["); at != std::string::npos) {
    const auto rank = number_after("],", at), exit_code = number_after("Exit code:", at);
    if (rank && exit_code) return DeathNotice{.rank = *rank, .exit_code = *exit_code};
  }
  return std::nullopt;
}

bool worth_restarting(ErrorCode code) {
  switch (code) {
    case ErrorCode::kWorker:
    case ErrorCode::kPeerLost:
    case ErrorCode::kHang:
    case ErrorCode::kIo:
    case ErrorCode::kHardware:
    case ErrorCode::kLauncher: return true;
    default: return false;
  }
}

}  // namespace trainctl
