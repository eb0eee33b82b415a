#include "runtime/supervise/attempt.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <future>

#include "runtime/run/activity_board.h"
#include "runtime/run/channel.h"
#include "runtime/machine/process.h"

namespace trainctl {
namespace {

constexpr double kLongestPollS = 1.0;
constexpr double kLookIntervalS = 0.9;
/// While processes are being ended, how often to look whether they are gone.
constexpr double kEndingPollS = 0.02;
/// What is kept of the launcher's output in memory; the log file has all of it.
constexpr size_t kLauncherTextBytes = 64 * 1024;

class Attempt {
 public:
  Attempt(AttemptOptions options, const RunDirectory& run, FileSystem& fs, Clock& clock, RunLog& log,
          StopSignals& signals)
      : options_(std::move(options)),
        run_(run),
        fs_(fs),
        clock_(clock),
        log_(log),
        signals_(signals),
        supervision_(options_.limits, clock.monotonic_s()),
        collector_(fs, options_.saves),
        token_(random_token()),
        mark_(random_token()),
        launcher_log_(run.file("logs/mpirun.log")),
        server_(token_, options_.limits.ranks,
                {.hello = [this](const protocol::Hello& hello) { on_hello(hello); },
                 .message = [this](int rank, protocol::Up&& up) { on_message(rank, std::move(up)); },
                 .lost = [this](int rank, const std::string&) { on_lost(rank); }}) {
    saved_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!options_.file.board.empty()) board_ = ActivityBoard::create(options_.file.board, options_.limits.ranks);
  }
  ~Attempt() { ::close(saved_fd_); }

  Verdict run() {
    options_.file.port = server_.port();
    fs_.replace_text(run_.attempt(), options_.file.to_json());
    Environment environment = options_.line.environment;
    environment.emplace_back(kTokenVariable, token_);
    environment.emplace_back(kAttemptVariable, mark_);
    environment.emplace_back(kRunVariable, run_.path);
    launcher_log_.append(
        fmt::format("--- epoch {}: {}", options_.file.epoch, shell_text({options_.line.argv, {}})));
    child_.emplace(options_.line.argv, environment);
    if (signals_.read() != StopLevel::none) supervision_.stop(signals_.read(), clock_.monotonic_s());
    while (!supervision_.over()) turn();
    take_save_result(true);
    collector_.abandon();
    return supervision_.verdict();
  }

 private:
  void turn() {
    std::vector<pollfd> fds = {{.fd = signals_.fd(), .events = POLLIN},
                               {.fd = saved_fd_, .events = POLLIN},
                               {.fd = child_->output_fd(), .events = POLLIN},
                               {.fd = child_->reap() ? -1 : child_->exit_fd(), .events = POLLIN}};
    server_.add_to(fds);
    ::poll(fds.data(), fds.size(), int(std::ceil(wait_s() * 1000)));
    const Supervision::Phase before = supervision_.phase();
    supervision_.stop(signals_.read(), clock_.monotonic_s());
    server_.serve();
    take_save_result(false);
    watch_child();
    look_at_ranks();
    supervision_.tick(clock_.monotonic_s());
    look_for_survivors();
    for (const Supervision::Action action : supervision_.take_actions()) act(action);
    log_.update(supervision_, supervision_.phase() != before);
    if (before == Supervision::Phase::starting && supervision_.phase() == Supervision::Phase::running)
      on_all_present();
  }

  /// What the ranks do and whether they run at all: once a second for the status, and when a deadline has
  /// passed, so that the verdict says where everyone was.
  void look_at_ranks() {
    const double now_s = clock_.monotonic_s();
    if (now_s < ranks_seen_s_ + kLookIntervalS && now_s < supervision_.deadline_s()) return;
    ranks_seen_s_ = now_s;
    look_at_all();
    // Ranks that have written their part wait for the slowest one as long as we live.
    if (publishing_.valid() || !collector_.missing().empty()) server_.send_all({.kind = protocol::Down::alive});
  }

  void look_at_all() {
    for (int rank = 0; rank < options_.limits.ranks; ++rank) {
      const RankView& view = supervision_.ranks()[size_t(rank)];
      // In this order: what a stopped rank does cannot change any more.
      const bool is_stopped = view.phase == RankView::present && process_stopped(view.pid);
      if (board_) supervision_.activity(rank, board_->read(rank), clock_.monotonic_s());
      if (view.phase == RankView::present) supervision_.stopped(rank, is_stopped);
    }
  }

  double wait_s() const {
    const bool ending = supervision_.phase() == Supervision::Phase::ending ||
                        supervision_.phase() == Supervision::Phase::killing;
    const double most_s = ending ? kEndingPollS : kLongestPollS;
    return std::clamp(supervision_.deadline_s() - clock_.monotonic_s(), 0.001, most_s);
  }

  void watch_child() {
    read_launcher_output();
    const auto status = child_->reap();
    if (!status || child_ended_) return;
    child_ended_ = true;
    // What ranks and launcher said before the end counts before the end itself.
    server_.serve();
    read_launcher_output();
    // A rank that failed before it could connect has left nothing but its record.
    for (int rank = 0; rank < options_.limits.ranks; ++rank)
      if (supervision_.ranks()[size_t(rank)].phase == RankView::absent)
        if (const auto record = read_crash_record(fs_, run_.path, rank, options_.file.epoch))
          supervision_.lost(rank, record, clock_.monotonic_s());
    supervision_.launcher_ended(*status, clock_.monotonic_s());
  }

  void read_launcher_output() {
    const std::string text = child_->read_output();
    if (text.empty()) return;
    launcher_text_ += text;
    if (launcher_text_.size() > kLauncherTextBytes)
      launcher_text_.erase(0, launcher_text_.size() - kLauncherTextBytes);
    launcher_log_.append(text.back() == '\n' ? text.substr(0, text.size() - 1) : text);
    supervision_.launcher_output(launcher_text_);
  }

  void look_for_survivors() {
    const Supervision::Phase phase = supervision_.phase();
    if (phase != Supervision::Phase::ending && phase != Supervision::Phase::killing) return;
    // A rank may have been starting while the others were being killed: keep at it.
    const int left = signal_marked(kAttemptVariable, mark_, phase == Supervision::Phase::killing ? SIGKILL : 0);
    if (child_->reap() && left == 0) supervision_.all_gone(clock_.monotonic_s());
  }

  void act(Supervision::Action action) {
    switch (action) {
      case Supervision::Action::tell_save_and_stop:
        log_.event("stop_requested", fmt::format(R"({{"step":{}}})", supervision_.last_step()));
        log_.console().note(" stopping after this step and saving (press again to abort)…");
        server_.send_all({.kind = protocol::Down::stop, .level = StopLevel::save_and_stop});
        return;
      case Supervision::Action::terminate:
        log_.console().clear();
        signal_marked(kAttemptVariable, mark_, SIGTERM);
        return;
      case Supervision::Action::kill: signal_marked(kAttemptVariable, mark_, SIGKILL); return;
    }
  }

  void on_all_present() {
    const double seconds = clock_.monotonic_s() - started_s_;
    log_.event("ranks_up", fmt::format(R"({{"ranks":{},"seconds":{:.3f}}})", options_.limits.ranks, seconds));
    log_.console().note(fmt::format("✓ {} rank{} up in {:.1f} s", options_.limits.ranks,
                                    options_.limits.ranks == 1 ? "" : "s", seconds));
  }

  void on_hello(const protocol::Hello& hello) {
    supervision_.hello(hello.rank, hello.pid, hello.host, clock_.monotonic_s());
    if (supervision_.stop_level() != StopLevel::none)
      server_.send_to(hello.rank, {.kind = protocol::Down::stop, .level = supervision_.stop_level()});
    // Answers are counted by the ranks: one that comes late must not miss any.
    for (const protocol::Down& answer : begun_) server_.send_to(hello.rank, answer);
  }

  void on_lost(int rank) {
    if (board_) supervision_.activity(rank, board_->read(rank), clock_.monotonic_s());
    supervision_.lost(rank, read_crash_record(fs_, run_.path, rank, options_.file.epoch), clock_.monotonic_s());
    look_at_all();
  }

  void on_message(int rank, protocol::Up&& up) {
    const double now_s = clock_.monotonic_s();
    supervision_.heard(rank, now_s);
    // The board is newer than a heartbeat.
    if (up.beat && !(board_ && board_->read(rank))) supervision_.activity(rank, up.beat->activity, now_s);
    if (up.step) {
      log_.step(*up.step);
      supervision_.progressed(up.step->step, now_s);
    } else if (up.event) {
      log_.rank_event(up.event->kind, up.event->json);
      supervision_.progressed(0, now_s);
    } else if (up.begin) {
      begin_save(*up.begin);
    } else if (up.shard) {
      take_shard(rank, std::move(*up.shard));
    } else if (up.done) {
      supervision_.done(rank, now_s);
    }
  }

  void begin_save(const protocol::Begin& begin) {
    save_began_s_ = clock_.monotonic_s();
    // A second save before the first is answered cannot come from a rank that keeps the protocol.
    const std::string reason =
        publishing_.valid() ? "the save before is still being published" : collector_.begin(begin.state);
    if (!reason.empty()) log_.saved({.step = begin.state.step, .message = reason}, 0);
    begun_.push_back({.kind = protocol::Down::begun, .ok = reason.empty(), .message = reason});
    server_.send_all(begun_.back());
  }

  void take_shard(int rank, protocol::Shard&& shard) {
    const std::vector<int> missing = publishing_.valid() ? std::vector<int>{} : collector_.missing();
    if (std::find(missing.begin(), missing.end(), rank) == missing.end() ||
        shard.step != collector_.state().step) {
      server_.send_to(rank, {.kind = protocol::Down::saved,
                             .ok = false,
                             .message = fmt::format("no save of step {} is under way", shard.step)});
      return;
    }
    if (rank == 0) collector_.set_tensors(std::move(shard.tensors));
    if (!collector_.add(rank, std::move(shard.receipt), shard.failure)) return;
    // Publishing waits for the disk: on its own thread, or heartbeats would go unread.
    publishing_ = std::async(std::launch::async, [this] {
      SaveOutcome outcome = collector_.finish();
      ::eventfd_write(saved_fd_, 1);
      return outcome;
    });
  }

  void take_save_result(bool wait) {
    if (!publishing_.valid()) return;
    if (!wait && publishing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    const SaveOutcome outcome = publishing_.get();
    eventfd_t count;
    ::eventfd_read(saved_fd_, &count);
    const double now_s = clock_.monotonic_s();
    log_.saved(outcome, now_s - save_began_s_);
    supervision_.progressed(0, now_s);
    server_.send_all({.kind = protocol::Down::saved, .ok = outcome.ok, .message = outcome.message});
  }

  AttemptOptions options_;
  const RunDirectory& run_;
  FileSystem& fs_;
  Clock& clock_;
  RunLog& log_;
  StopSignals& signals_;
  const double started_s_ = clock_.monotonic_s();
  Supervision supervision_;
  SaveCollector collector_;
  const std::string token_, mark_;
  Journal launcher_log_;
  std::string launcher_text_;
  int saved_fd_ = -1;
  std::unique_ptr<ActivityBoard> board_;
  double ranks_seen_s_ = 0;
  double save_began_s_ = 0;
  std::vector<protocol::Down> begun_;  // every answer to begin_save so far
  bool child_ended_ = false;
  ControlServer server_;
  std::optional<ChildProcess> child_;
  std::future<SaveOutcome>
      publishing_;  // last: its destructor waits for the thread, which uses the members above
};

/// Two interrupts closer together are one wish (a terminal and mpirun may both pass it on).
constexpr double kSecondInterruptS = 0.3;

sigset_t stop_set() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT}) ::sigaddset(&set, signal);
  return set;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = stop_set();
  ::pthread_sigmask(SIG_BLOCK, &set, &old_mask_);
  fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  // The reader of our messages may go away; the run goes on.
  old_pipe_ = ::signal(SIGPIPE, SIG_IGN);
}

StopSignals::~StopSignals() {
  read();  // one that came too late must not end the process now
  ::close(fd_);
  ::signal(SIGPIPE, old_pipe_);
  ::pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

StopLevel StopSignals::read() {
  signalfd_siginfo info;
  while (::read(fd_, &info, sizeof info) == ssize_t(sizeof info)) {
    // A job is often signalled twice (a scheduler, `stop` run again, a closing terminal): only a
    // person who presses ctrl-C again does not want to wait for the save.
    const double now_s = real_clock().monotonic_s();
    const bool interrupt = info.ssi_signo == uint32_t(SIGINT);
    const bool again = interrupt && interrupted_s_ && now_s - *interrupted_s_ >= kSecondInterruptS;
    if (interrupt && !interrupted_s_) interrupted_s_ = now_s;
    if (again || info.ssi_signo == uint32_t(SIGQUIT)) level_ = StopLevel::now;
    level_ = std::max(level_, StopLevel::save_and_stop);
  }
  return level_;
}

Verdict run_attempt(AttemptOptions options, const RunDirectory& run, FileSystem& fs, Clock& clock, RunLog& log,
                    StopSignals& signals) {
  Attempt attempt(std::move(options), run, fs, clock, log, signals);
  return attempt.run();
}

}  // namespace trainctl
