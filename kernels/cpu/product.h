// Matrix products by oneDNN. The shape alone determines the panels of a product, and one thread multiplies
// each panel, so neither the number of threads nor a row stride changes the bits.
#pragma once
#include <memory>
#include <span>
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

/// The version of oneDNN and the instruction set that it chose on this machine: "oneDNN 2.6.3
/// avx512_core_amx".
std::string product_library();

/// Multiplies matrices and keeps oneDNN's primitive for each shape. Thread-safe; concurrent calls wait for
/// each other. Limits OpenMP to one thread in every thread that it runs on.
///
/// Errors: Error(kHardware) if oneDNN fails.
class ProductEngine {
 public:
  explicit ProductEngine(ThreadPool& pool);
  ~ProductEngine();
  void multiply(const ProductArguments& product) { multiply(std::span(&product, 1)); }
  /// As one product after another, whose panels all threads share out at once. Products with the same `out`
  /// follow one another, and are added there in their order by one thread for each panel; other outs are
  /// apart.
  void multiply(std::span<const ProductArguments> products);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainctl::kernels::cpu
