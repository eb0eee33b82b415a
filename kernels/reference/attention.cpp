#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {

namespace {

/// One query row of one head: where it and its keys stand.
struct Row {
  int64_t m;        ///< row of q
  int64_t first;    ///< row of the first key that it sees
  int64_t keys;     ///< how many it sees
  int64_t q_col;    ///< first column of the query head
  int64_t kv_col;   ///< first column of the key/value head
  int64_t head;
};

/// Calls `body` for every query row of every head, key/value heads outermost.
template <typename F>
void for_each_row(const AttentionShape& s, F body) {
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t t = 0; t < s.seq_len; ++t) {
        const int64_t m = b * s.seq_len + t, position = t + s.mask.query_offset;
        const int64_t first = first_visible_key(s.mask, m, position), end = std::max(first, position + 1);
        body(Row{m, b * s.keys_of_sequence() + first, end - first, h * s.head_dim,
                 h / (s.heads / s.kv_heads) * s.head_dim, h});
      }
    }
  }
}

/// A score as the softmax takes it, and its derivative.
struct Score {
  double value = 0, slope = 1;
};
Score capped(double score, double cap) {
  if (cap == 0) return {score, 1};
  const double tanh = std::tanh(score / cap);
  return {cap * tanh, 1 - tanh * tanh};
}

double dot(const Matrix& a, int64_t ra, int64_t ca, const Matrix& b, int64_t rb, int64_t cb, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += double(get(a, ra, ca + i)) * get(b, rb, cb + i);
  }
  return sum;
}

/// Of a row of HeadScalarBackward.
double row_factor(HeadScalar scalar, double value, double lse) {
  switch (scalar) {
    case HeadScalar::sinks: return -std::exp(value - lse);
  }
  return 0;
}

}  // namespace

void compute(const AttentionForward& op) {
  const AttentionShape& s = op.shape;
  check_documents(s);
  std::vector<double> p(s.keys_of_sequence()), o(s.head_dim);
  for_each_row(s, [&](const Row& row) {
    const float* const sinks = s.mask.scalars[HeadScalar::sinks];
    const double sink = sinks ? sinks[row.head] : -INFINITY;
    double max = sink;
    for (int64_t j = 0; j < row.keys; ++j) {
      p[j] = capped(s.scale * dot(op.q, row.m, row.q_col, op.k, row.first + j, row.kv_col, s.head_dim), s.mask.cap)
                 .value;
      max = std::max(max, p[j]);
    }
    double sum = sinks ? std::exp(sink - max) : 0;
    std::fill(o.begin(), o.end(), 0.0);
    for (int64_t j = 0; j < row.keys; ++j) {
      p[j] = std::exp(p[j] - max);
      sum += p[j];
      for (int64_t d = 0; d < s.head_dim; ++d) {
        o[d] += p[j] * get(op.v, row.first + j, row.kv_col + d);
      }
    }
    for (int64_t d = 0; d < s.head_dim; ++d) {
      put(op.out, row.m, row.q_col + d, sum == 0 ? 0 : o[d] / sum);
    }
    op.lse[row.m * s.heads + row.head] = float(max + std::log(sum));
  });
}

void compute(const AttentionBackward& op) {
  const AttentionShape& s = op.shape;
  check_documents(s);
  std::vector<double> dk_sum(op.k.rows * op.k.cols), dv_sum(op.k.rows * op.k.cols), dq_row(s.head_dim);
  for_each_row(s, [&](const Row& row) {
    const double delta = dot(op.out, row.m, row.q_col, op.dout, row.m, row.q_col, s.head_dim);
    std::fill(dq_row.begin(), dq_row.end(), 0.0);
    for (int64_t j = 0; j < row.keys; ++j) {
      const int64_t key = row.first + j;
      const Score score =
          capped(s.scale * dot(op.q, row.m, row.q_col, op.k, key, row.kv_col, s.head_dim), s.mask.cap);
      const double p = std::exp(score.value - op.lse[row.m * s.heads + row.head]);
      const double dp = dot(op.dout, row.m, row.q_col, op.v, key, row.kv_col, s.head_dim);
      const double ds = p * (dp - delta) * score.slope * s.scale;
      for (int64_t d = 0; d < s.head_dim; ++d) {
        const int64_t kv = key * op.k.cols + row.kv_col + d;
        dq_row[d] += ds * get(op.k, key, row.kv_col + d);
        dk_sum[kv] += ds * get(op.q, row.m, row.q_col + d);
        dv_sum[kv] += p * get(op.dout, row.m, row.q_col + d);
      }
    }
    for (int64_t d = 0; d < s.head_dim; ++d) {
      put(op.dq, row.m, row.q_col + d, dq_row[d]);
    }
  });
  for (int64_t r = 0; r < op.k.rows; ++r) {
    for (int64_t c = 0; c < op.k.cols; ++c) {
      put(op.dk, r, c, dk_sum[r * op.k.cols + c]);
      put(op.dv, r, c, dv_sum[r * op.k.cols + c]);
    }
  }
}

void compute(const HeadScalarBackward& op) {
  const Matrix &left = op.left(), &right = op.right();
  const int64_t heads = op.heads();
  for (int64_t h = 0; h < heads; ++h) {
    double sum = 0;
    for (int64_t m = 0; m < left.rows; ++m) {
      const int64_t column = h * op.head_dim;
      sum += row_factor(op.scalar, get(op.values, 0, h), op.lse[m * heads + h]) *
             dot(left, m, column, right, m, column, op.head_dim);
    }
    put(op.dvalues, 0, h, op.accumulate ? get(op.dvalues, 0, h) + float(sum) : float(sum));
  }
}

}  // namespace trainctl::kernels::reference
