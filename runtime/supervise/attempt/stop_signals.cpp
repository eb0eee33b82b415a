#include "runtime/supervise/attempt/stop_signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/ensure.h"
#include "runtime/base/file_system.h"
#include "runtime/base/signals.h"

namespace trainctl {
namespace {

/// Two interrupts closer together are one wish (a terminal and mpirun may both pass it on).
constexpr double kSecondInterruptS = 0.3;

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = heeded({SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT});
  ::pthread_sigmask(SIG_BLOCK, &set, &old_mask_);
  fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  // The reader of our messages may go away; the run goes on.
  old_pipe_ = ::signal(SIGPIPE, SIG_IGN);
}

StopSignals::~StopSignals() {
  if (watching_.joinable()) {
    ::eventfd_write(end_fd_, 1);
    watching_.join();
    ::close(end_fd_);
  }
  take_all();  // one that came too late must not end the process now
  ::close(fd_);
  ::signal(SIGPIPE, old_pipe_);
  ::pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void StopSignals::take(const signalfd_siginfo& info) {
  // A job is often signalled twice (a scheduler, `stop` run again, a closing terminal): only a
  // person who presses ctrl-C again does not want to wait for the save.
  const double now_s = real_clock().monotonic_s();
  const bool interrupt = info.ssi_signo == uint32_t(SIGINT);
  const bool again = interrupt && interrupted_s_ && now_s - *interrupted_s_ >= kSecondInterruptS;
  if (interrupt && !interrupted_s_) interrupted_s_ = now_s;
  if (again || info.ssi_signo == uint32_t(SIGQUIT)) level_ = StopLevel::now;
  warned_ = warned_ || info.ssi_signo == uint32_t(SIGUSR1);
  level_ = std::max(level_, StopLevel::save_and_stop);
}

StopLevel StopSignals::take_all() {
  signalfd_siginfo info;
  while (::read(fd_, &info, sizeof info) == ssize_t(sizeof info)) take(info);
  if (level_ != StopLevel::none && !requested_s_) requested_s_ = real_clock().monotonic_s();
  return level_;
}

StopLevel StopSignals::read() {
  const StopLevel other = source_ ? source_() : StopLevel::none;
  const std::lock_guard lock(mutex_);
  read_s_ = real_clock().monotonic_s();
  level_ = std::max(level_, other);
  return take_all();
}

bool StopSignals::warned() const {
  const std::lock_guard lock(mutex_);
  return warned_;
}

double StopSignals::left_s(double limit_s) const {
  const std::lock_guard lock(mutex_);
  return requested_s_ ? limit_s - (real_clock().monotonic_s() - *requested_s_) : limit_s;
}

void StopSignals::watch(LastResort last) {
  ENSURE(!watching_.joinable());
  read();
  last_ = std::move(last);
  end_fd_ = ::eventfd(0, EFD_CLOEXEC);
  watching_ = std::thread([this] { run_watch(); });
}

void StopSignals::run_watch() {
  const int look_ms = int(std::clamp(last_.deaf_s * 100, 10.0, 1000.0));
  pollfd end{.fd = end_fd_, .events = POLLIN, .revents = 0};
  // By its own looks: a process that was stopped for a while does not hang.
  double known_read_s = -1, deaf_s = 0;
  while (::poll(&end, 1, look_ms) <= 0) {
    std::unique_lock lock(mutex_);
    deaf_s = std::exchange(known_read_s, read_s_) == read_s_ ? deaf_s + look_ms / 1000.0 : 0;
    if (deaf_s < last_.deaf_s) continue;
    const StopLevel level = take_all();
    if (level == StopLevel::none) continue;
    const double asked_s = real_clock().monotonic_s() - *requested_s_;
    if (level != StopLevel::now && asked_s < last_.exit_timeout_s + last_.deaf_s) continue;
    lock.unlock();
    last_.act(level, asked_s);
    return;
  }
}

}  // namespace trainctl
