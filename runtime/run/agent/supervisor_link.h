// SupervisorLink is an agent's connection to the supervisor of its run, which it dials. The supervisor may
// change: its address is read anew for each dial. One thread; the caller polls.
#pragma once
#include <poll.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/file_worker.h"
#include "runtime/run/wire/stream.h"

namespace trainctl {

class SupervisorLink {
 public:
  /// `connect`: the address to dial; "": the one in supervisor.json.
  SupervisorLink(std::string run_directory, std::string connect, FileWorker& files);

  /// Connects to the supervisor in supervisor.json. Error: there is none, or it or the file system does not
  /// answer in time.
  void dial();
  /// Closes the connection.
  void drop() { stream_.reset(); }
  bool is_up() const { return stream_ != nullptr; }
  /// Of the supervisor that was dialed last.
  const std::string& token() const { return token_; }
  /// This end of the connection, which must be up.
  LocalEnd end() const { return local_end_of(stream_->fd()); }

  /// Adds the descriptor to poll for.
  void add_to(std::vector<pollfd>& fds) const;
  /// Whether so much waits for a supervisor that reads slowly that processes should wait with their output.
  bool is_full() const;
  /// Does nothing without a connection.
  void send(const wire::Message& message);

  struct News {
    std::vector<wire::Message> messages;
    bool is_heard = false;  ///< bytes have come, also of an incomplete message
  };
  /// Sends what waits, and reads. Nothing comes without a connection.
  News read();
  /// Whether there is a connection that has ended; problem() says why. The caller drops it.
  bool has_ended() const { return stream_ && !stream_->open(); }
  const std::string& problem() const { return stream_->problem(); }

 private:
  const std::string run_directory_, connect_;
  FileWorker& files_;
  /// What supervisor.json says, as it was asked for last: an answer may come later than its dial.
  std::future<std::string> file_;
  std::string token_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace trainctl
