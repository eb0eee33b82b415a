// Connections that carry wire::Message: addresses, listeners and buffered non-blocking streams. One thread
// per object.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "runtime/run/wire/node_wire.h"

namespace trainctl {

// An address is "unix:PATH" or "HOST:PORT". The caller owns each returned descriptor.

/// Returns a non-blocking listener on `address`; port 0 takes a free port. Error(kPreflight) with one
/// sentence.
int listen_on(const std::string& address);
/// The address of a listener: "10.77.0.10:40123" or "unix:PATH".
std::string address_of(int listener);
/// Connects within `limit_s` and returns a non-blocking descriptor. Error(kLauncher).
int connect_to(const std::string& address, double limit_s);
/// Accepts the next connection and returns a non-blocking descriptor; -1 if none waits.
int accept_from(int listener);

/// This process's end of a connection: "10.77.0.11", "10.77.0.0/24", "eth0"; all "" for a Unix socket.
struct LocalEnd {
  std::string address, network, interface;
};
LocalEnd local_end_of(int fd);

/// 32 hex digits from the kernel's random numbers.
std::string random_token();
/// Compares two tokens. For equal lengths the time does not depend on their contents.
bool same_token(const std::string& a, const std::string& b);

class Stream {
 public:
  /// Owns `fd`. Closes the stream when more than `most_bytes` wait for a peer that does not read.
  explicit Stream(int fd, size_t most_bytes = 512u << 20);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  /// Why the stream was closed; "" while it is open.
  const std::string& problem() const { return problem_; }
  bool wants_write() const { return !out_.empty(); }
  /// Bytes that were not sent yet.
  size_t waiting_bytes() const { return out_.size() - sent_; }
  /// All bytes received so far, also of an incomplete message. The count shows that the peer lives.
  uint64_t received_bytes() const { return received_; }
  /// Appends a message to the send buffer and sends as much as the socket takes.
  void send(const wire::Message& message);
  void flush();
  /// The messages that have arrived. If the peer closes or sends an invalid message, returns the messages
  /// before it, and open() is false.
  std::vector<wire::Message> read();
  /// See wire::MessageReader::greeted.
  void greeted() { reader_.greeted(); }
  void close(const std::string& why);

 private:
  void forget_sent();
  int fd_;
  size_t most_bytes_, sent_ = 0;
  uint64_t received_ = 0;
  wire::MessageReader reader_;
  std::string out_, problem_;
};

}  // namespace trainctl
