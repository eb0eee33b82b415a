#include <cmath>

#include "kernels/cpu/isa/kernels.h"
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {

struct Affine {
  const float *weight, *bias;
};

/// y = (x - mean) * rstd * weight + bias. Both ops call this one function, so that norm_apply repeats
/// norm_forward's bits.
template <typename T>
TRAINCTL_INLINE void normalise_row(const T* x, T* y, int64_t n, float mean, float rstd, Affine a) {
  if (a.bias != nullptr) {
    for_lanes(n, [&](int64_t c, auto lanes) {
      const V xhat = (load(x + c, lanes) - mean) * rstd;
      store(y + c, fma(xhat, load(a.weight + c, lanes), load(a.bias + c, lanes)), lanes);
    });
  } else {
    for_lanes(n, [&](int64_t c, auto lanes) {
      const V xhat = (load(x + c, lanes) - mean) * rstd;
      store(y + c, xhat * load(a.weight + c, lanes), lanes);
    });
  }
}

TRAINCTL_INLINE V keep_first(V v, Full) { return v; }
TRAINCTL_INLINE V keep_first(V v, Tail tail) { return select(first_lanes(tail.count), v, V{}); }

/// Sum over c of term(c, lanes), with the lanes beyond the row left out.
template <typename Term>
TRAINCTL_INLINE float row_sum(int64_t n, Term term) {
  V total[4] = {};
  int64_t c = 0;
  for (; c + 4 * kLanes <= n; c += 4 * kLanes) {
    for (int i = 0; i < 4; ++i) {
      total[i] += term(c + i * kLanes, Full{});
    }
  }
  for (; c + kLanes <= n; c += kLanes) {
    total[0] += term(c, Full{});
  }
  if (c < n) {
    const Tail tail{int(n - c)};
    total[1] += keep_first(term(c, tail), tail);
  }
  return lane_sum((total[0] + total[1]) + (total[2] + total[3]));
}

template <typename T>
void forward_rows(NormKind kind, const Matrix& x, const Matrix& delta, Affine a, float eps, const Matrix& sum,
                  const Matrix& y, float* stats) {
  const int64_t n = x.cols;
  for (int64_t r = 0; r < x.rows; ++r) {
    const T* source = row<T>(x, r);
    if (delta) {
      const T* d = row<T>(delta, r);
      T* s = row<T>(sum, r);
      for_lanes(n, [&](int64_t c, auto lanes) { store(s + c, load(source + c, lanes) + load(d + c, lanes), lanes); });
      source = s;
    }
    float mean = 0;
    if (kind == NormKind::layernorm) {
      mean = row_sum(n, [&](int64_t c, auto lanes) { return load(source + c, lanes); }) / float(n);
    }
    const float squares = row_sum(n, [&](int64_t c, auto lanes) {
      const V d = load(source + c, lanes) - mean;
      return d * d;
    });
    const float rstd = 1.0f / std::sqrt(squares / float(n) + eps);
    stats[2 * r] = mean;
    stats[2 * r + 1] = rstd;
    normalise_row(source, row<T>(y, r), n, mean, rstd, a);
  }
}

template <typename T>
void backward_rows(NormKind kind, const Matrix& dy, const Matrix& x, const float* weight, const float* stats,
                   const Matrix& dresidual, const Matrix& dx, float* dweight, float* dbias) {
  const int64_t n = x.cols;
  for (int64_t r = 0; r < x.rows; ++r) {
    const T *g = row<T>(dy, r), *in = row<T>(x, r);
    const float mean = stats[2 * r], rstd = stats[2 * r + 1];
    V sum_g[2] = {}, sum_gx[2] = {};
    for_lanes_in_turns(n, [&](int64_t c, int turn, auto lanes) __attribute__((always_inline)) {
      const V d = load(g + c, lanes);
      const V xhat = (load(in + c, lanes) - mean) * rstd;
      const V dw = d * load(weight + c, lanes);  // 0 beyond the row, since dy reads as 0 there
      sum_g[turn] += dw;
      sum_gx[turn] = fma(dw, xhat, sum_gx[turn]);
      store(dweight + c, r == 0 ? d * xhat : fma(d, xhat, load(dweight + c, lanes)), lanes);
      store(dbias + c, r == 0 ? d : load(dbias + c, lanes) + d, lanes);
    });
    const float mean_g = kind == NormKind::layernorm ? lane_sum(sum_g[0] + sum_g[1]) / float(n) : 0.0f;
    const float mean_gx = lane_sum(sum_gx[0] + sum_gx[1]) / float(n);
    T* out = row<T>(dx, r);
    const T* residual = dresidual ? row<T>(dresidual, r) : nullptr;
    for_lanes(n, [&](int64_t c, auto lanes) {
      const V xhat = (load(in + c, lanes) - mean) * rstd;
      const V dw = load(g + c, lanes) * load(weight + c, lanes);
      V d = (dw - mean_g - xhat * mean_gx) * rstd;
      if (residual != nullptr) {
        d += load(residual + c, lanes);
      }
      store(out + c, d, lanes);
    });
  }
}

}  // namespace

void norm_forward(NormKind kind, const Matrix& x, const Matrix& delta, const float* weight, const float* bias, float eps,
                  const Matrix& sum, const Matrix& y, float* stats) {
  with_type(x.dtype, [&](auto t) {
    forward_rows<decltype(t)>(kind, x, delta, {weight, bias}, eps, sum, y, stats);
  });
}

void norm_apply(NormKind, const Matrix& x, const float* stats, const float* weight, const float* bias,
                const Matrix& y) {
  with_type(x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < x.rows; ++r) {
      normalise_row(row<T>(x, r), row<T>(y, r), x.cols, stats[2 * r], stats[2 * r + 1], {weight, bias});
    }
  });
}

void norm_backward(NormKind kind, const Matrix& dy, const Matrix& x, const float* weight, const float* stats,
                   const Matrix& dresidual, const Matrix& dx, float* dweight, float* dbias) {
  with_type(x.dtype, [&](auto t) {
    backward_rows<decltype(t)>(kind, dy, x, weight, stats, dresidual, dx, dweight, dbias);
  });
}

void column_sums(const Matrix& x, float* out, bool accumulate) {
  constexpr int64_t kBlockRows = 64;  // short chains of f32 additions, so that thousands of rows lose no digits
  with_type(x.dtype, [&](auto t) {
    using T = decltype(t);
    float block[kColumnSums];
    for (int64_t first = 0; first == 0 || first < x.rows; first += kBlockRows) {  // no rows: zeros
      const int64_t end = first + kBlockRows < x.rows ? first + kBlockRows : x.rows;
      std::memset(block, 0, sizeof block);
      for (int64_t r = first; r < end; ++r) {
        const T* in = row<T>(x, r);
        for_lanes(x.cols, [&](int64_t c, auto lanes) {
          store(block + c, load(block + c, Full{}) + load(in + c, lanes), Full{});
        });
      }
      const bool add = accumulate || first > 0;
      for_lanes(x.cols, [&](int64_t c, auto lanes) {
        store(out + c, (add ? load(out + c, lanes) : V{}) + load(block + c, Full{}), lanes);
      });
    }
  });
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
