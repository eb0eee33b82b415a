// ForkServer starts processes that run a function of this program. It forks one server process early, while
// the program has one thread and little memory, and the server forks the others. So a fork stays cheap and
// safe when the owner has grown and has threads.
//
//   owner --fork, once--> fork server --fork, each start()--> child: main(fd), then it exits
//
// Use it for code that may crash, hang or corrupt its memory. The owner communicates with a child over a
// socket.
#pragma once
#include <functional>

namespace trainctl {

class ForkServer {
 public:
  /// Forks the server. `main` runs in each child with the child's end of the socket, and should return when
  /// the connection ends. Call it early, before threads if that is possible: the server holds a copy of the
  /// owner's memory. Children share only stdin, stdout and stderr with the owner; terminal and scheduler
  /// signals do not reach them. Their environment is hidden, so that a search by mark does not find them.
  /// Error(kLauncher).
  explicit ForkServer(std::function<void(int fd)> main);
  /// Ends the fork server and all children.
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  struct Child {
    int socket = -1;   ///< the owner's end, a stream
    int process = -1;  ///< pidfd: readable when the child has ended
  };
  /// Starts a child. The caller owns both descriptors. Error(kLauncher).
  Child start();

 private:
  void end();
  int socket_ = -1, process_ = -1;
};

}  // namespace trainctl
