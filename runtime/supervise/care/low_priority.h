// The priority of threads that work behind training.
#pragma once

namespace trainctl {

/// The calling thread yields cores and disk to all others. Where the system refuses that, nothing changes.
void take_lowest_priority();

}  // namespace trainctl
