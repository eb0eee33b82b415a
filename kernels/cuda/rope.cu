#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"

namespace trainctl::kernels::cuda {

namespace {

/// What a row's angles and heads are found by.
struct Turn {
  const float* cos_sin;
  const int32_t* positions;
  int64_t seq_len;
  int head_dim, half, begin;  ///< columns of a head, pairs of it that turn, the first column of these
  float direction;     ///< -1: back

  __device__ const float* angles(int64_t row, int64_t rows) const {
    int64_t position = rows <= seq_len ? row : row % seq_len;
    if (positions) position = positions[row];
    return cos_sin + position * 2 * half;
  }
};

/// Pairs (i, i + half): pack i of the walk is a pack of `a` values of one head; its `b` values are `half`
/// further.
template <typename T, int N>
__global__ void __launch_bounds__(kElementThreads) rope_kernel(View<T> x, Walk walk, int packs_per_half, Turn turn) {
  const Place place = walk[int64_t(blockIdx.x) * kElementThreads + threadIdx.x];
  if (place.valid == 0) return;
  const int pack = int(place.col), head = pack / packs_per_half, half = turn.half;
  const int first = (pack - head * packs_per_half) * N;
  T* const a_at = x.at(place.row, int64_t(head) * turn.head_dim + turn.begin + first);
  const float* const angle = turn.angles(place.row, walk.rows) + first;
  const Pack<T, N> a = load_pack<N, true>(a_at, N), b = load_pack<N, true>(a_at + half, N);
  Pack<float, N> cosine, sine;
  if constexpr (N == 1) {
    cosine.v[0] = angle[0], sine.v[0] = angle[half];
  } else {
    cosine = load_floats<N, true>(angle, N), sine = load_floats<N, true>(angle + half, N);
  }
  float turned_a[N], turned_b[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float sine_j = turn.direction * sine[j];
    turned_a[j] = fmaf(a[j], cosine[j], -(b[j] * sine_j));
    turned_b[j] = fmaf(b[j], cosine[j], a[j] * sine_j);
  }
  Pack<T, N> new_a, new_b;
  new_a.set(turned_a), new_b.set(turned_b);
  store_pack<true>(a_at, new_a, N);
  store_pack<true>(a_at + half, new_b, N);
}

/// Pairs (2i, 2i + 1): pack i of the walk holds N / 2 pairs of one head. kWhole: packs are aligned.
template <typename T, int N, bool kWhole>
__global__ void __launch_bounds__(kElementThreads) rope_neighbours_kernel(View<T> x, Walk walk, int packs_per_head, Turn turn) {
  const Place place = walk[int64_t(blockIdx.x) * kElementThreads + threadIdx.x];
  if (place.valid == 0) return;
  const int pack = int(place.col), head = pack / packs_per_head;
  const int first = (pack - head * packs_per_head) * N;
  T* const at = x.at(place.row, int64_t(head) * turn.head_dim + turn.begin + first);
  const float* const angle = turn.angles(place.row, walk.rows) + first / 2;
  const Pack<T, N> pairs = load_pack<N, kWhole>(at, N);
  float turned[N];
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    const float cosine = angle[j / 2], sine = turn.direction * angle[turn.half + j / 2];
    turned[j] = fmaf(pairs[j], cosine, -(pairs[j + 1] * sine));
    turned[j + 1] = fmaf(pairs[j + 1], cosine, pairs[j] * sine);
  }
  Pack<T, N> out;
  out.set(turned);
  store_pack<kWhole>(at, out, N);
}

/// `columns` of each head are cut into packs of N.
template <typename T, int N>
void launch_rope(const Queue& queue, const Rope& op, int64_t columns, void (*kernel)(View<T>, Walk, int, Turn)) {
  const int64_t packs = columns / N;
  const Walk walk(op.x.rows, op.x.cols / op.head_dim * packs, 1);
  if (walk.packs == 0) return;
  const Turn turn{op.cos_sin, op.positions, op.seq_len, int(op.head_dim), int(op.turned() / 2), int(op.rotary_begin),
                  op.inverse ? -1.0f : 1.0f};
  launch(queue, "rope", kernel, unsigned(div_up(walk.packs, kElementThreads)), kElementThreads, 0, view_of<T>(op.x), walk,
         int(packs), turn);
}

}  // namespace

void enqueue(const Queue& queue, const Rope& op) {
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kWidth = 16 / int(sizeof(T));
    const int64_t columns = op.interleaved ? op.turned() : op.turned() / 2;
    const bool aligned = columns % kWidth == 0 && op.head_dim % kWidth == 0 && op.rotary_begin % kWidth == 0 && is_pack_aligned(op.x, kWidth) &&
                         reinterpret_cast<uintptr_t>(op.cos_sin) % 16 == 0;
    if (op.interleaved && aligned) launch_rope<T, kWidth>(queue, op, columns, rope_neighbours_kernel<T, kWidth, true>);
    else if (op.interleaved) launch_rope<T, 2>(queue, op, columns, rope_neighbours_kernel<T, 2, false>);
    else if (aligned) launch_rope<T, kWidth>(queue, op, columns, rope_kernel<T, kWidth>);
    else launch_rope<T, 1>(queue, op, columns, rope_kernel<T, 1>);
  });
}

}  // namespace trainctl::kernels::cuda
