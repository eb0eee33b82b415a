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

void compute(const SortByExpert& op) { sort_by_expert(op); }

void compute(const GatherRows& op) {
  for (int64_t r = 0; r < op.out.rows; ++r)
    for (int64_t c = 0; c < op.out.cols; ++c)
      put(op.out, r, c, get(op.x, op.slots.as<int32_t>()[r] / op.top_k(), c));
}

void compute(const CombineRows& op) {
  const int64_t k = op.top_k();
  for (int64_t m = 0; m < op.out.rows; ++m)
    for (int64_t c = 0; c < op.out.cols; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += get(op.x, op.rows.as<int32_t>()[m * k + j], c);
      put(op.out, m, c, sum);
    }
}

void compute(const ScaleRows& op) {
  for (int64_t r = 0; r < op.y.rows; ++r) {
    const double weight = op.weights.as<float>()[op.slots.as<int32_t>()[r]];
    for (int64_t c = 0; c < op.y.cols; ++c) put(op.y, r, c, weight * get(op.x, r, c));
  }
}

void compute(const ScaleRowsBackward& op) {
  for (int64_t r = 0; r < op.dy.rows; ++r) {
    const int64_t slot = op.slots.as<int32_t>()[r];
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
