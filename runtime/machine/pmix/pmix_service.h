// The process that runs libpmix for one epoch: it starts libpmix, answers its callbacks and ends with its
// connection. It is a separate process because libpmix 4.2 corrupts its state when a rank is killed while it
// connects: libpmix then frees the rank's record twice and closes descriptors that may belong to another
// rank.
#pragma once

namespace trainctl {

/// Serves the owner at the other end of `socket` until the connection ends. Call it only in a process made
/// for it: it changes the environment and signal handling, and does not stop libpmix.
void serve_pmix(int socket);

}  // namespace trainctl
