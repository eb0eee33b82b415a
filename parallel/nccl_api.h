// The functions of NCCL that we use. The library comes with a CUDA toolkit, a distribution or a Python
// package, not with trainctl, and is loaded at first use. All versions 2.x from 2.18 on work, because these
// functions have not changed since.
#pragma once
#include <nccl.h>

#include <chrono>
#include <string>

#include "runtime/base/problem.h"

namespace trainctl::parallel {

struct NcclApi {
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  int version = 0;    ///< e.g. 22809
  std::string path;   ///< resolved path of the loaded library
};

/// Loads the library on the first call. Error(kPreflight), one sentence, if it is missing or has an
/// unsupported version.
const NcclApi& nccl();

/// The time by which deadlines of exchanges over NCCL count.
std::chrono::steady_clock::time_point nccl_now();

/// Why this version of NCCL is not supported, one sentence; none if it is supported. `path`: for the message.
Problem nccl_version_problem(int version, const std::string& path);

}  // namespace trainctl::parallel
