// The device of a rank that a test lets compute wrongly (runtime/run/wire/flip_at.h).
#pragma once
#include <memory>

#include "kernels/backend.h"
#include "runtime/run/wire/flip_at.h"

namespace trainctl {

/// `device`, whose results have a bit flipped where `when` matches what this process does. Error(kUsage) if
/// the host may not write its memory.
std::unique_ptr<kernels::Backend> make_flipping_device(std::unique_ptr<kernels::Backend> device,
                                                       const FlipAt& when);

}  // namespace trainctl
