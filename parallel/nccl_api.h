// NCCL through the functions used here. The library comes with a CUDA toolkit, a distribution or a Python package, not with trainctl:
// it is loaded when a job first asks for it. Any 2.x since 2.18 will do: what is used here has not changed since.
#pragma once
#include <nccl.h>

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
  std::string path;   ///< where it was found
};

/// Loads the library on the first call. Error(kPreflight) in one sentence when it is not there or of a version that will not do.
const NcclApi& nccl();

/// Why this version will not do, in one sentence.
Problem nccl_version_problem(int version, const std::string& path);

}  // namespace trainctl::parallel
