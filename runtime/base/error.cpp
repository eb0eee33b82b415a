#include "runtime/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace trainctl {

int exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInternal: return 1;
    case ErrorCode::kUsage: return 2;
    case ErrorCode::kSpec: return 3;
    case ErrorCode::kPlan: return 4;
    case ErrorCode::kPreflight:
    case ErrorCode::kIo: return 5;
    case ErrorCode::kData: return 6;
    case ErrorCode::kCheckpoint: return 7;
    case ErrorCode::kDiverged: return 8;
    case ErrorCode::kHang: return 9;
    case ErrorCode::kWorker:
    case ErrorCode::kPeerLost: return 10;
    case ErrorCode::kHardware:
    case ErrorCode::kDevice: return 11;
    case ErrorCode::kLauncher: return 12;
    case ErrorCode::kStopped: return 75;
  }
  return 1;
}

const char* name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInternal: return "internal error";
    case ErrorCode::kUsage: return "usage";
    case ErrorCode::kSpec: return "job spec";
    case ErrorCode::kPlan: return "plan";
    case ErrorCode::kPreflight: return "preflight";
    case ErrorCode::kData: return "data";
    case ErrorCode::kCheckpoint: return "checkpoint";
    case ErrorCode::kDiverged: return "diverged";
    case ErrorCode::kHang: return "hang";
    case ErrorCode::kWorker: return "worker";
    case ErrorCode::kPeerLost: return "peer lost";
    case ErrorCode::kIo: return "file operation";
    case ErrorCode::kHardware: return "hardware";
    case ErrorCode::kDevice: return "device";
    case ErrorCode::kLauncher: return "launcher";
    case ErrorCode::kStopped: return "stopped";
  }
  return "?";
}

void invariant_failed(const char* file, int line, const char* condition, const std::string& detail) {
  std::fprintf(stderr, "trainctl: internal error at %s:%d: %s does not hold%s%s\n", file, line,
               condition, detail.empty() ? "" : ": ", detail.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace trainctl
