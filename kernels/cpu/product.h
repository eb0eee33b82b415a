// Matrix products by oneDNN, cut into panels by shape alone and each panel multiplied by one thread, so that neither the
// number of threads nor a row stride changes a bit.
#pragma once
#include <memory>
#include <string>

#include "kernels/cpu/thread_pool.h"
#include "kernels/tensor.h"

namespace trainctl::kernels::cpu {

/// out [M, N] (+)= left [M, K] right [K, N] + bias [N].   K > 0
struct ProductArguments {
  Matrix left;   ///< [M, K], or [K, M] when left_transposed; f32 or bf16
  Matrix right;  ///< [K, N], or [N, K] when right_transposed; same dtype
  Matrix out;    ///< f32 or the dtype of left
  const float* bias = nullptr;
  bool left_transposed = false;
  bool right_transposed = false;
  bool accumulate = false;  ///< only with f32 out
};

/// oneDNN, its version and the instruction set that it chose for this machine: "oneDNN 2.6.3 avx512_core_amx".
std::string product_library();

/// Multiplies; remembers what oneDNN built for each shape. Calls from several threads wait for each other. Limits OpenMP
/// to one thread in every thread that it runs on.
///
/// Errors: Error(kHardware) when oneDNN fails.
class ProductEngine {
 public:
  explicit ProductEngine(ThreadPool& pool);
  ~ProductEngine();
  void multiply(const ProductArguments& arguments);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainctl::kernels::cpu
