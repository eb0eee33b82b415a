#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"

namespace trainctl::kernels::cuda {

namespace {

// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)), which loses nothing where tanh is near -1. With u = sqrt(2/pi) (x + 0.044715 x^3), the
// exponent to base 2 is x (kLinear + kCubic x^2). The error of fast_exp2 is 2^-22, that of its argument 2^-24 of the argument: below
// 1e-6 wherever the result is not below 1e-4 of x. __fdividef adds 2 units in the last place; the exact division would need more
// instructions than the multiprocessors can issue while memory delivers the data.
constexpr double kLog2e = 1.4426950408889634, kSqrt2OverPi = 0.7978845608028654;
constexpr float kLinear = float(-2 * kSqrt2OverPi * kLog2e), kCubic = float(-2 * kSqrt2OverPi * 0.044715 * kLog2e);

__device__ inline float sigmoid(float z) { return __fdividef(1.0f, 1.0f + fast_exp2(z * float(-kLog2e))); }

template <typename T>
struct GeluForwardElement {
  using In = T;
  using Out = T;
  static constexpr int kInputs = 1, kOutputs = 1;
  static constexpr bool kMovesBits = false;
  View<const T> in[1];
  View<T> out[1];

  __device__ void operator()(const float (&from)[1], float (&to)[1]) const {
    const float x = from[0];
    to[0] = __fdividef(x, 1.0f + fast_exp2(x * fmaf(kCubic, x * x, kLinear)));
  }
};

template <typename T>
struct GeluBackwardElement {
  using In = T;
  using Out = T;
  static constexpr int kInputs = 2, kOutputs = 1;
  static constexpr bool kMovesBits = false;
  View<const T> in[2];  ///< x, dy
  View<T> out[1];

  /// With s = 1 / (1 + exp(-2u)): gelu' = s + x s (1 - s) 2 u'.
  __device__ void operator()(const float (&from)[2], float (&to)[1]) const {
    constexpr float kSlope = float(2 * kSqrt2OverPi), kSlope3 = float(2 * kSqrt2OverPi * 3 * 0.044715);
    const float x = from[0];
    const float x2 = fminf(x * x, 400.0f);  // beyond it s is 0 or 1; an infinite square would give 0 * infinity
    const float s = __fdividef(1.0f, 1.0f + fast_exp2(x * fmaf(kCubic, x2, kLinear)));
    const float slope = fmaf(x * (s * (1.0f - s)), fmaf(kSlope3, x2, kSlope), s);
    to[0] = from[1] * slope;
  }
};

template <typename T>
struct SwigluForwardElement {
  using In = T;
  using Out = T;
  static constexpr int kInputs = 2, kOutputs = 1;
  static constexpr bool kMovesBits = false;
  View<const T> in[2];  ///< gate, up
  View<T> out[1];

  __device__ void operator()(const float (&from)[2], float (&to)[1]) const {
    const float z = from[0];
    to[0] = z * sigmoid(z) * from[1];
  }
};

template <typename T>
struct SwigluBackwardElement {
  using In = T;
  using Out = T;
  static constexpr int kInputs = 3, kOutputs = 2;
  static constexpr bool kMovesBits = false;
  View<const T> in[3];  ///< gate, up, dy
  View<T> out[2];       ///< dgate, dup

  __device__ void operator()(const float (&from)[3], float (&to)[2]) const {
    const float z = from[0], up = from[1], dy = from[2], s = sigmoid(z);
    to[0] = dy * up * (s * fmaf(z, 1.0f - s, 1.0f));
    to[1] = dy * (z * s);
  }
};

/// Pack i of the walk is a pack of `a` values of one head; its `b` values are half a head further.
template <typename T, int N>
__global__ void __launch_bounds__(kElementThreads) rope_kernel(View<T> x, Walk walk, int packs_per_half, int64_t seq_len,
                                                               const float* cos_sin, float direction) {
  const Place place = walk[int64_t(blockIdx.x) * kElementThreads + threadIdx.x];
  if (place.valid == 0) return;
  const int pack = int(place.col), head = pack / packs_per_half, half = packs_per_half * N;
  const int first = (pack - head * packs_per_half) * N;
  const int64_t position = walk.rows <= seq_len ? place.row : place.row % seq_len;
  T* const a_at = x.at(place.row, int64_t(head) * 2 * half + first);
  const float* const angle = cos_sin + position * 2 * half + first;
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
    const float sine_j = direction * sine[j];
    turned_a[j] = fmaf(a[j], cosine[j], -(b[j] * sine_j));
    turned_b[j] = fmaf(b[j], cosine[j], a[j] * sine_j);
  }
  Pack<T, N> new_a, new_b;
  new_a.set(turned_a), new_b.set(turned_b);
  store_pack<true>(a_at, new_a, N);
  store_pack<true>(a_at + half, new_b, N);
}

template <typename T, int N>
void launch_rope(const Queue& queue, Matrix x, int64_t head_dim, int64_t seq_len, const float* cos_sin, bool inverse) {
  const int64_t packs_per_half = head_dim / 2 / N;
  const Walk walk(x.rows, x.cols / head_dim * packs_per_half, 1);
  if (walk.packs == 0) return;
  launch(queue, "rope", rope_kernel<T, N>, unsigned(div_up(walk.packs, kElementThreads)), kElementThreads, 0, view_of<T>(x), walk,
         int(packs_per_half), seq_len, cos_sin, inverse ? -1.0f : 1.0f);
}

}  // namespace

void enqueue(const Queue& queue, const GeluForward& op) {
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const GeluForwardElement<T> element{{view_of<const T>(op.x)}, {view_of<T>(op.y)}};
    for_each_element(queue, "gelu_forward", element, {op.x, op.y});
  });
}

void enqueue(const Queue& queue, const GeluBackward& op) {
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const GeluBackwardElement<T> element{{view_of<const T>(op.x), view_of<const T>(op.dy)}, {view_of<T>(op.dx)}};
    for_each_element(queue, "gelu_backward", element, {op.x, op.dy, op.dx});
  });
}

void enqueue(const Queue& queue, const SwigluForward& op) {
  with_activation_type(op.gate.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const SwigluForwardElement<T> element{{view_of<const T>(op.gate), view_of<const T>(op.up)},
                                          {view_of<T>(op.y)}};
    for_each_element(queue, "swiglu_forward", element, {op.gate, op.up, op.y});
  });
}

void enqueue(const Queue& queue, const SwigluBackward& op) {
  with_activation_type(op.gate.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const SwigluBackwardElement<T> element{
        {view_of<const T>(op.gate), view_of<const T>(op.up), view_of<const T>(op.dy)},
        {view_of<T>(op.dgate), view_of<T>(op.dup)}};
    for_each_element(queue, "swiglu_backward", element, {op.gate, op.up, op.dy, op.dgate, op.dup});
  });
}

void enqueue(const Queue& queue, const Rope& op) {
  with_activation_type(op.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kWidth = 16 / int(sizeof(T));
    const bool aligned = op.head_dim / 2 % kWidth == 0 && is_pack_aligned(op.x, kWidth) &&
                         reinterpret_cast<uintptr_t>(op.cos_sin) % 16 == 0;
    if (aligned) launch_rope<T, kWidth>(queue, op.x, op.head_dim, op.seq_len, op.cos_sin, op.inverse);
    else launch_rope<T, 1>(queue, op.x, op.head_dim, op.seq_len, op.cos_sin, op.inverse);
  });
}

}  // namespace trainctl::kernels::cuda
