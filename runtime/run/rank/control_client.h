// The rank's end of the control channel, over a socket.
#pragma once
#include <memory>
#include <string>

#include "runtime/train/control/control.h"

namespace trainctl {

/// Connects to the agent of this node at `address` ("unix:PATH" or "HOST:PORT") with its token. A thread of
/// the returned object sends heartbeats every `heartbeat_s`. Throws Error(kLauncher).
///
/// Exits the process if the connection is lost, or if no message of the supervisor arrives for
/// `answer_timeout_s` while a save waits for its answer: then no agent or supervisor can end this process.
///   given_times  of the hook kTimesAtVariable; "": the rank reports its own
std::unique_ptr<Control> connect_control(const std::string& address, const std::string& token, int rank,
                                         double heartbeat_s, double answer_timeout_s,
                                         const std::string& given_times = "");

}  // namespace trainctl
