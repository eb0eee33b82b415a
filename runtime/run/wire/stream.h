// Connections that carry wire::Message: addresses, listeners and buffered non-blocking streams. One thread
// each.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "runtime/run/wire/node_wire.h"

namespace trainctl {

/// An address is "unix:PATH" or "HOST:PORT".
/// A non-blocking listener on it; port 0 takes a free one. Error(kPreflight) with one sentence.
int listen_on(const std::string& address);
/// "10.77.0.10:40123" or "unix:PATH", as others reach it.
std::string address_of(int listener);
/// Connects within `limit_s` and returns a non-blocking descriptor. Error(kLauncher).
int connect_to(const std::string& address, double limit_s);
/// The next connection, non-blocking, or -1.
int accept_from(int listener);

/// The own end of a connection: "10.77.0.11", "10.77.0.0/24", "eth0"; all "" for a local one.
struct LocalEnd {
  std::string address, network, interface;
};
LocalEnd local_end_of(int fd);

/// 32 hex digits from the kernel's random numbers.
std::string random_token();
/// Compares without telling by the time taken how much agreed.
bool same_token(const std::string& a, const std::string& b);

class Stream {
 public:
  /// Owns `fd`. A peer that does not read lets at most `most_bytes` wait here; then the stream ends.
  explicit Stream(int fd, size_t most_bytes = 512u << 20);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  /// Why it ended; "" while it is open.
  const std::string& problem() const { return problem_; }
  bool wants_write() const { return !out_.empty(); }
  size_t waiting_bytes() const { return out_.size() - sent_; }
  /// In all so far: a long message under way is a sign of life, too.
  uint64_t received_bytes() const { return received_; }
  /// Takes a message to be sent; whatever fits is sent at once.
  void send(const wire::Message& message);
  void flush();
  /// What has arrived. After an end or nonsense: what came before, then open() is false.
  std::vector<wire::Message> read();
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
