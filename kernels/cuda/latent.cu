// Keys and values of latent attention. A thread has a pack of columns of a head where heads are made of whole
// packs, else one column; what all heads share is summed by a thread for each of its columns, heads in order.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"

namespace trainctl::kernels::cuda {

namespace {

/// Channels of a head: its own of a key, of a whole key, of a value.
struct HeadShape {
  int own, dim, width;
};

/// Column `place.col` of a row of heads of `columns` columns each.
struct HeadColumn {
  int64_t head;
  int col;
  __device__ HeadColumn(const Place& place, int columns)
      : head(place.col / columns), col(int(place.col - head * columns)) {}
};

template <typename T, int N>
__global__ void __launch_bounds__(kElementThreads)
    expand_keys_kernel(View<const T> kv, View<const T> shared, View<T> k, View<T> v, HeadShape s, Walk walk) {
  const Place place = walk[int64_t(blockIdx.x) * kElementThreads + threadIdx.x];
  if (place.valid == 0) return;
  const HeadColumn at(place, s.dim);
  const int64_t from = at.head * (s.own + s.width);
  const T* const key = at.col < s.own ? kv.at(place.row, from + at.col) : shared.at(place.row, at.col - s.own);
  store_pack<true>(k.at(place.row, place.col), load_pack<N, true>(key, N), N);
  Pack<T, N> value{};
  if (at.col < s.width) value = load_pack<N, true>(kv.at(place.row, from + s.own + at.col), N);
  store_pack<true>(v.at(place.row, place.col), value, N);
}

template <typename T, int N>
__global__ void __launch_bounds__(kElementThreads)
    expand_keys_backward_kernel(View<const T> k, View<const T> v, View<T> kv, HeadShape s, Walk walk) {
  const Place place = walk[int64_t(blockIdx.x) * kElementThreads + threadIdx.x];
  if (place.valid == 0) return;
  const HeadColumn at(place, s.own + s.width);
  const int64_t from = at.head * s.dim;
  const T* const source = at.col < s.own ? k.at(place.row, from + at.col) : v.at(place.row, from + at.col - s.own);
  store_pack<true>(kv.at(place.row, place.col), load_pack<N, true>(source, N), N);
}

template <typename T>
__global__ void __launch_bounds__(kElementThreads)
    shared_keys_gradient_kernel(View<const T> k, View<T> shared, HeadShape s, int heads, Walk walk) {
  const Place place = walk[int64_t(blockIdx.x) * kElementThreads + threadIdx.x];
  if (place.valid == 0) return;
  float sum[1] = {0};
  for (int h = 0; h < heads; ++h)
    sum[0] += load_pack<1, true>(k.at(place.row, int64_t(h) * s.dim + s.own + place.col), 1)[0];
  Pack<T, 1> rounded;
  rounded.set(sum);
  store_pack<true>(shared.at(place.row, place.col), rounded, 1);
}

unsigned blocks_of(const Walk& walk) {
  return unsigned(div_up(walk.packs, kElementThreads));
}

HeadShape shape_of_heads(const auto& op) {
  return {int(op.own_dim()), int(op.head_dim()), int(op.value_dim())};
}
/// Whether the parts of heads begin and end with packs of n elements in each of these.
bool has_whole_parts(const HeadShape& s, std::initializer_list<Matrix> matrices, int n) {
  bool whole = s.own % n == 0 && s.dim % n == 0 && s.width % n == 0;
  for (const Matrix& m : matrices) whole = whole && is_pack_aligned(m, n);
  return whole;
}

template <typename T, int N>
void expand(const Queue& queue, const ExpandKeys& op, const HeadShape& s) {
  const Walk walk(op.k.rows, op.k.cols, N);
  launch(queue, "expand_keys", expand_keys_kernel<T, N>, blocks_of(walk), kElementThreads, 0, view_of<const T>(op.kv),
         view_of<const T>(op.shared), view_of<T>(op.k), view_of<T>(op.v), s, walk);
}
template <typename T, int N>
void gather_gradients(const Queue& queue, const ExpandKeysBackward& op, const HeadShape& s) {
  const Walk walk(op.kv.rows, op.kv.cols, N);
  launch(queue, "expand_keys_backward", expand_keys_backward_kernel<T, N>, blocks_of(walk), kElementThreads, 0,
         view_of<const T>(op.k), view_of<const T>(op.v), view_of<T>(op.kv), s, walk);
}

}  // namespace

void enqueue(const Queue& queue, const ExpandKeys& op) {
  with_activation_type(op.k.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kWidth = 16 / int(sizeof(T));
    const HeadShape s = shape_of_heads(op);
    if (has_whole_parts(s, {op.kv, op.shared, op.k, op.v}, kWidth)) expand<T, kWidth>(queue, op, s);
    else expand<T, 1>(queue, op, s);
  });
}

void enqueue(const Queue& queue, const ExpandKeysBackward& op) {
  with_activation_type(op.k.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kWidth = 16 / int(sizeof(T));
    const HeadShape s = shape_of_heads(op);
    if (has_whole_parts(s, {op.k, op.v, op.kv}, kWidth)) gather_gradients<T, kWidth>(queue, op, s);
    else gather_gradients<T, 1>(queue, op, s);
    const Walk walk(op.shared.rows, op.shared.cols, 1);
    launch(queue, "expand_keys_backward", shared_keys_gradient_kernel<T>, blocks_of(walk), kElementThreads, 0,
           view_of<const T>(op.k), view_of<T>(op.shared), s, int(op.heads), walk);
  });
}

}  // namespace trainctl::kernels::cuda
