#include "cmd/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace trainctl::cmd {
namespace {

ssize_t write_to_stderr(void*, const char* text, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = ::write(STDERR_FILENO, text + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += size_t(n);
  }
  return ssize_t(size);
}

}  // namespace

void keep_standard_streams() {
  // The lowest free number is taken, so each is the one asked for.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      (void)::open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  cookie_io_functions_t functions{};
  functions.write = write_to_stderr;
  std::FILE* const lossy = ::fopencookie(nullptr, "w", functions);
  if (lossy == nullptr) return;
  ::setvbuf(lossy, nullptr, _IONBF, 0);
  stderr = lossy;
}

bool has_no_reader(int fd) {
  pollfd state{.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&state, 1, 0) == 1 && (state.revents & POLLERR) != 0;
}

}  // namespace trainctl::cmd
