// Error: the one exception type. It means that a device, a disk or a peer failed, or that the input is wrong.
//
// A broken invariant of our own is ENSURE (runtime/base/ensure.h). Mistakes in a job spec are collected as
// diagnostics (runtime/spec).
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>

#include "runtime/base/ensure.h"

namespace trainctl {

/// What failed; each code has one exit status (the table in `trainctl help exit-codes`).
enum class ErrorCode {
  kInternal,    // 1
  kUsage,       // 2
  kSpec,        // 3
  kPlan,        // 4
  kPreflight,   // 5
  kData,        // 6
  kCheckpoint,  // 7
  kDiverged,    // 8
  kHang,        // 9
  kWorker,      // 10: a rank died for a reason that no other code names
  kPeerLost,    // 10: this rank waited for a peer past the deadline; an effect, never the first cause
  kHardware,    // 11: an operation of a device failed, which may be the program's fault
  kLauncher,    // 12
  kIo,          // 5: a file operation failed
  kStopped,     // 75: stopped on request, checkpoint saved
  kDevice,      // 11: a device says itself that it is broken
};

int exit_status(ErrorCode code);
const char* name_of(ErrorCode code);

/// A failure with its code. A rank's or a command's main catches it and exits with exit_status(code()); a
/// caller that can continue without the result catches it earlier.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace trainctl
