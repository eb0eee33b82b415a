// A mixture of experts: its router, the order of rows by expert, and products whose rows belong to experts.
// The host does not know how many rows an expert has: a grid has a block for every tile that there may be,
// and a block finds its expert in the offsets.
#include <algorithm>
#include <climits>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/moe_order.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/router.cuh"

namespace trainctl::kernels::cuda {

namespace {

// ---- router: a warp for each token, in double
// -------------------------------------------------------------------------------------------

struct RouterShape {
  int64_t tokens;
  int experts, k;
  int64_t seq_len;
  RouterScore score;
  bool renormalize;
  double scale;
  int groups, top_groups;
  __device__ bool of_each() const { return score != RouterScore::softmax; }
};
RouterShape shape_of(const Router& router, const Matrix& logits, const Matrix& ids, int64_t seq_len) {
  return {logits.rows,        int(logits.cols),     int(ids.cols), seq_len,          router.score,
          router.renormalize, double(router.scale), router.groups, router.top_groups};
}

__global__ void __launch_bounds__(kRouterWarps* kWarpSize)
    route_kernel(RouterShape r, const float* logits, const float* bias, int32_t* ids, float* weights) {
  const int64_t m = int64_t(blockIdx.x) * kRouterWarps + threadIdx.x / kWarpSize;
  if (m >= r.tokens) return;
  const int lane = int(threadIdx.x) % kWarpSize;
  const Scores s(logits + m * r.experts, r.experts, r.score, lane);
  const Values values(s, bias, r.groups, r.top_groups);
  double sum = r.of_each() ? 1e-20 : 0.0;
  int chosen = -1;
  for (int j = 0; j < r.k; ++j) {
    chosen = next_best(values, chosen < 0 ? 0.0 : values(chosen), chosen);
    sum += s(chosen);
    if (lane == 0) ids[m * r.k + j] = chosen;
  }
  __syncwarp();
  if (!r.renormalize) sum = 1;
  for (int j = lane; j < r.k; j += kWarpSize)
    weights[m * r.k + j] = float(r.scale * s(ids[m * r.k + j]) / sum);
}

/// Lane's own experts: ds of each, without what the chosen ones add.
__global__ void __launch_bounds__(kRouterWarps* kWarpSize)
    route_backward_kernel(RouterShape r, double aux, double z, const float* logits, const int32_t* ids,
                          const int32_t* counts, const float* dweights, float* dlogits) {
  const int64_t m = int64_t(blockIdx.x) * kRouterWarps + threadIdx.x / kWarpSize;
  if (m >= r.tokens) return;
  const int lane = int(threadIdx.x) % kWarpSize;
  const Scores s(logits + m * r.experts, r.experts, r.score, lane);
  const int32_t* const own = ids + m * r.k;
  const int32_t* const count = counts + m / r.seq_len * r.experts;
  double all = 0, dot = 0;
  for (int e = lane; e < r.experts; e += kWarpSize) all += s(e), dot += aux * count[e] * s(e);
  all = r.of_each() ? warp_sum(all) : 1.0;
  dot = warp_sum(dot) / all;
  double sum = 1, mean = 0;
  if (r.renormalize) {
    sum = r.of_each() ? 1e-20 : 0.0;
    for (int j = 0; j < r.k; ++j) sum += s(own[j]);
    for (int j = 0; j < r.k; ++j) mean += double(dweights[m * r.k + j]) * s(own[j]);
    mean /= sum;
  }
  const double of_all = 1 / all, of_chosen = r.scale / sum;
  const auto gradient = [&](int e) {
    double ds = (aux * count[e] - (r.of_each() ? dot : 0.0)) * of_all;
    for (int j = 0; j < r.k; ++j)
      if (own[j] == e) ds += of_chosen * (double(dweights[m * r.k + j]) - mean);
    return ds;
  };
  double through = 0;
  if (!r.of_each())
    for (int e = lane; e < r.experts; e += kWarpSize) through += gradient(e) * s(e);
  through = warp_sum(through);
  for (int e = lane; e < r.experts; e += kWarpSize) {
    const double d = s.backward(e, gradient(e), s(e), through);
    dlogits[m * r.experts + e] = float(d + 2 * z * s.lse * s.softmax(e));
  }
}

/// How many of n ids are `expert`, by a block; thread 0 has the result.
__device__ inline int count_of(const int32_t* ids, int64_t n, int expert, int* shared) {
  int count = 0;
  for (int64_t i = threadIdx.x; i < n; i += kMoeThreads) count += ids[i] == expert;
  shared[threadIdx.x] = count;
  __syncthreads();
  for (int width = kMoeThreads / 2; width > 0; width /= 2) {
    if (int(threadIdx.x) < width) shared[threadIdx.x] += shared[threadIdx.x + width];
    __syncthreads();
  }
  return shared[0];
}

/// counts[group, e] of `per_group` ids each: a block for each expert and group.
__global__ void __launch_bounds__(kMoeThreads)
    count_kernel(const int32_t* ids, int64_t per_group, int experts, int32_t* counts) {
  __shared__ int shared[kMoeThreads];
  const int expert = int(blockIdx.x);
  const int count = count_of(ids + int64_t(blockIdx.y) * per_group, per_group, expert, shared);
  if (threadIdx.x == 0) counts[int64_t(blockIdx.y) * experts + expert] = count;
}

/// The rows of each expert where it has `capacity` of each group at most: a block for each expert.
__global__ void __launch_bounds__(kMoeThreads)
    count_capped_kernel(const int32_t* ids, int64_t per_group, int groups, int capacity, int32_t* counts) {
  __shared__ int shared[kMoeThreads];
  int sum = 0;
  for (int g = 0; g < groups; ++g) {
    sum += min(count_of(ids + g * per_group, per_group, int(blockIdx.x), shared), capacity);
    __syncthreads();  // before the next one overwrites what it is read from
  }
  if (threadIdx.x == 0) counts[blockIdx.x] = sum;
}

/// A thread for each expert.
__global__ void __launch_bounds__(kMoeThreads)
    add_counts_kernel(const int32_t* counts, int64_t rows, int experts, float* sums, bool accumulate) {
  const int e = int(blockIdx.x) * kMoeThreads + int(threadIdx.x);
  if (e >= experts) return;
  int64_t count = 0;
  for (int64_t b = 0; b < rows; ++b) count += counts[b * experts + e];
  sums[e] = accumulate ? sums[e] + float(count) : float(count);
}

/// A block for each expert goes over all slots, kMoeThreads at a time, and gives those of its own the next
/// rows in order.
__global__ void __launch_bounds__(kMoeThreads)
    place_kernel(const int32_t* ids, int64_t n, const int32_t* offsets, int32_t* slots, int32_t* rows) {
  __shared__ int sums[2][kMoeThreads];
  const int expert = int(blockIdx.x);
  int next = offsets[expert];
  for (int64_t first = 0; first < n && next < offsets[expert + 1]; first += kMoeThreads) {
    const int64_t i = first + threadIdx.x;
    const bool is_own = i < n && ids[i] == expert;
    const PlaceAmong place = place_among(is_own, sums);
    if (is_own) {
      const int row = next + place.before;
      slots[row] = int32_t(i);
      rows[i] = row;
    }
    next += place.all;
  }
}

// ---- capacity: of an expert's slots those with the largest weights have rows
// ------------------------------------------------------------------------

/// Larger for a larger weight, whatever bits it has; weights null: equal for all.
__device__ inline uint32_t order_of_weight(const float* weights, int64_t slot) {
  if (!weights) return 0;
  const uint32_t bits = __float_as_uint(weights[slot]);
  return bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
}

/// The slots of an expert with a larger order than `least` have a row, and the first `equal` of those with
/// this one.
struct Cut {
  uint32_t least;
  int equal;
};

/// Finds the order of the capacity-th largest weight from its highest byte to its lowest: each time the byte
/// at which the slots that agree in the higher ones are enough.
__device__ inline Cut cut_of(const int32_t* ids, const float* weights, int64_t n, int expert, int capacity) {
  constexpr int kBytes = 256;
  __shared__ int with_byte[kBytes];
  __shared__ Cut cut;
  if (threadIdx.x == 0) cut = {0, capacity};
  uint32_t known = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int b = int(threadIdx.x); b < kBytes; b += kMoeThreads) with_byte[b] = 0;
    __syncthreads();
    const uint32_t least = cut.least;
    for (int64_t i = threadIdx.x; i < n; i += kMoeThreads) {
      const uint32_t order = order_of_weight(weights, i);
      if (ids[i] == expert && (order & known) == least) atomicAdd(&with_byte[order >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int byte = kBytes - 1;
      for (; byte > 0 && with_byte[byte] < cut.equal; --byte) cut.equal -= with_byte[byte];
      cut.least |= uint32_t(byte) << shift;
    }
    known |= uint32_t(255) << shift;
    __syncthreads();
  }
  return cut;
}

/// place_kernel where an expert has `capacity` rows of each group at most. all_rows: as many as `slots` has
/// room for.
__global__ void __launch_bounds__(kMoeThreads)
    place_capped_kernel(const int32_t* ids, const float* weights, int64_t n, int64_t per_group, int capacity,
                        const int32_t* offsets, int64_t all_rows, int32_t* slots, int32_t* rows) {
  __shared__ int sums[2][kMoeThreads];
  const int expert = int(blockIdx.x), experts = int(gridDim.x);
  int next = offsets[expert];
  for (int64_t begin = 0; begin < n; begin += per_group) {
    Cut cut = cut_of(ids + begin, weights ? weights + begin : nullptr, per_group, expert, capacity);
    for (int64_t first = begin; first < begin + per_group; first += kMoeThreads) {
      const int64_t i = first + threadIdx.x;
      const bool is_own = i < begin + per_group && ids[i] == expert;
      const uint32_t order = is_own ? order_of_weight(weights, i) : 0;
      const bool is_equal = is_own && order == cut.least;
      const PlaceAmong among_equal = place_among(is_equal, sums);
      const bool has_row = is_own && (is_equal ? among_equal.before < cut.equal : order > cut.least);
      const PlaceAmong place = place_among(has_row, sums);
      if (is_own) rows[i] = has_row ? next + place.before : -1;
      if (has_row) slots[next + place.before] = int32_t(i);
      next += place.all;
      cut.equal -= among_equal.all;
    }
  }
  if (expert == experts - 1)
    for (int64_t r = offsets[experts] + threadIdx.x; r < all_rows; r += kMoeThreads) slots[r] = -1;
}

// ---- products
// -----------------------------------------------------------------------------------------------------------------------------

constexpr int kTile = 64, kDepth = 16, kOfThread = 4;
static_assert((kTile / kOfThread) * (kTile / kOfThread) == kMoeThreads);

/// out[i, j] of a tile = the sum over `depth`, in order, of left(i, d) * right(d, j), which give 0 outside of
/// their matrices.
template <typename Left, typename Right, typename Store>
__device__ inline void multiply_tile(int64_t depth, Left left, Right right, Store store) {
  __shared__ float a[kDepth][kTile + 1], b[kDepth][kTile + 1];
  const int thread = int(threadIdx.x), i0 = thread / (kTile / kOfThread) * kOfThread,
            j0 = thread % (kTile / kOfThread) * kOfThread;
  float sums[kOfThread][kOfThread] = {};
  for (int64_t d0 = 0; d0 < depth; d0 += kDepth) {
    for (int at = thread; at < kDepth * kTile; at += kMoeThreads) {
      const int d = at / kTile, i = at % kTile;
      const bool exists = d0 + d < depth;
      a[d][i] = exists ? left(i, d0 + d) : 0.0f;
      b[d][i] = exists ? right(d0 + d, i) : 0.0f;
    }
    __syncthreads();
    for (int d = 0; d < kDepth; ++d)
      for (int i = 0; i < kOfThread; ++i)
        for (int j = 0; j < kOfThread; ++j) sums[i][j] = fmaf(a[d][i0 + i], b[d][j0 + j], sums[i][j]);
    __syncthreads();
  }
  for (int i = 0; i < kOfThread; ++i)
    for (int j = 0; j < kOfThread; ++j) store(i0 + i, j0 + j, sums[i][j]);
}

/// Rows of `left` times their expert's part of `w`, of `per_expert` rows. kByRows: those are outputs, else
/// inputs.
template <typename T, typename Out, bool kByRows>
__global__ void __launch_bounds__(kMoeThreads)
    grouped_kernel(View<const T> left, const int32_t* offsets, int experts, View<const T> w,
                   int64_t per_expert, View<Out> out, int64_t cols, int64_t depth) {
  int64_t tile = blockIdx.x;
  int expert = 0;
  for (; expert < experts; ++expert) {
    const int64_t tiles = div_up(offsets[expert + 1] - offsets[expert], kTile);
    if (tile < tiles) break;
    tile -= tiles;
  }
  if (expert == experts) return;
  const int64_t row = offsets[expert] + tile * kTile, end = offsets[expert + 1],
                col = int64_t(blockIdx.y) * kTile, first = expert * per_expert;
  multiply_tile(
      depth, [&](int i, int64_t d) { return row + i < end ? to_float(*left.at(row + i, d)) : 0.0f; },
      [&](int64_t d, int j) {
        if (col + j >= cols) return 0.0f;
        return to_float(kByRows ? *w.at(first + col + j, d) : *w.at(first + d, col + j));
      },
      [&](int i, int j, float sum) {
        if (row + i < end && col + j < cols) *out.at(row + i, col + j) = from_float<Out>(sum);
      });
}

template <typename T>
__global__ void __launch_bounds__(kMoeThreads)
    grouped_weight_kernel(View<const T> dy, View<const T> x, const int32_t* offsets, View<float> dw,
                          int64_t n, int64_t k, bool accumulate) {
  const int64_t expert = blockIdx.z, first = offsets[expert], row = int64_t(blockIdx.y) * kTile,
                col = int64_t(blockIdx.x) * kTile;
  multiply_tile(
      offsets[expert + 1] - first,
      [&](int i, int64_t d) { return row + i < n ? to_float(*dy.at(first + d, row + i)) : 0.0f; },
      [&](int64_t d, int j) { return col + j < k ? to_float(*x.at(first + d, col + j)) : 0.0f; },
      [&](int i, int j, float sum) {
        if (row + i >= n || col + j >= k) return;
        float* const to = dw.at(expert * n + row + i, col + j);
        *to = accumulate ? *to + sum : sum;
      });
}

template <bool kByRows>
void grouped(const Queue& queue, const char* name, const Matrix& left, const Matrix& offsets, const Matrix& w,
             const Matrix& out) {
  const int64_t experts = offsets.cols - 1;
  const dim3 grid(unsigned(left.rows / kTile + experts), unsigned(div_up(out.cols, kTile)));  // y has 65,535 at most
  with_activation_type(left.dtype, [&](auto* in) {
    using T = std::remove_pointer_t<decltype(in)>;
    with_activation_type(out.dtype, [&](auto* to) {
      using Out = std::remove_pointer_t<decltype(to)>;
      launch(queue, name, grouped_kernel<T, Out, kByRows>, grid, kMoeThreads, 0, view_of<const T>(left),
             offsets.as<int32_t>(), int(experts), view_of<const T>(w), w.rows / experts, view_of<Out>(out),
             out.cols, left.cols);
    });
  });
}

void count(const Queue& queue, const char* name, const Matrix& ids, int64_t groups, int64_t experts,
           int32_t* counts) {
  launch(queue, name, count_kernel, dim3(unsigned(experts), unsigned(groups)), kMoeThreads, 0,
         ids.as<int32_t>(), ids.count() / groups, int(experts), counts);
}

}  // namespace

void enqueue(const Queue& queue, const Route& op) {
  const RouterShape shape = shape_of(op.router, op.logits, op.ids, op.seq_len);
  launch(queue, Route::kName, route_kernel, unsigned(div_up(op.logits.rows, kRouterWarps)),
         kRouterWarps * kWarpSize, 0, shape, op.logits.as<float>(), op.bias.as<float>(),
         op.ids.as<int32_t>(), op.weights.as<float>());
  count(queue, Route::kName, op.ids, op.counts.rows, op.logits.cols, op.counts.as<int32_t>());
}

void enqueue(const Queue& queue, const RouteBackward& op) {
  const RouterShape shape = shape_of(op.router, op.logits, op.ids, op.seq_len);
  launch(queue, RouteBackward::kName, route_backward_kernel, unsigned(div_up(op.logits.rows, kRouterWarps)),
         kRouterWarps * kWarpSize, 0, shape, op.aux_of_slot(), double(op.z), op.logits.as<float>(),
         op.ids.as<int32_t>(), op.counts.as<int32_t>(), op.dweights.as<float>(), op.dlogits.as<float>());
}

void enqueue(const Queue& queue, const AddCounts& op) {
  const int experts = int(op.sums.cols);
  launch(queue, AddCounts::kName, add_counts_kernel, unsigned(div_up(experts, kMoeThreads)), kMoeThreads, 0,
         op.counts.as<int32_t>(), op.counts.rows, experts, op.sums.as<float>(), op.accumulate);
}

void enqueue(const Queue& queue, const SortByExpert& op) {
  auto* const offsets = op.offsets.as<int32_t>();
  const int capacity = int(std::min<int64_t>(op.capacity, INT_MAX));
  const int64_t per_group = std::max<int64_t>(1, op.ids.count() / op.groups);
  if (capacity > 0)
    launch(queue, SortByExpert::kName, count_capped_kernel, unsigned(op.experts()), kMoeThreads, 0,
           op.ids.as<int32_t>(), op.ids.count() / op.groups, int(op.groups), capacity, offsets + 1);
  else
    count(queue, SortByExpert::kName, op.ids, 1, op.experts(), offsets + 1);
  launch(queue, SortByExpert::kName, offsets_kernel, 1, 1, 0, int(op.experts()), offsets);
  if (capacity > 0)
    return launch(queue, SortByExpert::kName, place_capped_kernel, unsigned(op.experts()), kMoeThreads, 0,
                  op.ids.as<int32_t>(), op.weights.as<float>(), op.ids.count(), per_group, capacity, offsets,
                  op.slots.cols, op.slots.as<int32_t>(), op.rows.as<int32_t>());
  launch(queue, SortByExpert::kName, place_kernel, unsigned(op.experts()), kMoeThreads, 0,
         op.ids.as<int32_t>(), op.ids.count(), offsets, op.slots.as<int32_t>(), op.rows.as<int32_t>());
}

void grouped_forward(const Queue& queue, const GroupedForward& op, const Matrix& w) {
  grouped<true>(queue, GroupedForward::kName, op.x, op.offsets, w, op.y);
}

void grouped_backward_input(const Queue& queue, const GroupedBackwardInput& op, const Matrix& w) {
  grouped<false>(queue, GroupedBackwardInput::kName, op.dy, op.offsets, w, op.dx);
}

void enqueue(const Queue& queue, const GroupedBackwardWeight& op) {
  const dim3 grid(unsigned(div_up(op.x.cols, kTile)), unsigned(div_up(op.dy.cols, kTile)),
                  unsigned(op.experts()));
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, GroupedBackwardWeight::kName, grouped_weight_kernel<T>, grid, kMoeThreads, 0,
           view_of<const T>(op.dy), view_of<const T>(op.x), op.offsets.as<int32_t>(), view_of<float>(op.dw),
           op.dy.cols, op.x.cols, op.accumulate);
  });
}

}  // namespace trainctl::kernels::cuda
