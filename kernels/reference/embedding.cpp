#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {

void compute(const EmbeddingForward& op) {
  for (int64_t m = 0; m < op.out.rows; ++m) {
    const int64_t row = op.ids[m] - op.vocab_begin;
    const bool here = row >= 0 && row < op.table.rows;
    for (int64_t c = 0; c < op.out.cols; ++c) {
      put(op.out, m, c, here ? op.scale * get(op.table, row, c) : 0.0f);
    }
  }
}

void compute(const EmbeddingBackward& op) {
  for (int64_t m = 0; m < op.dout.rows; ++m) {
    const int64_t row = op.ids[m] - op.vocab_begin;
    if (row < 0 || row >= op.dtable.rows) {
      continue;
    }
    for (int64_t c = 0; c < op.dout.cols; ++c) {
      put(op.dtable, row, c, get(op.dtable, row, c) + op.scale * get(op.dout, m, c));
    }
  }
}

void compute(const AddPosition& op) {
  for (int64_t m = 0; m < op.x.rows; ++m) {
    const int64_t t = op.positions ? op.positions[m] : (op.first_row + m) % op.seq_len;
    for (int64_t c = 0; c < op.x.cols; ++c) {
      put(op.x, m, c, get(op.x, m, c) + get(op.table, t, c));
    }
  }
}

void compute(const AddPositionBackward& op) {
  for (int64_t m = 0; m < op.dx.rows; ++m) {
    const int64_t t = op.positions ? op.positions[m] : (op.first_row + m) % op.seq_len;
    for (int64_t c = 0; c < op.dx.cols; ++c) {
      put(op.dtable, t, c, get(op.dtable, t, c) + get(op.dx, m, c));
    }
  }
}

}  // namespace trainctl::kernels::reference
