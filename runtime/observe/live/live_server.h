// LiveServer answers HTTP requests for the live page of a run: / (the page), /api/report and /api/status
// (JSON), /metrics (Prometheus). It only reads.
#pragma once
#include <memory>
#include <string>

#include "runtime/observe/live/live_content.h"
#include "runtime/observe/live/live_door.h"

namespace trainctl::live {

class LiveServer {
 public:
  /// Takes the address. `token`: "" lets everybody read that can reach a loopback address.
  /// Error(kPreflight), one sentence, if the address cannot be taken or this build has no HTTP server.
  /// `content` must outlive this.
  LiveServer(LiveContent& content, LiveAddress address, std::string token);
  ~LiveServer();
  LiveServer(const LiveServer&) = delete;
  LiveServer& operator=(const LiveServer&) = delete;
  /// The address with the port that was taken (port 0: any).
  const LiveAddress& address() const;
  /// Answers until stop().
  void run();
  /// Any thread. run() returns when the requests under way are answered.
  void stop();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace trainctl::live
