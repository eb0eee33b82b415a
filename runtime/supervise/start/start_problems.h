// What a launch would refuse because of what surrounds it: hosts, credentials, this program's devices.
#pragma once
#include <vector>

#include "ckpt/places.h"
#include "runtime/base/file_system.h"
#include "runtime/spec/parse.h"

namespace trainctl {

struct StartProblem {
  Diagnostic diagnostic;
  ErrorCode code;  ///< of a command that finds it
};

/// E0706 (hosts), E0606 (credentials of the store), E0707 (a GPU without CUDA). Starts nothing; asks the
/// resolver of names alone.
std::vector<StartProblem> start_problems(const ParsedJob& job, FileSystem& fs,
                                         const ckpt::Environment& environment = ckpt::process_environment);

}  // namespace trainctl
