#include "runtime/run/agent/remote_starts.h"

#include <unistd.h>

namespace trainctl {

RemoteStarts::RemoteStarts(const std::string& address) : listen_fd_(listen_on(address)) {}

RemoteStarts::~RemoteStarts() { ::close(listen_fd_); }

void RemoteStarts::add_to(std::vector<pollfd>& fds) const {
  fds.push_back({.fd = listen_fd_, .events = POLLIN, .revents = 0});
  for (const Shell& shell : shells_) {
    const short events = shell.stream->wants_write() ? POLLIN | POLLOUT : POLLIN;
    fds.push_back({.fd = shell.stream->fd(), .events = events, .revents = 0});
  }
}

std::vector<RemoteStarts::Request> RemoteStarts::serve() {
  for (int fd; (fd = accept_from(listen_fd_)) >= 0;) {
    shells_.push_back({++seen_, std::make_unique<Stream>(fd)});
    // The command line of a daemon may be long.
    shells_.back().stream->greeted();
  }
  std::vector<Request> requests;
  for (Shell& shell : shells_) {
    shell.stream->flush();
    for (wire::Message& message : shell.stream->read())
      if (message.kind == wire::Kind::remote)
        requests.push_back({shell.number, std::move(message.text), std::move(message.payload)});
  }
  std::erase_if(shells_, [](const Shell& shell) { return !shell.stream->open(); });
  return requests;
}

void RemoteStarts::ended(const wire::Message& message) {
  for (Shell& shell : shells_)
    if (shell.number == message.number) shell.stream->send(message);
}

}  // namespace trainctl
