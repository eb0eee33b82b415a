#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"

namespace trainctl::kernels::cuda {

namespace {

template <typename From, typename To>
struct CopyElement {
  using In = From;
  using Out = To;
  static constexpr int kInputs = 1, kOutputs = 1;
  static constexpr bool kMovesBits = std::is_same_v<From, To>;  // not through f32, so that a NaN keeps its bits
  View<const From> in[1];
  View<To> out[1];

  __device__ void operator()(const float (&x)[1], float (&y)[1]) const { y[0] = x[0]; }
};

template <typename T>
struct AddElement {
  using In = T;
  using Out = T;
  static constexpr int kInputs = 2, kOutputs = 1;
  static constexpr bool kMovesBits = false;
  View<const T> in[2];
  View<T> out[1];

  __device__ void operator()(const float (&x)[2], float (&y)[1]) const { y[0] = x[0] + x[1]; }
};

template <typename From, typename To>
struct AddRoundedElement {
  using In = From;
  using Out = To;
  static constexpr int kInputs = 2, kOutputs = 1;
  static constexpr bool kMovesBits = false;
  View<const From> in[2];
  View<To> out[1];

  __device__ static float operand(float x) {
    if constexpr (std::is_same_v<From, float>)
      return __uint_as_float(pack_bf16(x, 0.0f) << 16);
    else
      return x;
  }
  __device__ void operator()(const float (&x)[2], float (&y)[1]) const {
    y[0] = operand(x[0]) + operand(x[1]);
  }
};

/// kReads: `out` is an input, too.
template <bool kReads>
struct ScaledAddElement {
  using In = float;
  using Out = float;
  static constexpr int kInputs = kReads ? 2 : 1, kOutputs = 1;
  static constexpr bool kMovesBits = false;
  View<const float> in[kInputs];
  View<float> out[1];
  float alpha, beta;

  __device__ void operator()(const float (&x)[kInputs], float (&y)[1]) const {
    y[0] = __fmul_rn(alpha, x[0]);
    if constexpr (kReads) y[0] = __fadd_rn(y[0], __fmul_rn(beta, x[1]));
  }
};

/// The inputs of a tree sum, as a kernel parameter.
template <int kMost>
struct Inputs {
  const void* at[kMost];
  int n;
};

constexpr int kTreeThreads = 256;
constexpr int kLeaves = 8;  ///< inputs whose tree fits into registers

/// Elements [begin, begin + valid) of inputs first..first + kMost, those beyond n left out, added as the tree adds them. A subtree
/// over an aligned power of two of inputs is part of the whole tree, wherever the inputs end.
template <typename T, int kMost, int N, bool kWhole, int kHeld>
__device__ inline Pack<float, N> add_leaves(const Inputs<kHeld>& inputs, int first, int64_t begin, int valid) {
  Pack<T, N> raw[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (first + i < inputs.n) raw[i] = load_pack<N, kWhole>(static_cast<const T*>(inputs.at[first + i]) + begin, valid);
  }
  Pack<float, N> sums;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float level[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) level[i] = first + i < inputs.n ? raw[i][j] : 0.0f;
#pragma unroll
    for (int step = 1; step < kMost; step *= 2) {
#pragma unroll
      for (int i = 0; i + step < kMost; i += 2 * step) {
        if (first + i + step < inputs.n) level[i] += level[i + step];
      }
    }
    sums.v[j] = level[0];
  }
  return sums;
}

template <typename T, bool kWhole, int N>
__device__ inline void store_sums(void* out, int64_t begin, const Pack<float, N>& sums, int valid) {
  Pack<T, N> rounded;
  rounded.set(sums.v);
  store_pack<kWhole>(static_cast<T*>(out) + begin, rounded, valid);
}

/// At most kMost <= kLeaves inputs.
template <typename T, int kMost, int N, bool kWhole>
__device__ inline void small_tree(const Inputs<kMost>& inputs, void* out, int64_t begin, int valid) {
  store_sums<T, kWhole>(out, begin, add_leaves<T, kMost, N, kWhole>(inputs, 0, begin, valid), valid);
}

/// Groups of kLeaves inputs one after the other; waiting[l] holds the sum of 2^l groups until its neighbour is complete, like the
/// digits of a binary counter. The remaining sums are joined from the right, as in the tree.
template <typename T, int kMost, int N, bool kWhole>
__device__ inline void large_tree(const Inputs<kMost>& inputs, void* out, int64_t begin, int valid) {
  constexpr int kLevels = kMost / kLeaves <= 8 ? 4 : 9;
  static_assert((kMost / kLeaves) >> kLevels == 0);
  const int groups = (inputs.n + kLeaves - 1) / kLeaves;
  Pack<float, N> waiting[kLevels] = {};
  for (int g = 0; g < groups; ++g) {
    Pack<float, N> sums = add_leaves<T, kLeaves, N, kWhole>(inputs, g * kLeaves, begin, valid);
    bool carried = true;
#pragma unroll
    for (int l = 0; l < kLevels; ++l) {
      if (!carried) continue;
      carried = (g >> l) % 2 == 1;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (carried) sums.v[j] = waiting[l].v[j] + sums.v[j];
        else waiting[l].v[j] = sums.v[j];
      }
    }
  }
  Pack<float, N> sums{};
  bool any = false;
#pragma unroll
  for (int l = 0; l < kLevels; ++l) {
    if ((groups >> l) % 2 == 0) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) sums.v[j] = any ? waiting[l].v[j] + sums.v[j] : waiting[l].v[j];
    any = true;
  }
  store_sums<T, kWhole>(out, begin, sums, valid);
}

template <typename T, int kMost, int N>
__global__ void __launch_bounds__(kTreeThreads) tree_kernel(Inputs<kMost> inputs, void* out, int64_t count) {
  const int64_t begin = (int64_t(blockIdx.x) * kTreeThreads + threadIdx.x) * N;
  if (begin >= count) return;
  if (count - begin >= N) {
    if constexpr (kMost <= kLeaves) small_tree<T, kMost, N, true>(inputs, out, begin, N);
    else large_tree<T, kMost, N, true>(inputs, out, begin, N);
  } else {
    if constexpr (kMost <= kLeaves) small_tree<T, kMost, N, false>(inputs, out, begin, int(count - begin));
    else large_tree<T, kMost, N, false>(inputs, out, begin, int(count - begin));
  }
}

template <typename T, int kMost, int N>
void launch_tree(const Queue& queue, std::span<const void* const> inputs, void* out, int64_t count) {
  Inputs<kMost> held{};
  held.n = int(inputs.size());
  for (int i = 0; i < held.n; ++i) held.at[i] = inputs[size_t(i)];
  const auto blocks = unsigned(div_up(count, int64_t(kTreeThreads) * N));
  launch(queue, "tree_sum", tree_kernel<T, kMost, N>, blocks, kTreeThreads, 0, held, out, count);
}

/// `few` elements a thread if the tree is deep, because its levels must fit into registers.
template <typename T, int kMany, int kFew>
void tree_of_width(const Queue& queue, std::span<const void* const> inputs, void* out, int64_t count) {
  if (inputs.size() <= 2) return launch_tree<T, 2, kMany>(queue, inputs, out, count);
  if (inputs.size() <= 4) return launch_tree<T, 4, kMany>(queue, inputs, out, count);
  if (inputs.size() <= 8) return launch_tree<T, 8, kMany>(queue, inputs, out, count);
  if (inputs.size() <= 64) return launch_tree<T, 64, kFew>(queue, inputs, out, count);
  launch_tree<T, kMostTreeInputs, kFew>(queue, inputs, out, count);
}

}  // namespace

void enqueue(const Queue& queue, const Copy& op) {
  with_activation_type(op.src.dtype, [&](auto* from) {
    with_activation_type(op.dst.dtype, [&](auto* to) {
      using From = std::remove_pointer_t<decltype(from)>;
      using To = std::remove_pointer_t<decltype(to)>;
      const CopyElement<From, To> element{{view_of<const From>(op.src)}, {view_of<To>(op.dst)}};
      for_each_element(queue, "copy", element, {op.src, op.dst});
    });
  });
}

void enqueue(const Queue& queue, const Add& op) {
  with_activation_type(op.src.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const AddElement<T> element{{view_of<const T>(op.dst), view_of<const T>(op.src)}, {view_of<T>(op.dst)}};
    for_each_element(queue, "add", element, {op.src, op.dst});
  });
}

void enqueue(const Queue& queue, const AddRounded& op) {
  with_activation_type(op.left.dtype, [&](auto* from) {
    with_activation_type(op.out.dtype, [&](auto* to) {
      using From = std::remove_pointer_t<decltype(from)>;
      using To = std::remove_pointer_t<decltype(to)>;
      const AddRoundedElement<From, To> element{{view_of<const From>(op.left), view_of<const From>(op.right)},
                                                {view_of<To>(op.out)}};
      for_each_element(queue, "add_rounded", element, {op.left, op.right, op.out});
    });
  });
}

void enqueue(const Queue& queue, const ScaledAdd& op) {
  ENSURE(op.x.dtype == DType::f32);   // weights on a GPU have master weights
  const View<const float> x = view_of<const float>(op.x), sum = view_of<const float>(op.out);
  const View<float> out = view_of<float>(op.out);
  if (op.beta == 0)
    for_each_element(queue, "scaled_add", ScaledAddElement<false>{{x}, {out}, op.alpha, 0}, {op.x, op.out});
  else
    for_each_element(queue, "scaled_add", ScaledAddElement<true>{{x, sum}, {out}, op.alpha, op.beta}, {op.x, op.out});
}

void enqueue(const Queue& queue, const TreeSum& op) {
  ENSURE(!op.inputs.empty() && op.inputs.size() <= size_t(kMostTreeInputs));
  bool aligned = reinterpret_cast<uintptr_t>(op.out) % 16 == 0;
  for (const void* input : op.inputs) aligned = aligned && reinterpret_cast<uintptr_t>(input) % 16 == 0;
  with_activation_type(op.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (aligned) tree_of_width<T, 16 / int(sizeof(T)), 4>(queue, op.inputs, op.out, op.count);
    else tree_of_width<T, 1, 1>(queue, op.inputs, op.out, op.count);
  });
}

}  // namespace trainctl::kernels::cuda
