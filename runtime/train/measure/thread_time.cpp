#include "runtime/train/measure/thread_time.h"

#include <ctime>

namespace trainctl {

double thread_cpu_s() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

}  // namespace trainctl
