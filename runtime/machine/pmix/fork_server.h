// Starts processes that run a function of this program, from a process that was forked early: with one thread
// and little memory, so that a fork is cheap and safe however large and threaded the owner has become.
//
//   owner --fork, once--> fork server --fork, each start()--> child: main(fd), then it exits
//
// For code that may crash, hang or corrupt its memory: the owner talks to it over a socket and kills it.
#pragma once
#include <functional>

namespace trainctl {

class ForkServer {
 public:
  /// `main` runs in each child with its end of the socket, and should return at the end of the connection.
  /// Construct it before the first thread starts. Children share nothing with the owner but stdin, stdout and
  /// stderr; terminal and scheduler signals do not reach them. Their variables are hidden, so that no other
  /// process takes them for the owner. Error(kLauncher).
  explicit ForkServer(std::function<void(int fd)> main);
  /// Ends the fork server and with it every child.
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  struct Child {
    int socket = -1;   ///< the owner's end, a stream
    int process = -1;  ///< pidfd: readable when the child has ended
  };
  /// Both descriptors are the caller's. Error(kLauncher).
  Child start();

 private:
  void end();
  int socket_ = -1, process_ = -1;
};

}  // namespace trainctl
