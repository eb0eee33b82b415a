#include "kernels/plain_weight.h"
#include "kernels/reference/compute.h"
#include "kernels/router_row.h"

namespace trainctl::kernels::reference {
namespace {

/// Calls each(op of one expert) with its rows of the matrices.
template <typename Each>
void over_experts(const auto& op, Each each) {
  const auto* offsets = op.offsets.template as<int32_t>();
  for (int64_t e = 0; e < op.experts(); ++e) each(e, offsets[e], offsets[e + 1] - offsets[e]);
}

/// Calls each(expert, row) for all rows, in order.
template <typename Each>
void over_expert_rows(const auto& op, Each each) {
  const auto* offsets = op.offsets.template as<int32_t>();
  for (int64_t e = 0; e + 1 < op.offsets.cols; ++e)
    for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) each(e, r);
}

double row_gate(double logit) { return 1 / (1 + std::exp(-logit)); }

/// An expert's part of the joined weights, packed.
std::unique_ptr<PackedWeight> weight_of(const PackedWeight* all, int64_t expert, int64_t experts) {
  const Matrix w = PlainWeight::of(all);
  auto one = PlainWeight::make(all->n / experts, all->k, all->dtype);
  PlainWeight::pack({.w = w.row_range(expert * one->n, one->n), .packed = one.get()});
  return one;
}

}  // namespace

void compute(const Route& op) {
  const int64_t experts = op.logits.cols, k = op.top_k();
  auto* counts = op.counts.as<int32_t>();
  std::fill(counts, counts + op.counts.count(), 0);
  RouterRow row(op.router, experts);
  for (int64_t m = 0; m < op.logits.rows; ++m) {
    int32_t* ids = op.ids.as<int32_t>() + m * k;
    row.choose(op.logits.as<float>() + m * experts, op.bias.as<float>(), k, ids,
               op.weights.as<float>() + m * k);
    for (int64_t j = 0; j < k; ++j) ++counts[m / op.seq_len * experts + ids[j]];
  }
}

void compute(const RouteBackward& op) {
  const int64_t experts = op.logits.cols, k = op.ids.cols;
  RouterRow row(op.router, experts);
  for (int64_t m = 0; m < op.logits.rows; ++m)
    row.backward(op.logits.as<float>() + m * experts, k, op.ids.as<int32_t>() + m * k,
                 op.counts.as<int32_t>() + m / op.seq_len * experts, op.dweights.as<float>() + m * k,
                 op.aux_of_slot(), double(op.z), op.dlogits.as<float>() + m * experts);
}

void compute(const AddCounts& op) { add_counts(op); }

void compute(const CountMargins& op) {
  count_margins(op, 0, op.logits.rows);
  find_bias_range(op);
}

void compute(const SortByExpert& op) { sort_by_expert(op); }

void compute(const TokensOfRanks& op) {
  const auto *rows = op.rows.as<int32_t>(), *offsets = op.offsets.as<int32_t>();
  auto *firsts = op.firsts.as<int32_t>(), *tokens = op.tokens.as<int32_t>(),
       *places = op.places.as<int32_t>();
  const int64_t here = op.experts() / op.ranks();
  firsts[0] = 0;
  for (int64_t d = 0; d < op.ranks(); ++d) {
    int32_t next = firsts[d];
    for (int64_t m = 0; m < op.rows.cols / op.top_k; ++m) {
      bool goes = false;
      for (int64_t j = 0; j < op.top_k; ++j) {
        const int32_t row = rows[m * op.top_k + j];
        if (row < offsets[d * here] || row >= offsets[(d + 1) * here]) continue;
        goes = true;
        places[row] = next - firsts[d];
      }
      if (goes) tokens[next++] = int32_t(m);
    }
    firsts[d + 1] = next;
  }
  std::fill(tokens + firsts[op.ranks()], tokens + op.tokens.cols, -1);
  std::fill(places + offsets[op.experts()], places + op.places.cols, -1);
}

void compute(const GatherRows& op) {
  for (int64_t r = 0; r < op.out.rows; ++r) {
    const int64_t slot = op.slots.as<int32_t>()[r];
    const bool exists = slot >= 0 && slot / op.top_k < op.x.rows;
    for (int64_t c = 0; c < op.out.cols; ++c) put(op.out, r, c, exists ? get(op.x, slot / op.top_k, c) : 0);
  }
}

void compute(const CombineRows& op) {
  const int64_t k = op.top_k();
  for (int64_t m = 0; m < op.out.rows; ++m)
    for (int64_t c = 0; c < op.out.cols; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < k; ++j)
        if (const int32_t row = op.rows.as<int32_t>()[m * k + j]; row >= 0) sum += get(op.x, row, c);
      put(op.out, m, c, sum);
    }
}

void compute(const ScaleRows& op) {
  for (int64_t r = 0; r < op.y.rows; ++r) {
    const int64_t slot = slot_of(op.slots, r);
    for (int64_t c = 0; c < op.y.cols; ++c)
      put(op.y, r, c, slot < 0 ? 0 : double(op.weights.as<float>()[slot]) * get(op.x, r, c));
  }
}

void compute(const ScaleRowsBackward& op) {
  for (int64_t r = 0; r < op.dy.rows; ++r) {
    const int64_t slot = slot_of(op.slots, r);
    if (slot < 0) {
      for (int64_t c = 0; c < op.dx.cols; ++c) put(op.dx, r, c, 0);
      continue;
    }
    const double weight = op.weights.as<float>()[slot];
    double dot = 0;
    for (int64_t c = 0; c < op.dy.cols; ++c) {
      const double dy = get(op.dy, r, c);
      dot += get(op.x, r, c) * dy;
      put(op.dx, r, c, weight * dy);
    }
    op.dweights.as<float>()[slot] = float(dot);
  }
}

void compute(const GateRows& op) {
  for (int64_t m = 0; m < op.y.rows; ++m) {
    const double gate = row_gate(double(op.logits.as<float>()[m]));
    for (int64_t c = 0; c < op.y.cols; ++c) put(op.y, m, c, gate * get(op.x, m, c));
  }
}

void compute(const GateRowsBackward& op) {
  for (int64_t m = 0; m < op.dy.rows; ++m) {
    const double gate = row_gate(double(op.logits.as<float>()[m]));
    double dot = 0;
    for (int64_t c = 0; c < op.dy.cols; ++c) {
      const double dy = get(op.dy, m, c);
      dot += get(op.x, m, c) * dy;
      put(op.dx, m, c, gate * dy);
    }
    op.dlogits.as<float>()[m] = float(gate * (1 - gate) * dot);
  }
}

void compute(const AddExpertBias& op) {
  over_expert_rows(op, [&](int64_t e, int64_t r) {
    const double weight = op.weights ? double(op.weights.as<float>()[slot_of(op.slots, r)]) : 1.0;
    for (int64_t c = 0; c < op.x.cols; ++c)
      put(op.x, r, c, get(op.x, r, c) + weight * double(get(op.bias, e, c)));
  });
}

void compute(const ExpertBiasBackward& op) {
  std::vector<double> sums(size_t(op.dbias.count()), 0);
  over_expert_rows(op, [&](int64_t e, int64_t r) {
    const double weight = op.weights ? double(op.weights.as<float>()[slot_of(op.slots, r)]) : 1.0;
    for (int64_t c = 0; c < op.dy.cols; ++c) sums[size_t(e * op.dy.cols + c)] += weight * get(op.dy, r, c);
  });
  for (size_t i = 0; i < sums.size(); ++i) {
    float& to = op.dbias.as<float>()[i];
    to = float(op.accumulate ? double(to) + sums[i] : sums[i]);
  }
}

void compute(const ExpertBiasWeights& op) {
  over_expert_rows(op, [&](int64_t e, int64_t r) {
    double dot = 0;
    for (int64_t c = 0; c < op.dy.cols; ++c) dot += double(get(op.dy, r, c)) * double(get(op.bias, e, c));
    float& to = op.dweights.as<float>()[slot_of(op.slots, r)];
    to = float(double(to) + dot);
  });
}

void compute(const GroupedForward& op) {
  over_experts(op, [&](int64_t e, int64_t first, int64_t n) {
    const auto w = weight_of(op.w, e, op.experts());
    compute(LinearForward{.x = op.x.row_range(first, n), .w = w.get(), .y = op.y.row_range(first, n)});
  });
}

void compute(const GroupedBackwardInput& op) {
  over_experts(op, [&](int64_t e, int64_t first, int64_t n) {
    const auto w = weight_of(op.w, e, op.experts());
    compute(
        LinearBackwardInput{.dy = op.dy.row_range(first, n), .w = w.get(), .dx = op.dx.row_range(first, n)});
  });
}

void compute(const GroupedBackwardWeight& op) {
  over_experts(op, [&](int64_t e, int64_t first, int64_t n) {
    compute(LinearBackwardWeight{.dy = op.dy.row_range(first, n),
                                 .x = op.x.row_range(first, n),
                                 .dw = op.dw.row_range(e * op.dy.cols, op.dy.cols),
                                 .accumulate = op.accumulate});
  });
}

}  // namespace trainctl::kernels::reference
