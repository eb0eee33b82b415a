// The rank's end of the control channel over a socket.
#pragma once
#include <memory>
#include <string>

#include "runtime/train/control.h"

namespace trainctl {

/// Connects to the agent of this node ("unix:PATH" or "HOST:PORT") with its token. Sends heartbeats from its
/// own thread. Throws Error(kLauncher). If the connection is lost, or during a save the supervisor says
/// nothing for answer_timeout_s, the process ends itself (the supervisor is gone or stopped and cannot end
/// this process).
std::unique_ptr<Control> connect_control(const std::string& address, const std::string& token, int rank,
                                         double heartbeat_s, double answer_timeout_s);

}  // namespace trainctl
