// What products in FP8 see of their operands: a block of threads for each group. Plain; no tensor core multiplies 8-bit numbers yet.
#include <algorithm>
#include <climits>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ops.h"

namespace trainctl::kernels::cuda {

namespace {

/// Of a group in one row or column, and of a larger one.
constexpr int kLineThreads = kWarpSize, kBlockThreads = 256;

/// Groups of `height` rows by `width` columns. Those of rows begin anew with each part, of `rows_of_part` rows, or with each expert.
struct Fp8Cut {
  int64_t height = 1, width = 1, rows_of_part = 0;
  const int32_t* offsets = nullptr;
  int experts = 0;

  /// The rows [begin, end) of the `number`-th group down; none: there are fewer.
  __device__ void rows_of(int64_t number, int64_t* begin, int64_t* end) const {
    if (!offsets) {
      const int64_t each = div_up(rows_of_part, height), part = number / each;
      *begin = part * rows_of_part + number % each * height;
      *end = min(*begin + height, (part + 1) * rows_of_part);
      return;
    }
    *begin = *end = 0;
    for (int e = 0; e < experts; ++e) {
      const int64_t of_expert = div_up(offsets[e + 1] - offsets[e], height);
      if (number < of_expert) {
        *begin = offsets[e] + number * height;
        *end = min(*begin + height, int64_t(offsets[e + 1]));
        return;
      }
      number -= of_expert;
    }
  }
};

/// See fp8_code: the nearest value of a format, ties to even, of one that is at most its largest.
__device__ inline float rounded_to(const Fp8Format& f, float x) {
  const float size = fabsf(x);
  const int cut = 23 - f.mantissa;
  const float normal = __uint_as_float(uint32_t(f.least + 127) << 23);
  float value;
  if (size < normal) {
    const float shift = 1.5f * __uint_as_float(uint32_t(f.least + cut + 127) << 23);
    value = __fsub_rn(__fadd_rn(size, shift), shift);
  } else {
    const uint32_t u = __float_as_uint(size);
    value = __uint_as_float((u + ((1u << (cut - 1)) - 1) + ((u >> cut) & 1u)) >> cut << cut);
  }
  return copysignf(value, x);
}

/// The NaN that hosts store, too: conversions on GPUs have another one.
__device__ inline void store_nan(float* to) { *to = __uint_as_float(0x7fc00000u); }
__device__ inline void store_nan(bf16_t* to) { *to = __ushort_as_bfloat16(0x7fc0); }

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    quantize_kernel(View<const T> x, View<T> y, int64_t cols, Fp8Format format, Fp8Cut groups) {
  __shared__ uint32_t largest;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  int64_t begin, end;
  const int64_t across = div_up(cols, groups.width), col = blockIdx.x % across * groups.width;
  groups.rows_of(blockIdx.x / across, &begin, &end);
  const int64_t width = min(groups.width, cols - col);
  const int64_t count = (end - begin) * width;
  const float infinity = __uint_as_float(0x7f800000u);
  uint32_t own = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const float size = fabsf(to_float(*x.at(begin + i / width, col + i % width)));
    if (size < infinity) own = max(own, __float_as_uint(size));
  }
  atomicMax(&largest, own);  // of integers: no order
  __syncthreads();
  const int exponent = int(largest >> 23) - 127 + ((largest & 0x7fffffu) > 0x600000u ? 1 : 0);
  const int e = max(exponent - format.greatest, kLeastScale);
  const float up = __uint_as_float(uint32_t(127 + e) << 23), down = __uint_as_float(uint32_t(127 - e) << 23);
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const int64_t r = begin + i / width, c = col + i % width;
    const float value = to_float(*x.at(r, c));
    if (fabsf(value) < infinity)
      *y.at(r, c) = from_float<T>(__fmul_rn(rounded_to(format, __fmul_rn(value, down)), up));
    else
      store_nan(y.at(r, c));
  }
}

void quantize(const Queue& queue, const char* op, const Matrix& x, const Matrix& y, Fp8 format,
              Fp8Groups groups, int64_t group, Fp8Cut cut) {
  const bool is_tall = groups == Fp8Groups::columns || groups == Fp8Groups::blocks;
  if (is_tall) cut.height = group;
  if (groups == Fp8Groups::rows || groups == Fp8Groups::blocks) cut.width = group;
  if (groups == Fp8Groups::whole) cut.height = std::max<int64_t>(1, x.rows), cut.width = x.cols;
  // Of experts each may have one group more than its rows alone would have.
  const int64_t down = cut.offsets ? div_up(x.rows, cut.height) + cut.experts
                                   : div_up(cut.rows_of_part, cut.height) * (x.rows / cut.rows_of_part);
  const int64_t all = down * div_up(x.cols, cut.width);
  ENSURE(all <= INT_MAX);
  const unsigned threads = cut.height * cut.width > kFp8Group ? kBlockThreads : kLineThreads;
  with_activation_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(queue, op, quantize_kernel<T>, unsigned(all), threads, 0, view_of<const T>(x), view_of<T>(y),
           x.cols, format_of(format), cut);
  });
}

}  // namespace

void enqueue(const Queue& queue, const Quantize& op) {
  const Fp8Cut cut{.rows_of_part = op.x.rows,
                   .offsets = op.offsets.as<const int32_t>(),
                   .experts = op.offsets ? int(op.offsets.cols) - 1 : 0};
  quantize(queue, Quantize::kName, op.x, op.y, op.format, op.groups, op.group, cut);
}

void enqueue(const Queue& queue, const QuantizeWeight& op) {
  quantize(queue, QuantizeWeight::kName, op.w, op.result(), Fp8::e4m3, op.groups, op.group,
           {.rows_of_part = op.w.rows / op.parts});
}

}  // namespace trainctl::kernels::cuda
