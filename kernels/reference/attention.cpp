#include "kernels/reference/reference_backend.h"

namespace trainctl::kernels::reference {

void ReferenceBackend::rope(Stream&, Matrix x, int64_t head_dim, int64_t seq_len, const float* cos_sin, bool inverse) {
  check_rope(x, head_dim, seq_len);
  const int64_t half = head_dim / 2;
  for (int64_t m = 0; m < x.rows; ++m) {
    const float* row = cos_sin + (m % seq_len) * head_dim;
    for (int64_t head = 0; head < x.cols; head += head_dim) {
      for (int64_t d = 0; d < half; ++d) {
        const double a = get(x, m, head + d), b = get(x, m, head + half + d);
        const double cosine = row[d], sine = inverse ? -row[half + d] : row[half + d];
        put(x, m, head + d, a * cosine - b * sine);
        put(x, m, head + half + d, b * cosine + a * sine);
      }
    }
  }
}

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
        const int64_t m = b * s.seq_len + t, first = s.mask.first_key ? s.mask.first_key[m] : 0;
        const int64_t end = std::max(first, t + s.mask.query_offset + 1);
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

}  // namespace

void ReferenceBackend::attention_forward(Stream&, const AttentionShape& s, Matrix q, Matrix k, Matrix v, Matrix out,
                                         float* lse) {
  check_attention(s, q, k, v, out);
  std::vector<double> p(s.keys_of_sequence()), o(s.head_dim);
  for_each_row(s, [&](const Row& row) {
    const double sink = s.mask.sinks ? s.mask.sinks[row.head] : -INFINITY;
    double max = sink;
    for (int64_t j = 0; j < row.keys; ++j) {
      p[j] = capped(s.scale * dot(q, row.m, row.q_col, k, row.first + j, row.kv_col, s.head_dim), s.mask.cap).value;
      max = std::max(max, p[j]);
    }
    double sum = s.mask.sinks ? std::exp(sink - max) : 0;
    std::fill(o.begin(), o.end(), 0.0);
    for (int64_t j = 0; j < row.keys; ++j) {
      p[j] = std::exp(p[j] - max);
      sum += p[j];
      for (int64_t d = 0; d < s.head_dim; ++d) {
        o[d] += p[j] * get(v, row.first + j, row.kv_col + d);
      }
    }
    for (int64_t d = 0; d < s.head_dim; ++d) {
      put(out, row.m, row.q_col + d, sum > 0 ? o[d] / sum : 0);
    }
    lse[row.m * s.heads + row.head] = float(max + std::log(sum));
  });
}

void ReferenceBackend::attention_backward(Stream&, const AttentionShape& s, Matrix q, Matrix k, Matrix v, Matrix out,
                                          const float* lse, Matrix dout, Matrix dq, Matrix dk, Matrix dv) {
  check_attention(s, q, k, v, out);
  check_attention(s, dq, dk, dv, dout);
  std::vector<double> dk_sum(k.rows * k.cols), dv_sum(k.rows * k.cols), dq_row(s.head_dim);
  for_each_row(s, [&](const Row& row) {
    const double delta = dot(out, row.m, row.q_col, dout, row.m, row.q_col, s.head_dim);
    std::fill(dq_row.begin(), dq_row.end(), 0.0);
    for (int64_t j = 0; j < row.keys; ++j) {
      const int64_t key = row.first + j;
      const Score score = capped(s.scale * dot(q, row.m, row.q_col, k, key, row.kv_col, s.head_dim), s.mask.cap);
      const double p = std::exp(score.value - lse[row.m * s.heads + row.head]);
      const double dp = dot(dout, row.m, row.q_col, v, key, row.kv_col, s.head_dim);
      const double ds = p * (dp - delta) * score.slope * s.scale;
      for (int64_t d = 0; d < s.head_dim; ++d) {
        const int64_t kv = key * k.cols + row.kv_col + d;
        dq_row[d] += ds * get(k, key, row.kv_col + d);
        dk_sum[kv] += ds * get(q, row.m, row.q_col + d);
        dv_sum[kv] += p * get(dout, row.m, row.q_col + d);
      }
    }
    for (int64_t d = 0; d < s.head_dim; ++d) {
      put(dq, row.m, row.q_col + d, dq_row[d]);
    }
  });
  for (int64_t r = 0; r < k.rows; ++r) {
    for (int64_t c = 0; c < k.cols; ++c) {
      put(dk, r, c, dk_sum[r * k.cols + c]);
      put(dv, r, c, dv_sum[r * k.cols + c]);
    }
  }
}

}  // namespace trainctl::kernels::reference
