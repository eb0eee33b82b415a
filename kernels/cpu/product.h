// Matrix products by oneDNN. The shape alone determines the panels of a product and their parts, one thread
// multiplies each part, and parts are added in order: so neither the number of threads nor a row stride changes
// the bits.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "kernels/cpu/isa/table.h"
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
  /// One of many in a call, and its rows, or if left_transposed its depth, change from call to call: it is not
  /// cut for the threads, and nothing is kept of such a size.
  bool one_of_many = false;
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
  /// kernels: add partial sums.
  ProductEngine(ThreadPool& pool, const KernelTable& kernels);
  ~ProductEngine();
  void multiply(const ProductArguments& product) { multiply(std::span(&product, 1)); }
  /// As one product after another, whose panels all threads share out at once. Their outs are apart. More than
  /// one: each is one_of_many.
  void multiply(std::span<const ProductArguments> products);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainctl::kernels::cpu
