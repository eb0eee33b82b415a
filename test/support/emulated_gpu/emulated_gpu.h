// The emulated GPU as a test sees it: how many devices there are, in which order work runs, and what fails.
#pragma once
#include <cstddef>
#include <cstdint>

#include "test/support/emulated_gpu/execution.h"

namespace trainctl::emulated_gpu {

struct Options {
  OrderKind thread_order = OrderKind::forward;   ///< of threads, warps and blocks between barriers
  uint64_t seed = 1;
};
/// Begins anew with these options. No CUDA object may be alive.
void reset(const Options& options = {});

}  // namespace trainctl::emulated_gpu
