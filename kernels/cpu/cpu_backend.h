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
#include "kernels/shape_checks.h"

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
  void fill_zero(Stream&, void* data, size_t bytes) override;
  void copy(Stream&, Matrix src, Matrix dst) override;
  void add(Stream&, Matrix src, Matrix dst) override;
  void tree_sum(Stream&, std::span<const void* const> inputs, void* out, DType dtype, int64_t count) override;
  void add_rounded(Stream&, Matrix left, Matrix right, Matrix out) override;

  void embedding_forward(Stream&, const int32_t* ids, Matrix table, int64_t vocab_begin, Matrix out) override;
  void embedding_backward(Stream&, const int32_t* ids, Matrix dout, int64_t vocab_begin, Matrix dtable) override;
  void add_position(Stream&, Matrix table, int64_t first_row, int64_t seq_len, Matrix x) override;
  void add_position_backward(Stream&, Matrix dx, int64_t first_row, int64_t seq_len, Matrix dtable) override;

  void norm_forward(Stream&, NormKind, Matrix x, Matrix delta, Matrix weight, Matrix bias, float eps, Matrix sum,
                    Matrix y, float* stats) override;
  void norm_backward(Stream&, NormKind, Matrix dy, Matrix x, Matrix weight, const float* stats, Matrix dresidual,
                     Matrix dx, Matrix dweight, Matrix dbias, bool accumulate) override;
  void norm_apply(Stream&, NormKind, Matrix x, const float* stats, Matrix weight, Matrix bias, Matrix y) override;

  std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override;
  void pack(Stream&, Matrix w, PackedWeight& packed) override;
  void linear_forward(Stream&, Matrix x, const PackedWeight& w, Matrix bias, Matrix y) override;
  void linear_backward_input(Stream&, Matrix dy, const PackedWeight& w, Matrix dx) override;
  void linear_backward_weight(Stream&, Matrix dy, Matrix x, Matrix dw, Matrix dbias, bool accumulate) override;

  void gelu_forward(Stream&, Matrix x, Matrix y) override;
  void gelu_backward(Stream&, Matrix x, Matrix dy, Matrix dx) override;
  void swiglu_forward(Stream&, Matrix gate, Matrix up, Matrix y) override;
  void swiglu_backward(Stream&, Matrix gate, Matrix up, Matrix dy, Matrix dgate, Matrix dup) override;

  void rope(Stream&, Matrix x, int64_t head_dim, int64_t seq_len, const float* cos_sin, bool inverse) override;
  void attention_forward(Stream&, const AttentionShape&, Matrix q, Matrix k, Matrix v, Matrix out,
                         float* lse) override;
  void attention_backward(Stream&, const AttentionShape&, Matrix q, Matrix k, Matrix v, Matrix out, const float* lse,
                          Matrix dout, Matrix dq, Matrix dk, Matrix dv) override;

  void cross_entropy_stats(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin, float* stats) override;
  void cross_entropy_combine(Stream&, const float* stats, int parts, int64_t m, float* lse, float* loss) override;
  void cross_entropy_backward(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin, const float* lse,
                              float scale) override;

  void adamw(Stream&, std::span<const AdamWBox> boxes, const AdamWStep& step) override;
  void sum_squares(Stream&, std::span<const Matrix> boxes, double* out) override;
  void sum(Stream&, const float* x, int64_t n, double* out) override;

 private:
  /// Calls body(first row, rows) for blocks of `block` rows, on the pool.
  template <typename Body>
  void over_rows(int64_t rows, int64_t block, Body body) {
    pool_.run((rows + block - 1) / block, [&](int64_t task, int) {
      body(task * block, std::min(block, rows - task * block));
    });
  }

  /// Calls body(matrices) for tiles of some tens of thousands of elements, on the pool. All matrices have one
  /// shape or are empty; the first is not empty.
  template <size_t N, typename Body>
  void over_elements(const Matrix (&whole)[N], Body body) {
    Matrix m[N];
    bool contiguous = true;
    for (size_t i = 0; i < N; ++i) {
      m[i] = whole[i];
      contiguous = contiguous && (!m[i] || m[i].contiguous());
    }
    for (size_t i = 0; contiguous && i < N; ++i) {
      m[i] = {m[i].data, m[i].dtype, 1, m[i].count(), m[i].count()};
    }
    const int64_t cols = std::max<int64_t>(1, std::min<int64_t>(m[0].cols, kTileCols));
    const int64_t rows = std::max<int64_t>(1, kTileElements / cols);
    const int64_t across = (m[0].cols + cols - 1) / cols, down = (m[0].rows + rows - 1) / rows;
    pool_.run(across * down, [&](int64_t task, int) {
      const int64_t r = task / across * rows, c = task % across * cols;
      Matrix tile[N];
      for (size_t i = 0; i < N; ++i) {
        tile[i] = part(m[i], r, std::min(rows, m[0].rows - r), c, std::min(cols, m[0].cols - c));
      }
      body(tile);
    });
  }

  /// x in f32: x itself, or a copy in this thread's scratch. For machines on which oneDNN cannot multiply
  /// bf16.
  Matrix widened(Stream& stream, const Matrix& x, ScratchUse use);
  void multiply(Stream& stream, ProductArguments arguments);

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
