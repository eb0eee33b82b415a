// Matrix products by cuBLASLt. Only product.cpp calls the library.
//
// The same shape gives the same bits. An algorithm is chosen once for each shape, types, epilogue and
// alignment class (all matrices aligned to 16 bytes, or not). The library's heuristic chooses it, always
// queried with the same strides; algorithms that add partial sums in the order of arrival are excluded. All
// objects for a shape are kept, so a second product of that shape allocates nothing.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/cuda/cublaslt.h"
#include "kernels/tensor.h"

namespace trainctl::kernels::cuda {

/// out (+)= op(left) op(right), row-major, then the epilogue. op is a transpose if *_transposed is true.
struct Product {
  const char* op = "";                        ///< name of the op in errors
  Matrix left, right, out;                    ///< left, right: both f32 or both bf16; out: the same, or f32
  bool left_transposed = false, right_transposed = false, accumulate = false;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  /// For epilogues with BIAS in their name: the bias [out.cols] in out's dtype, aligned to 16 bytes. For
  /// BGRADB: output, the sums of the columns of op(left)'; it is overwritten also if the product accumulates.
  const void* bias = nullptr;
  Matrix aux;                                 ///< shape of out; input or second output of the GELU epilogues
};

/// Whether each row of a matrix begins at a multiple of 16 bytes, as the fast algorithms need it.
bool stands_on_16_bytes(const Matrix& m);

class ProductEngine {
 public:
  /// Uses the calling thread's GPU. tf32: f32 operands are rounded to TF32 for the tensor cores. Errors:
  /// Error(kHardware).
  explicit ProductEngine(bool tf32);
  ~ProductEngine();
  ProductEngine(const ProductEngine&) = delete;
  ProductEngine& operator=(const ProductEngine&) = delete;

  /// Enqueues the product. Returns false, and enqueues nothing, if the library has no algorithm for this
  /// epilogue. A plain product without algorithm is Error(kHardware).
  ///   workspace   kProductWorkspaceBytes of device memory that no other stream uses meanwhile
  [[nodiscard]] bool multiply(cudaStream_t stream, const Product& product, void* workspace);

 private:
  struct Plan;
  struct Choice {
    bool found = false;
    cublasLtMatmulAlgo_t algorithm{};
  };
  using ShapeKey = std::array<int64_t, 9>;
  using PlanKey = std::array<int64_t, 13>;   // a shape and its strides

  Plan& plan_of(const Product& product);
  std::unique_ptr<Plan> make_plan(const Product& product, const Choice* choice) const;
  /// The algorithm that the library's heuristic prefers for this product.
  Choice choose(const Product& product, Plan& plan) const;
  bool can_run(const Plan& plan) const;

  const CublasLt& f_;
  const bool tf32_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<ShapeKey, Choice> choices_;
  std::map<PlanKey, std::unique_ptr<Plan>> plans_;
};

}  // namespace trainctl::kernels::cuda
