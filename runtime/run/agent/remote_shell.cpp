#include <poll.h>
#include <sys/wait.h>

#include <cstdlib>

#include "runtime/run/agent/agent.h"
#include "runtime/run/wire/environment.h"
#include "runtime/run/wire/stream.h"

namespace trainctl {

using wire::Kind;
using wire::Message;

int run_remote_shell(const std::string& host, const std::string& command) {
  const char* address = std::getenv(kRemoteVariable);
  Stream stream(connect_to(address ? address : "", kDialLimitS));
  stream.send({.kind = Kind::remote, .text = host, .payload = command});
  while (stream.open()) {
    pollfd wait{
        .fd = stream.fd(), .events = short(POLLIN | (stream.wants_write() ? POLLOUT : 0)), .revents = 0};
    ::poll(&wait, 1, -1);
    stream.flush();
    for (const Message& message : stream.read()) {
      if (message.kind != Kind::remote_ended) continue;
      const int status = std::atoi(message.text.c_str());
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
  }
  return 255;
}

}  // namespace trainctl
