// Matrix products by cuBLASLt: the only place that knows how it is driven.
//
// The same shape gives the same bits: an algorithm is chosen once per shape, types, epilogue and alignment class (everything on 16
// bytes, or not), by the library's own heuristic asked with the same strides every time, and none that adds partial sums in an order
// of arrival. What is made for a shape stays, so a second product of it allocates nothing.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/cuda/cublaslt.h"
#include "kernels/tensor.h"

namespace trainctl::kernels::cuda {

/// out (+)= op(left) op(right), row-major, op = transpose where asked for; then the epilogue.
struct Product {
  const char* op = "";                        ///< the op in errors
  Matrix left, right, out;                    ///< left, right: both f32 or both bf16; out: the same, or f32
  bool left_transposed = false, right_transposed = false, accumulate = false;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  /// [out.cols] in out's dtype, on 16 bytes, with the epilogues that have BIAS in their name. With BGRADB it is written: the sums of the
  /// columns of op(left)', overwritten also where the product accumulates.
  const void* bias = nullptr;
  Matrix aux;                                 ///< like out; what the GELU epilogues write or read beside it
};

/// Whether each row of a matrix begins on 16 bytes: the alignment class of the fast algorithms.
bool stands_on_16_bytes(const Matrix& m);

class ProductEngine {
 public:
  /// tf32: f32 operands are rounded to TF32 for the tensor cores. Errors: Error(kHardware), of the calling thread's GPU.
  explicit ProductEngine(bool tf32);
  ~ProductEngine();
  ProductEngine(const ProductEngine&) = delete;
  ProductEngine& operator=(const ProductEngine&) = delete;

  /// Enqueues the product. `workspace`: kProductWorkspaceBytes of device memory, free for this stream. False, with nothing enqueued,
  /// when the library has no algorithm for this epilogue here; a plain product that it cannot do is Error(kHardware).
  [[nodiscard]] bool multiply(cudaStream_t stream, const Product& product, void* workspace);

 private:
  struct Plan;
  struct Choice {
    bool found = false;
    cublasLtMatmulAlgo_t algorithm{};
  };
  using ShapeKey = std::array<int64_t, 9>;
  using PlanKey = std::array<int64_t, 13>;   // a shape with its strides

  Plan& plan_of(const Product& product);
  std::unique_ptr<Plan> make_plan(const Product& product, const Choice* choice) const;
  /// The library's first choice for a product like this.
  Choice choose(const Product& product, Plan& plan) const;
  bool can_run(const Plan& plan) const;

  const CublasLt& f_;
  const bool tf32_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<ShapeKey, Choice> choices_;
  std::map<PlanKey, std::unique_ptr<Plan>> plans_;
};

}  // namespace trainctl::kernels::cuda
