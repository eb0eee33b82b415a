// How the reading of a checkpoint ends when it is damaged, incomplete or of another state.
#pragma once
#include <string>

#include "runtime/base/error.h"

namespace trainctl::ckpt {

/// Throws Error(kCheckpoint).
[[noreturn]] inline void fail(const std::string& message) { throw Error(ErrorCode::kCheckpoint, message); }

}  // namespace trainctl::ckpt
