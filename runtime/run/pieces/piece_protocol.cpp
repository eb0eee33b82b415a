#include "runtime/run/pieces/piece_protocol.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "runtime/base/error.h"

namespace trainctl::pieces {
namespace {

[[noreturn]] void fail(const std::string& why) { throw Error(ErrorCode::kIo, why); }

void await(int fd, short events, double limit_s) {
  pollfd wait{.fd = fd, .events = events, .revents = 0};
  const int ready = ::poll(&wait, 1, int(std::ceil(limit_s * 1000)));
  if (ready == 0) fail(fmt::format("it has not answered for {:.1f} s", limit_s));
}

/// Calls transfer(offset) until `size` bytes are transferred; it returns what send and recv return.
template <typename Transfer>
void transfer_all(int fd, short events, size_t size, double limit_s, Transfer transfer) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = transfer(done);
    if (n > 0)
      done += size_t(n);
    else if (n == 0)
      fail("it has closed the connection");
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      await(fd, events, limit_s);
    else if (errno != EINTR)
      fail(std::strerror(errno));
  }
}

}  // namespace

void send_all(int fd, std::span<const std::byte> data, double limit_s) {
  transfer_all(fd, POLLOUT, data.size(), limit_s,
               [&](size_t done) { return ::send(fd, data.data() + done, data.size() - done, MSG_NOSIGNAL); });
}

void receive_all(int fd, std::span<std::byte> data, double limit_s) {
  transfer_all(fd, POLLIN, data.size(), limit_s,
               [&](size_t done) { return ::recv(fd, data.data() + done, data.size() - done, 0); });
}

}  // namespace trainctl::pieces
