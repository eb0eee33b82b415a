// The functions of cuBLASLt that we use. The library has half a gigabyte and comes with the CUDA toolkit, not
// with trainctl, so it is loaded when the first backend is made. Versions 12 and 13 both work, because the
// library itself makes all its objects.
#pragma once
#include <cublasLt.h>

#include <string>

namespace trainctl::kernels::cuda {

struct CublasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) algo_check = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  std::string path;      ///< resolved path of the loaded library
  std::string version;   ///< "13.1.0"
};

/// Loads the library on the first call. Error(kPreflight), one sentence with all places that were searched,
/// if it is missing.
const CublasLt& cublaslt();

}  // namespace trainctl::kernels::cuda
