#include <cstring>

#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

namespace {
constexpr int64_t kEmbeddingRows = 32;
// Gradients are cut by columns: each task adds all rows in order, so that rows of one token are added in
// one order.
constexpr int64_t kCols = 128;
}  // namespace

void CpuBackend::embedding_forward(Stream&, const int32_t* ids, Matrix table, int64_t vocab_begin, Matrix out) {
  check_embedding(table, out);
  over_rows(out.rows, kEmbeddingRows, [&](int64_t first, int64_t n) {
    for (int64_t m = first; m < first + n; ++m) {
      const int64_t id = ids[m] - vocab_begin;
      const Matrix to = out.row_range(m, 1);
      if (id >= 0 && id < table.rows) {
        kernels_.copy(table.row_range(id, 1), to);
      } else {
        std::memset(to.data, 0, size_t(to.cols) * size_of(to.dtype));
      }
    }
  });
}

void CpuBackend::embedding_backward(Stream&, const int32_t* ids, Matrix dout, int64_t vocab_begin, Matrix dtable) {
  check_embedding(dtable, dout);
  ENSURE(dtable.dtype == DType::f32);
  over_rows(dout.cols, kCols, [&](int64_t col, int64_t cols) {
    for (int64_t m = 0; m < dout.rows; ++m) {
      const int64_t id = ids[m] - vocab_begin;
      if (id >= 0 && id < dtable.rows) {
        kernels_.add(part(dout, m, 1, col, cols), part(dtable, id, 1, col, cols));
      }
    }
  });
}

void CpuBackend::add_position(Stream&, Matrix table, int64_t first_row, int64_t seq_len, Matrix x) {
  check_embedding(table, x);
  ENSURE(seq_len > 0 && seq_len <= table.rows, "T = {}, {} positions", seq_len, table.rows);
  over_rows(x.rows, kEmbeddingRows, [&](int64_t first, int64_t n) {
    for (int64_t m = first; m < first + n; ++m) {
      kernels_.add(table.row_range((first_row + m) % seq_len, 1), x.row_range(m, 1));
    }
  });
}

void CpuBackend::add_position_backward(Stream&, Matrix dx, int64_t first_row, int64_t seq_len, Matrix dtable) {
  check_embedding(dtable, dx);
  ENSURE(dtable.dtype == DType::f32 && seq_len > 0 && seq_len <= dtable.rows, "T = {}, {} positions", seq_len,
         dtable.rows);
  over_rows(dx.cols, kCols, [&](int64_t col, int64_t cols) {
    for (int64_t m = 0; m < dx.rows; ++m) {
      kernels_.add(part(dx, m, 1, col, cols), part(dtable, (first_row + m) % seq_len, 1, col, cols));
    }
  });
}

}  // namespace trainctl::kernels::cpu
