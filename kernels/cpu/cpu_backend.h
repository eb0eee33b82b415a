// The fast CPU backend: vectorised kernels for the best instruction set of the machine (isa/), products by
// oneDNN, and a pool of threads that share the tasks of each op. The ops are members of one class in several
// files of this folder.
#pragma once
#include "kernels/backend.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/host_memory.h"
#include "kernels/plain_weight.h"

namespace trainctl::kernels::cpu {

enum class InstructionSet { v2, v3, v4 };  ///< x86-64-v2 (SSE4.2), v3 (AVX2), v4 (AVX-512)

bool supports(InstructionSet isa);
const KernelTable& table_of(InstructionSet isa);
/// The numerics of a backend with that instruction set: its kernels, and oneDNN, which chooses its own
/// instruction set.
std::string numerics_of(InstructionSet isa);

/// Part of a matrix; an empty matrix stays empty.
inline Matrix part(const Matrix& m, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  return m ? m.row_range(row, rows).columns(col, cols) : m;
}

class CpuBackend final : public HostDevice {
 public:
  CpuBackend(int threads, InstructionSet isa);

  std::string name() const override { return "cpu"; }
  std::string numerics() const override { return numerics_of(isa_); }
  std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return PlainWeight::make(n, k, dtype);
  }
  void run(Stream&, const Op& op) override {
    std::visit([&](const auto& o) { o.check(), compute(o); }, op);
  }

 private:
  void compute(const FillZero& op);
  void compute(const Copy& op);
  void compute(const Add& op);
  void compute(const TreeSum& op);
  void compute(const AddRounded& op);
  void compute(const ScaledAdd& op);
  void compute(const EmbeddingForward& op);
  void compute(const EmbeddingBackward& op);
  void compute(const AddPosition& op);
  void compute(const AddPositionBackward& op);
  void compute(const NormForward& op);
  void compute(const NormBackward& op);
  void compute(const NormApply& op);
  void compute(const GroupNormSums& op);
  void compute(const GroupNormApply& op);
  void compute(const GroupNormDots& op);
  void compute(const GroupNormBackward& op);
  void compute(const Pack& op);
  void compute(const LinearForward& op);
  void compute(const LinearBackwardInput& op);
  void compute(const LinearBackwardWeight& op);
  void compute(const ActivationForward& op);
  void compute(const ActivationBackward& op);
  void compute(const GatedForward& op);
  void compute(const GatedBackward& op);
  void compute(const SigmoidGateForward& op);
  void compute(const SigmoidGateBackward& op);
  void compute(const Rope& op);
  void compute(const AttentionForward& op);
  void compute(const AttentionBackward& op);
  void compute(const FormLogits& op);
  void compute(const HeadScalarBackward& op);
  void compute(const CrossEntropyStats& op);
  void compute(const CrossEntropyCombine& op);
  void compute(const CrossEntropyBackward& op);
  void compute(const AdamW& op);
  void compute(const Lion& op);
  void compute(const Sgd& op);
  void compute(const Balance& op);
  void compute(const SumSquares& op);
  void compute(const Sum& op);
  void compute(const Digest& op);
  void compute(const Route& op);
  void compute(const RouteBackward& op);
  void compute(const AddCounts& op);
  void compute(const CountMargins& op);
  void compute(const SortByExpert& op);
  void compute(const TokensOfRanks& op);
  void compute(const GatherRows& op);
  void compute(const CombineRows& op);
  void compute(const ScaleRows& op);
  void compute(const ScaleRowsBackward& op);
  void compute(const GateRows& op);
  void compute(const GateRowsBackward& op);
  void compute(const AddExpertBias& op);
  void compute(const ExpertBiasBackward& op);
  void compute(const ExpertBiasWeights& op);
  void compute(const GroupedForward& op);
  void compute(const GroupedBackwardInput& op);
  void compute(const GroupedBackwardWeight& op);
  void compute(const ExpandKeys& op);
  void compute(const ExpandKeysBackward& op);
  void compute(const Quantize& op);
  void compute(const QuantizeWeight& op);
  void compute(const QuantizeFp4& op);
  template <typename O>
    requires requires(const O& op) { op.product(); }
  void compute(const O& op) {   // of two ops, not fused
    compute(op.product());
    compute(op.activation());
  }

  /// Calls kernel(tile) for tiles of the boxes, on the pool. Only optimizer.cpp defines it.
  template <typename Kernel>
  void update(std::span<const UpdateBox> boxes, uint32_t number, Kernel kernel);

  /// Only moe.cpp defines it.
  template <typename Body>
  void over_experts(const Matrix& offsets, Body body);

  /// Calls body(first row, rows) for blocks of `block` rows, on the pool.
  template <typename Body>
  void over_rows(int64_t rows, int64_t block, Body body) {
    pool_.run((rows + block - 1) / block, [&](int64_t task, int) {
      body(task * block, std::min(block, rows - task * block));
    });
  }

  /// Calls kernel(tile) for tiles of some tens of thousands of elements, on the pool. All matrices of the op
  /// have one shape.
  template <typename O>
  void over_elements(O op, void (*kernel)(const O&)) {
    bool contiguous = true;
    Matrix whole;
    op.arguments([&](const Matrix& m) { contiguous = contiguous && m.contiguous(); });
    op.arguments([&](Matrix& m) {
      if (contiguous) m = {m.data, m.dtype, 1, m.count(), m.count()};
      whole = m;
    });
    const int64_t cols = std::max<int64_t>(1, std::min<int64_t>(whole.cols, kTileCols));
    const int64_t rows = std::max<int64_t>(1, kTileElements / cols);
    const int64_t across = (whole.cols + cols - 1) / cols, down = (whole.rows + rows - 1) / rows;
    pool_.run(across * down, [&](int64_t task, int) {
      const int64_t r = task / across * rows, c = task % across * cols;
      O tile = op;
      tile.arguments([&](Matrix& m) {
        m = part(m, r, std::min(rows, whole.rows - r), c, std::min(cols, whole.cols - c));
      });
      kernel(tile);
    });
  }

  /// x in f32: x itself, or a copy in this thread's scratch. For what oneDNN cannot multiply: bf16 on some
  /// machines, f16 on all.
  Matrix widened(const Matrix& x, ScratchUse use);
  bool multiplies(DType dtype) const {
    return dtype == DType::f32 || (dtype == DType::bf16 && multiplies_bf16_);
  }
  void multiply(ProductArguments arguments);
  void multiply(std::span<const ProductArguments> products);  ///< of one dtype
  void quantize_whole(const Quantize& op);
  void quantize_columns(const Quantize& op);
  void quantize_blocks(const Quantize& op);
  void quantize(const Quantize& op);  ///< rows without offsets
  void add_blocks(const Matrix& blocks, float* to, bool accumulate);

  static constexpr int64_t kTileElements = 32768;
  static constexpr int64_t kTileCols = 16384;

  const InstructionSet isa_;
  const KernelTable& kernels_;
  const bool multiplies_bf16_;
  ThreadPool pool_;
  ProductEngine products_;
};

/// The backend with a given instruction set, for tests of instruction sets that the machine would not choose.
std::unique_ptr<Backend> make_cpu_backend(int threads, InstructionSet isa);

}  // namespace trainctl::kernels::cpu
