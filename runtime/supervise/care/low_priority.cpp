#include "runtime/supervise/care/low_priority.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace trainctl {

void take_lowest_priority() {
  constexpr int kWhoProcess = 1, kBestEffort = 2, kLowest = 7;
  const auto self = pid_t(::syscall(SYS_gettid));
  ::setpriority(PRIO_PROCESS, id_t(self), 19);
  ::syscall(SYS_ioprio_set, kWhoProcess, self, kBestEffort << 13 | kLowest);
}

}  // namespace trainctl
