#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/router_row.h"

namespace trainctl::kernels::cpu {
namespace {

constexpr int64_t kRouterRows = 64, kMovedRows = 32;

float to_float(float x) { return x; }
float to_float(bf16 x) { return float(x); }
float to_float(f16 x) { return float(x); }

/// Lanes of a sum that a compiler keeps in registers: their order is written here, so that no compiler's is.
template <typename A, typename B>
float dot(const A* a, const B* b, int64_t n) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  for (int64_t c = 0; c < n; c += kLanes)
    for (int64_t i = 0; i < std::min(kLanes, n - c); ++i) lanes[i] += to_float(a[c + i]) * to_float(b[c + i]);
  for (int64_t width = kLanes / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

/// Calls body(pointer to row r), of floats, bf16s or f16s.
template <typename Body>
void with_row(const Matrix& m, int64_t r, Body body) {
  if (m.dtype == DType::f32)
    body(m.as<float>() + r * m.stride);
  else if (m.dtype == DType::f16)
    body(m.as<f16>() + r * m.stride);
  else
    body(m.as<bf16>() + r * m.stride);
}

/// Of row r of both, which have one dtype.
float dot_of(const Matrix& a, const Matrix& b, int64_t r) {
  float sum = 0;
  with_row(a, r, [&](auto* of_a) {
    sum = dot(of_a, b.as<std::remove_pointer_t<decltype(of_a)>>() + r * b.stride, a.cols);
  });
  return sum;
}

void zero_row(const Matrix& m, int64_t r) {
  std::memset(m.row_range(r, 1).data, 0, size_t(m.cols) * size_of(m.dtype));
}

double gate_of(const Matrix& logits, int64_t m) { return 1 / (1 + std::exp(-double(logits.as<float>()[m]))); }

/// Calls body(expert, first row, rows) for every expert that has rows, in order.
template <typename Body>
void over_experts_with_rows(const Matrix& offsets, Body body) {
  const auto* at = offsets.as<int32_t>();
  for (int64_t e = 0; e + 1 < offsets.cols; ++e)
    if (at[e] < at[e + 1]) body(e, at[e], at[e + 1] - at[e]);
}

}  // namespace

/// Calls body(expert, its first row, the row behind its last) for each expert, also one without rows, on the
/// pool.
template <typename Body>
void CpuBackend::over_experts(const Matrix& offsets, Body body) {
  const auto* at = offsets.as<int32_t>();
  pool_.run(offsets.cols - 1, [&](int64_t e, int) { body(e, at[e], at[e + 1]); });
}

void CpuBackend::compute(const Route& op) {
  const int64_t experts = op.logits.cols, k = op.top_k();
  over_rows(op.logits.rows, kRouterRows, [&](int64_t first, int64_t n) {
    RouterRow row(op.router, experts);
    for (int64_t m = first; m < first + n; ++m)
      row.choose(op.logits.as<float>() + m * experts, op.bias.as<float>(), k, op.ids.as<int32_t>() + m * k,
                 op.weights.as<float>() + m * k);
  });
  over_rows(op.counts.rows, 1, [&](int64_t sequence, int64_t) {
    int32_t* counts = op.counts.as<int32_t>() + sequence * experts;
    const int32_t* ids = op.ids.as<int32_t>() + sequence * op.seq_len * k;
    std::fill(counts, counts + experts, 0);
    for (int64_t i = 0; i < op.seq_len * k; ++i) ++counts[ids[i]];
  });
}

void CpuBackend::compute(const RouteBackward& op) {
  const int64_t experts = op.logits.cols, k = op.ids.cols;
  over_rows(op.logits.rows, kRouterRows, [&](int64_t first, int64_t n) {
    RouterRow row(op.router, experts);
    for (int64_t m = first; m < first + n; ++m)
      row.backward(op.logits.as<float>() + m * experts, k, op.ids.as<int32_t>() + m * k,
                   op.counts.as<int32_t>() + m / op.seq_len * experts, op.dweights.as<float>() + m * k,
                   op.aux_of_slot(), double(op.z), op.dlogits.as<float>() + m * experts);
  });
}

void CpuBackend::compute(const AddCounts& op) { add_counts(op); }
void CpuBackend::compute(const CountMargins& op) {
  over_rows(op.logits.rows, kRouterRows, [&](int64_t first, int64_t n) { count_margins(op, first, n); });
  find_bias_range(op);
}
void CpuBackend::compute(const SortByExpert& op) { sort_by_expert(op); }

/// Goes over the rows once, where the reference goes over all tokens for each rank.
void CpuBackend::compute(const TokensOfRanks& op) {
  const auto *rows = op.rows.as<int32_t>(), *offsets = op.offsets.as<int32_t>();
  auto *firsts = op.firsts.as<int32_t>(), *tokens = op.tokens.as<int32_t>(),
       *places = op.places.as<int32_t>();
  const int64_t ranks = op.ranks(), here = op.experts() / ranks, all = op.rows.cols, k = op.top_k;
  std::vector<int32_t> rank_of(size_t(op.places.cols)), last(size_t(ranks), -1);
  for (int64_t d = 0; d < ranks; ++d)
    std::fill(rank_of.begin() + offsets[d * here], rank_of.begin() + offsets[(d + 1) * here], int32_t(d));
  std::fill(firsts, firsts + ranks + 1, 0);
  /// Calls each(token, row, rank, whether it is the token's first row there) for all rows, in order of slots.
  const auto over_slots = [&](auto each) {
    std::fill(last.begin(), last.end(), -1);
    for (int64_t i = 0; i < all; ++i) {
      if (rows[i] < 0) continue;
      const auto m = int32_t(i / k);
      const auto d = size_t(rank_of[size_t(rows[i])]);
      each(m, rows[i], d, last[d] != m);
      last[d] = m;
    }
  };
  over_slots([&](int32_t, int32_t, size_t d, bool first) { firsts[d + 1] += first; });
  for (int64_t d = 0; d < ranks; ++d) firsts[d + 1] += firsts[d];
  std::vector<int32_t> next(firsts, firsts + ranks);
  over_slots([&](int32_t m, int32_t row, size_t d, bool first) {
    if (first) tokens[next[d]++] = m;
    places[row] = next[d] - 1 - firsts[d];
  });
  std::fill(tokens + firsts[ranks], tokens + op.tokens.cols, -1);
  std::fill(places + offsets[op.experts()], places + op.places.cols, -1);
}

void CpuBackend::compute(const GatherRows& op) {
  over_rows(op.out.rows, kMovedRows, [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r) {
      const int64_t slot = op.slots.as<int32_t>()[r];
      if (slot < 0 || slot / op.top_k >= op.x.rows)
        zero_row(op.out, r);
      else
        kernels_.copy({op.x.row_range(slot / op.top_k, 1), op.out.row_range(r, 1)});
    }
  });
}

void CpuBackend::compute(const CombineRows& op) {
  const int64_t k = op.top_k();
  over_rows(op.out.rows, kMovedRows, [&](int64_t first, int64_t n) {
    kernels_.combine_rows(
        {.x = op.x, .rows = op.rows.columns(first * k, n * k), .out = op.out.row_range(first, n)});
  });
}

void CpuBackend::compute(const ScaleRows& op) {
  over_rows(op.y.rows, kMovedRows, [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r) {
      const int64_t slot = slot_of(op.slots, r);
      if (slot < 0)
        zero_row(op.y, r);
      else
        kernels_.scaled_copy({op.x.row_range(r, 1), op.y.row_range(r, 1)}, op.weights.as<float>()[slot]);
    }
  });
}

void CpuBackend::compute(const ScaleRowsBackward& op) {
  over_rows(op.dy.rows, kMovedRows, [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r) {
      const int64_t slot = slot_of(op.slots, r);
      if (slot < 0) {
        zero_row(op.dx, r);
        continue;
      }
      op.dweights.as<float>()[slot] = dot_of(op.x, op.dy, r);
      kernels_.scaled_copy({op.dy.row_range(r, 1), op.dx.row_range(r, 1)}, op.weights.as<float>()[slot]);
    }
  });
}

void CpuBackend::compute(const GateRows& op) {
  over_rows(op.y.rows, kMovedRows, [&](int64_t first, int64_t n) {
    for (int64_t m = first; m < first + n; ++m)
      kernels_.scaled_copy({op.x.row_range(m, 1), op.y.row_range(m, 1)}, float(gate_of(op.logits, m)));
  });
}

void CpuBackend::compute(const GateRowsBackward& op) {
  over_rows(op.dy.rows, kMovedRows, [&](int64_t first, int64_t n) {
    for (int64_t m = first; m < first + n; ++m) {
      const double gate = gate_of(op.logits, m);
      op.dlogits.as<float>()[m] = float(gate * (1 - gate) * double(dot_of(op.x, op.dy, m)));
      kernels_.scaled_copy({op.dy.row_range(m, 1), op.dx.row_range(m, 1)}, float(gate));
    }
  });
}

void CpuBackend::compute(const AddExpertBias& op) {
  over_experts(op.offsets, [&](int64_t e, int64_t begin, int64_t end) {
    const float* bias = op.bias.as<float>() + e * op.bias.stride;
    for (int64_t r = begin; r < end; ++r) {
      const float weight = op.weights ? op.weights.as<float>()[slot_of(op.slots, r)] : 1.0f;
      with_row(op.x, r, [&](auto* x) {
        using T = std::remove_pointer_t<decltype(x)>;
        for (int64_t c = 0; c < op.x.cols; ++c) x[c] = T(to_float(x[c]) + weight * bias[c]);
      });
    }
  });
}

void CpuBackend::compute(const ExpertBiasBackward& op) {
  over_experts(op.offsets, [&](int64_t e, int64_t begin, int64_t end) {
    float* sums = op.dbias.as<float>() + e * op.dbias.stride;
    if (!op.accumulate) std::fill(sums, sums + op.dbias.cols, 0.0f);
    for (int64_t r = begin; r < end; ++r) {
      const float weight = op.weights ? op.weights.as<float>()[slot_of(op.slots, r)] : 1.0f;
      with_row(op.dy, r, [&](auto* dy) {
        for (int64_t c = 0; c < op.dy.cols; ++c) sums[c] += weight * to_float(dy[c]);
      });
    }
  });
}

void CpuBackend::compute(const ExpertBiasWeights& op) {
  over_experts(op.offsets, [&](int64_t e, int64_t begin, int64_t end) {
    const float* bias = op.bias.as<float>() + e * op.bias.stride;
    for (int64_t r = begin; r < end; ++r)
      with_row(op.dy, r,
               [&](auto* dy) { op.dweights.as<float>()[slot_of(op.slots, r)] += dot(dy, bias, op.dy.cols); });
  });
}

void CpuBackend::compute(const GroupedForward& op) {
  const Matrix& w = PlainWeight::of(op.w);
  const int64_t n = op.y.cols;
  std::vector<ProductArguments> products;
  over_experts_with_rows(op.offsets, [&](int64_t e, int64_t first, int64_t rows) {
    products.push_back({.left = op.x.row_range(first, rows),
                        .right = w.row_range(e * n, n),
                        .out = op.y.row_range(first, rows),
                        .right_transposed = true,
                        .one_of_many = true});
  });
  multiply(products);
}

void CpuBackend::compute(const GroupedBackwardInput& op) {
  const Matrix& w = PlainWeight::of(op.w);
  const int64_t n = op.dy.cols;
  std::vector<ProductArguments> products;
  over_experts_with_rows(op.offsets, [&](int64_t e, int64_t first, int64_t rows) {
    products.push_back({.left = op.dy.row_range(first, rows),
                        .right = w.row_range(e * n, n),
                        .out = op.dx.row_range(first, rows),
                        .one_of_many = true});
  });
  multiply(products);
}

void CpuBackend::compute(const GroupedBackwardWeight& op) {
  const int64_t n = op.dy.cols;
  const auto* offsets = op.offsets.as<int32_t>();
  for (int64_t e = 0; e < op.experts() && !op.accumulate; ++e)
    if (offsets[e] == offsets[e + 1])
      over_rows(n, kMovedRows, [&](int64_t first, int64_t rows) {
        for (int64_t r = first; r < first + rows; ++r)
          std::memset(op.dw.row_range(e * n + r, 1).data, 0, size_t(op.dw.cols) * sizeof(float));
      });
  std::vector<ProductArguments> products;
  over_experts_with_rows(op.offsets, [&](int64_t e, int64_t first, int64_t rows) {
    products.push_back({.left = op.dy.row_range(first, rows),
                        .right = op.x.row_range(first, rows),
                        .out = op.dw.row_range(e * n, n),
                        .left_transposed = true,
                        .accumulate = op.accumulate,
                        .one_of_many = true});
  });
  multiply(products);
}

}  // namespace trainctl::kernels::cpu
