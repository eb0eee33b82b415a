#include <cstring>

#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

namespace {
constexpr int64_t kEmbeddingRows = 32;
// Gradients are cut by columns: each task adds all rows in order, so that rows of one token are added in
// one order.
constexpr int64_t kCols = 128;

int64_t position_of(const auto& op, int64_t m) {
  return op.positions != nullptr ? op.positions[m] : (op.first_row + m) % op.seq_len;
}
}  // namespace

void CpuBackend::compute(const EmbeddingForward& op) {
  over_rows(op.out.rows, kEmbeddingRows, [&](int64_t first, int64_t n) {
    for (int64_t m = first; m < first + n; ++m) {
      const int64_t id = op.ids[m] - op.vocab_begin;
      const Matrix to = op.out.row_range(m, 1);
      if (id >= 0 && id < op.table.rows) {
        const Copy row{op.table.row_range(id, 1), to};
        op.scale == 1 ? kernels_.copy(row) : kernels_.scaled_copy(row, op.scale);
      } else {
        std::memset(to.data, 0, size_t(to.cols) * size_of(to.dtype));
      }
    }
  });
}

void CpuBackend::compute(const EmbeddingBackward& op) {
  over_rows(op.dout.cols, kCols, [&](int64_t col, int64_t cols) {
    for (int64_t m = 0; m < op.dout.rows; ++m) {
      const int64_t id = op.ids[m] - op.vocab_begin;
      if (id >= 0 && id < op.dtable.rows) {
        const Add row{part(op.dout, m, 1, col, cols), part(op.dtable, id, 1, col, cols)};
        op.scale == 1 ? kernels_.add(row) : kernels_.add_times(row, op.scale);
      }
    }
  });
}

void CpuBackend::compute(const AddPosition& op) {
  over_rows(op.x.rows, kEmbeddingRows, [&](int64_t first, int64_t n) {
    for (int64_t m = first; m < first + n; ++m) {
      kernels_.add({op.table.row_range(position_of(op, m), 1), op.x.row_range(m, 1)});
    }
  });
}

void CpuBackend::compute(const AddPositionBackward& op) {
  over_rows(op.dx.cols, kCols, [&](int64_t col, int64_t cols) {
    for (int64_t m = 0; m < op.dx.rows; ++m) {
      kernels_.add({part(op.dx, m, 1, col, cols), part(op.dtable, position_of(op, m), 1, col, cols)});
    }
  });
}

}  // namespace trainctl::kernels::cpu
