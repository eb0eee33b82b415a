// cuBLASLt through the functions used here. The library is half a gigabyte and comes with the CUDA toolkit, not with trainctl: it is
// loaded when the first backend is made, and versions 12 and 13 serve alike, because every object is made by the library itself.
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
  std::string path;      ///< where it was found
  std::string version;   ///< "13.1.0"
};

/// Loads the library on the first call. Error(kPreflight) in one sentence, with every place tried, when it is not there.
const CublasLt& cublaslt();

}  // namespace trainctl::kernels::cuda
