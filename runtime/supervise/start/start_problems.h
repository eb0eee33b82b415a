// What a launch would refuse for what surrounds it: hosts, files, folders, credentials, memory, devices.
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

/// elsewhere: the ranks run on nodes that a batch system chooses, which may have what this machine has not.
/// now: a launch follows, which looks itself for memory and GPUs: it first frees what dead runs left, may
/// attach to living ranks, and may go on in a fork, which a CUDA that was initialised before does not
/// survive.
enum class StartsAt { here, now, elsewhere };

/// E0706 (hosts), E0606 (credentials of the store), E0707 (a GPU without CUDA), E0510 (the content of token
/// files), but for `elsewhere` E0607 (folders that cannot be written), E0708 (mpirun) and
/// E0712 (alerts), and for `here` E0402 (memory, GPUs). Starts nothing and makes nothing; asks the resolver of
/// names.
std::vector<StartProblem> start_problems(const ParsedJob& job, FileSystem& fs, StartsAt place,
                                         const ckpt::Environment& environment = ckpt::process_environment);

}  // namespace trainctl
