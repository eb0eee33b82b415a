// A library to preload (scripts/repeat.sh -s): threads stop for some milliseconds, at times for seconds, behind calls
// that other threads may wait for, and as they begin. So tests that count on how threads take turns fail soon, on an
// idle machine, too. TRAINCTL_STALLS: a number from which the stops follow, in each thread; 1 without it.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr double kShare = 0.02, kLongShare = 0.0005;       // of the calls
constexpr uint64_t kMostUs = 30'000, kLongUs = 3'000'000;  // of one stop
constexpr int64_t kAllUs = 60'000'000;                     // of all stops of the process together

std::atomic<uint64_t> g_threads = 0;
std::atomic<int64_t> g_left_us = kAllUs;
thread_local uint64_t t_random = 0;
thread_local bool t_is_inside = false;

uint64_t first_number() {
  const char* const text = std::getenv("TRAINCTL_STALLS");
  return text ? std::strtoull(text, nullptr, 10) : 1;
}

void stall() {
  if (t_is_inside) return;
  t_is_inside = true;
  const int error = errno;
  static const uint64_t first = first_number();
  if (t_random == 0) t_random = (first * 0x9e3779b97f4a7c15u + ++g_threads * 0xbf58476d1ce4e5b9u) | 1;
  t_random ^= t_random << 13, t_random ^= t_random >> 7, t_random ^= t_random << 17;
  const double share = double(t_random >> 11) * 0x1p-53;
  const uint64_t us = share < kLongShare            ? kLongUs
                      : share < kLongShare + kShare ? (t_random >> 3) % kMostUs
                                                    : 0;
  if (us > 0 && g_left_us > 0) {
    g_left_us -= int64_t(us);
    const timespec time{.tv_sec = time_t(us / 1'000'000), .tv_nsec = long(us % 1'000'000 * 1000)};
    ::syscall(SYS_nanosleep, &time, nullptr);
  }
  errno = error;
  t_is_inside = false;
}

/// The function of that name that this library stands before.
template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

struct Start {
  void* (*run)(void*);
  void* argument;
};
void* run_started(void* start) {
  const Start own = *static_cast<Start*>(start);
  delete static_cast<Start*>(start);
  stall();
  return own.run(own.argument);
}

}  // namespace

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static auto* const real = next<int(pthread_mutex_t*)>("pthread_mutex_lock");
  stall();
  const int result = real(mutex);
  stall();
  return result;
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) {
  static auto* const real = next<int(pthread_mutex_t*)>("pthread_mutex_unlock");
  const int result = real(mutex);
  stall();
  return result;
}
ssize_t read(int fd, void* data, size_t bytes) {
  static auto* const real = next<ssize_t(int, void*, size_t)>("read");
  const ssize_t result = real(fd, data, bytes);
  stall();
  return result;
}
ssize_t write(int fd, const void* data, size_t bytes) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  const ssize_t result = real(fd, data, bytes);
  stall();
  return result;
}
ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  static auto* const real = next<ssize_t(int, const void*, size_t, int)>("send");
  const ssize_t result = real(fd, data, bytes, flags);
  stall();
  return result;
}
int sched_yield() {
  static auto* const real = next<int()>("sched_yield");
  const int result = real();
  stall();
  return result;
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static auto* const real = next<Create>("pthread_create");
  return real(thread, attributes, run_started, new Start{run, argument});
}

}  // extern "C"
