#include "kernels/cuda/cublaslt.h"
#include "kernels/library_search.h"
#include "runtime/base/error.h"

namespace trainctl::kernels::cuda {

namespace {

template <typename Function>
void find(const LoadedLibrary& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library.find(name));
  if (function == nullptr)
    throw Error(ErrorCode::kPreflight,
                fmt::format("{} has no function {}; it is no cuBLASLt of CUDA 12 or 13, so put another one first in "
                            "TRAINCTL_CUDA_LIBRARIES",
                            library.path, name));
}

/// 130100 as "13.1.0".
std::string version_text(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

CublasLt load() {
  const LoadedLibrary library = load_cublaslt();
  if (!library) throw Error(ErrorCode::kPreflight, library.problem);
  CublasLt f;
  find(library, "cublasLtCreate", f.create);
  find(library, "cublasLtDestroy", f.destroy);
  find(library, "cublasLtGetStatusName", f.status_name);
  find(library, "cublasLtMatrixLayoutCreate", f.layout_create);
  find(library, "cublasLtMatrixLayoutDestroy", f.layout_destroy);
  find(library, "cublasLtMatmulDescCreate", f.desc_create);
  find(library, "cublasLtMatmulDescDestroy", f.desc_destroy);
  find(library, "cublasLtMatmulDescSetAttribute", f.desc_set);
  find(library, "cublasLtMatmulPreferenceCreate", f.preference_create);
  find(library, "cublasLtMatmulPreferenceDestroy", f.preference_destroy);
  find(library, "cublasLtMatmulPreferenceSetAttribute", f.preference_set);
  find(library, "cublasLtMatmulAlgoGetHeuristic", f.heuristic);
  find(library, "cublasLtMatmulAlgoCheck", f.algo_check);
  find(library, "cublasLtMatmul", f.matmul);
  f.path = library.path;
  decltype(&cublasLtGetVersion) version = nullptr;
  find(library, "cublasLtGetVersion", version);
  f.version = version_text(version());
  return f;
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt functions = load();   // after a failure the next call tries again
  return functions;
}

}  // namespace trainctl::kernels::cuda
