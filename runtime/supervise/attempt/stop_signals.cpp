#include "runtime/supervise/attempt/stop_signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/file_system.h"

namespace trainctl {
namespace {

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
    warned_ = warned_ || info.ssi_signo == uint32_t(SIGUSR1);
    level_ = std::max(level_, StopLevel::save_and_stop);
  }
  if (source_) level_ = std::max(level_, source_());
  return level_;
}

}  // namespace trainctl
