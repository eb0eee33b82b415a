#include <string_view>

#include "kernels/library_search.h"
#include "parallel/nccl_api.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

template <typename Function>
void find(const kernels::LoadedLibrary& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library.find(name));
  if (function == nullptr)
    throw Error(ErrorCode::kPreflight, fmt::format("{} has no function {}; it is no NCCL 2.18 or later, so put another one first in "
                                                   "TRAINCTL_CUDA_LIBRARIES",
                                                   library.path, name));
}

NcclApi load() {
  static constexpr std::string_view kFiles[] = {"libnccl.so.2"};
  static constexpr std::string_view kPackages[] = {"nvidia/nccl/lib"};
  const kernels::LoadedLibrary library = kernels::load_library("NCCL, by which GPUs exchange data,", kFiles, kPackages);
  if (!library) throw Error(ErrorCode::kPreflight, library.problem);
  NcclApi f;
  f.path = library.path;
  decltype(&ncclGetVersion) get_version = nullptr;
  find(library, "ncclGetVersion", get_version);
  get_version(&f.version);
  if (const Problem problem = nccl_version_problem(f.version, f.path); problem.exists())
    throw Error(ErrorCode::kPreflight, problem.text());
  find(library, "ncclGetUniqueId", f.get_unique_id);
  find(library, "ncclCommInitRankConfig", f.comm_init_rank_config);
  find(library, "ncclCommGetAsyncError", f.comm_get_async_error);
  find(library, "ncclCommAbort", f.comm_abort);
  find(library, "ncclGroupStart", f.group_start);
  find(library, "ncclGroupEnd", f.group_end);
  find(library, "ncclSend", f.send);
  find(library, "ncclRecv", f.receive);
  find(library, "ncclReduce", f.reduce);
  find(library, "ncclGetErrorString", f.error_string);
  find(library, "ncclGetLastError", f.last_error);
  return f;
}

}  // namespace

const NcclApi& nccl() {
  static const NcclApi functions = load();   // a failure is tried again by the next call
  return functions;
}

std::chrono::steady_clock::time_point nccl_now() { return std::chrono::steady_clock::now(); }

}  // namespace trainctl::parallel
