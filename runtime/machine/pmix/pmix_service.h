// The process that is the PMIx server of one epoch: it starts libpmix, answers its callbacks and lives as
// long as its connection. A process of its own, because libpmix 4.2 does not survive ranks that are killed
// while they connect: it frees the rank's record twice and closes descriptors that may be another rank's.
#pragma once

namespace trainctl {

/// Serves the owner at the other end of `socket` until it is gone. In a process made for it: changes the
/// environment and signals, and leaves libpmix running.
void serve_pmix(int socket);

}  // namespace trainctl
