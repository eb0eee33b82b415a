#include "kernels/reference/reference_backend.h"

namespace trainctl::kernels::reference {

void ReferenceBackend::embedding_forward(Stream&, const int32_t* ids, Matrix table, int64_t vocab_begin, Matrix out) {
  check_embedding(table, out);
  for (int64_t m = 0; m < out.rows; ++m) {
    const int64_t row = ids[m] - vocab_begin;
    const bool here = row >= 0 && row < table.rows;
    for (int64_t c = 0; c < out.cols; ++c) {
      put(out, m, c, here ? get(table, row, c) : 0.0f);
    }
  }
}

void ReferenceBackend::embedding_backward(Stream&, const int32_t* ids, Matrix dout, int64_t vocab_begin,
                                          Matrix dtable) {
  check_embedding(dtable, dout);
  ENSURE(dtable.dtype == DType::f32);
  for (int64_t m = 0; m < dout.rows; ++m) {
    const int64_t row = ids[m] - vocab_begin;
    if (row < 0 || row >= dtable.rows) {
      continue;
    }
    for (int64_t c = 0; c < dout.cols; ++c) {
      put(dtable, row, c, get(dtable, row, c) + get(dout, m, c));
    }
  }
}

void ReferenceBackend::add_position(Stream&, Matrix table, int64_t first_row, int64_t seq_len, Matrix x) {
  check_embedding(table, x);
  ENSURE(seq_len > 0 && seq_len <= table.rows, "T = {}, {} positions", seq_len, table.rows);
  for (int64_t m = 0; m < x.rows; ++m) {
    for (int64_t c = 0; c < x.cols; ++c) {
      put(x, m, c, get(x, m, c) + get(table, (first_row + m) % seq_len, c));
    }
  }
}

void ReferenceBackend::add_position_backward(Stream&, Matrix dx, int64_t first_row, int64_t seq_len, Matrix dtable) {
  check_embedding(dtable, dx);
  ENSURE(dtable.dtype == DType::f32 && seq_len > 0 && seq_len <= dtable.rows, "T = {}, {} positions", seq_len,
         dtable.rows);
  for (int64_t m = 0; m < dx.rows; ++m) {
    const int64_t t = (first_row + m) % seq_len;
    for (int64_t c = 0; c < dx.cols; ++c) {
      put(dtable, t, c, get(dtable, t, c) + get(dx, m, c));
    }
  }
}

}  // namespace trainctl::kernels::reference
