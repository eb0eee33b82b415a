// RemoteStarts takes the requests of mpirun to start its daemons on other nodes. mpirun calls `trainctl
// remote` as its remote shell (run_remote_shell), which connects here, sends the command and waits for its
// end. One thread; the caller polls.
#pragma once
#include <poll.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/run/wire/stream.h"

namespace trainctl {

class RemoteStarts {
 public:
  /// Listens on `address`, in a folder that only this user can enter: there is no token. Error(kPreflight).
  explicit RemoteStarts(const std::string& address);
  ~RemoteStarts();
  RemoteStarts(const RemoteStarts&) = delete;
  RemoteStarts& operator=(const RemoteStarts&) = delete;

  /// Adds every descriptor to poll for.
  void add_to(std::vector<pollfd>& fds) const;
  struct Request {
    int64_t number;  ///< from 1
    std::string host, command;
  };
  /// Accepts, reads and writes. Returns the requests that have come. Call after every poll.
  std::vector<Request> serve();
  /// Passes the end of what request `message.number` started on to its remote shell, if that is still there.
  void ended(const wire::Message& message);

 private:
  struct Shell {
    int64_t number;
    std::unique_ptr<Stream> stream;
  };
  int listen_fd_ = -1;
  std::vector<Shell> shells_;
  int64_t seen_ = 0;
};

}  // namespace trainctl
