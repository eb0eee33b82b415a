#include <cmath>

#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {

struct Affine {
  const float *weight, *bias;
  float offset;  ///< of the weights: exact_offset()
};

/// y = (x - mean) * rstd * (weight + offset) + bias. Both ops call this one function, so that norm_apply repeats
/// norm_forward's bits.
template <typename T>
TRAINCTL_INLINE void normalise_row(const T* x, T* y, int64_t n, float mean, float rstd, Affine a) {
  if (a.bias != nullptr) {
    for_lanes(n, [&](int64_t c, auto lanes) {
      const V xhat = (load(x + c, lanes) - mean) * rstd;
      store(y + c, fma(xhat, load(a.weight + c, lanes) + a.offset, load(a.bias + c, lanes)), lanes);
    });
  } else {
    for_lanes(n, [&](int64_t c, auto lanes) {
      const V xhat = (load(x + c, lanes) - mean) * rstd;
      store(y + c, xhat * (load(a.weight + c, lanes) + a.offset), lanes);
    });
  }
}

template <typename T>
void forward_rows(const NormForward& op, Affine a) {
  const int64_t n = op.x.cols;
  for (int64_t r = 0; r < op.x.rows; ++r) {
    const T* source = row<T>(op.x, r);
    if (op.delta) {
      const T* d = row<T>(op.delta, r);
      T* s = row<T>(op.sum, r);
      for_lanes(n, [&](int64_t c, auto lanes) { store(s + c, load(source + c, lanes) + load(d + c, lanes), lanes); });
      source = s;
    }
    float mean = 0;
    if (op.kind == NormKind::layernorm) {
      mean = row_sum(n, [&](int64_t c, auto lanes) { return load(source + c, lanes); }) / float(n);
    }
    const float squares = row_sum(n, [&](int64_t c, auto lanes) {
      const V d = load(source + c, lanes) - mean;
      return d * d;
    });
    const float rstd = 1.0f / std::sqrt(squares / float(n) + op.eps);
    op.stats[2 * r] = mean;
    op.stats[2 * r + 1] = rstd;
    normalise_row(source, row<T>(op.y, r), n, mean, rstd, a);
  }
}

template <typename T>
void backward_rows(const NormBackward& op) {
  const int64_t n = op.x.cols;
  const float* const weight = op.weight.as<float>();
  const float offset = exact_offset(op.weight_offset);
  float *const dweight = op.dweight.as<float>(), *const dbias = op.dbias.as<float>();
  for (int64_t r = 0; r < op.x.rows; ++r) {
    const T *g = row<T>(op.dy, r), *in = row<T>(op.x, r);
    const float mean = op.stats[2 * r], rstd = op.stats[2 * r + 1];
    V sum_g[2] = {}, sum_gx[2] = {};
    for_lanes_in_turns(n, [&](int64_t c, int turn, auto lanes) __attribute__((always_inline)) {
      const V d = load(g + c, lanes);
      const V xhat = (load(in + c, lanes) - mean) * rstd;
      const V dw = d * (load(weight + c, lanes) + offset);  // 0 beyond the row, since dy reads as 0 there
      sum_g[turn] += dw;
      sum_gx[turn] = fma(dw, xhat, sum_gx[turn]);
      store(dweight + c, r == 0 ? d * xhat : fma(d, xhat, load(dweight + c, lanes)), lanes);
      store(dbias + c, r == 0 ? d : load(dbias + c, lanes) + d, lanes);
    });
    const float mean_g = op.kind == NormKind::layernorm ? lane_sum(sum_g[0] + sum_g[1]) / float(n) : 0.0f;
    const float mean_gx = lane_sum(sum_gx[0] + sum_gx[1]) / float(n);
    T* out = row<T>(op.dx, r);
    const T* residual = op.dresidual ? row<T>(op.dresidual, r) : nullptr;
    for_lanes(n, [&](int64_t c, auto lanes) {
      const V xhat = (load(in + c, lanes) - mean) * rstd;
      const V dw = load(g + c, lanes) * (load(weight + c, lanes) + offset);
      V d = (dw - mean_g - xhat * mean_gx) * rstd;
      if (residual != nullptr) {
        d += load(residual + c, lanes);
      }
      store(out + c, d, lanes);
    });
  }
}

}  // namespace

void norm_forward(const NormForward& op) {
  with_type(op.x.dtype, [&](auto t) {
    forward_rows<decltype(t)>(op,
                              {op.weight.as<float>(), op.bias.as<float>(), exact_offset(op.weight_offset)});
  });
}

void norm_apply(const NormApply& op) {
  const Affine a{op.weight.as<float>(), op.bias.as<float>(), exact_offset(op.weight_offset)};
  with_type(op.x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < op.x.rows; ++r) {
      normalise_row(row<T>(op.x, r), row<T>(op.y, r), op.x.cols, op.stats[2 * r], op.stats[2 * r + 1], a);
    }
  });
}

void norm_backward(const NormBackward& op) {
  with_type(op.x.dtype, [&](auto t) {
    backward_rows<decltype(t)>(op);
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
