#include <sys/timex.h>
#include <time.h>

#include "runtime/machine/burn_in.h"

namespace trainctl {
namespace {

/// Another program may have the core between two clocks, but hardly in each reading.
constexpr int kReadings = 16;

double clock_s(clockid_t id) {
  timespec now{};
  ::clock_gettime(id, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

}  // namespace

double burn_in_thread_s() { return clock_s(CLOCK_THREAD_CPUTIME_ID); }

ClockResult clocks_now() { return clocks_of(clock_s); }

ClockResult clocks_of(const std::function<double(int clock)>& read) {
  ClockResult tightest;
  double least_s = 0;
  for (int reading = 0; reading < kReadings; ++reading) {
    const double began_s = read(CLOCK_MONOTONIC), raw_s = read(CLOCK_MONOTONIC_RAW);
    const double unix_s = read(CLOCK_REALTIME), took_s = read(CLOCK_MONOTONIC) - began_s;
    if (reading > 0 && took_s >= least_s) continue;
    least_s = took_s;
    tightest.monotonic_s = began_s + took_s / 2;
    tightest.raw_s = raw_s;
    tightest.unix_s = unix_s;
  }
  return tightest;
}

ClockResult clocks_since(const ClockResult& before) {
  ClockResult after = clocks_now();
  after.monotonic_s -= before.monotonic_s;
  after.raw_s -= before.raw_s;
  after.unix_s -= before.unix_s;
  timex state{};
  if (const int answer = ::adjtimex(&state); answer >= 0) {
    after.synchronised = answer != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
    after.off_s = 1e-6 * double(state.maxerror);
  }
  return after;
}

}  // namespace trainctl
