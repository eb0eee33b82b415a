// Goal: a kernel means here what it means on a GPU, under every order of its threads, and its mistakes are noticed.
// Method: small kernels with known results; kernels with one mistake each, which must give wrong data under some order or end the process.
#include <cmath>
#include <cstring>

#include "kernels/cuda/device.cuh"
#include "test/emulated_gpu/support.h"

namespace trainctl::emulated_gpu {
namespace {

using Catch::Matchers::Contains;
using kernels::cuda::bf16_t;
using kernels::cuda::kFullWarp;

__global__ void block_sum_kernel(const float* in, float* out) {
  __shared__ float shared[4];
  const float sum = kernels::cuda::block_sum<128>(in[blockIdx.x * blockDim.x + threadIdx.x], shared);
  if (threadIdx.x == 77) out[blockIdx.x] = sum;
}

TEST_CASE("a block sums up under every order of its threads") {
  for (const Options& order : all_orders()) {
    Fixture gpu(order);
    std::vector<float> in(5 * 128), out(5, -1);
    for (size_t i = 0; i < in.size(); ++i) in[i] = float(i);
    gpu.run(block_sum_kernel, 5, 128, 0, in.data(), out.data());
    for (size_t b = 0; b < 5; ++b) CHECK(out[b] == float(128 * 128 * b + 127 * 64));
  }
}

__global__ void place_kernel(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += int(block * 1000 + thread);
}

TEST_CASE("every thread of every block runs once, knowing its place") {
  for (const Options& order : all_orders()) {
    Fixture gpu(order);
    std::vector<int> out(2 * 3 * 2 * 60, 0);
    gpu.run(place_kernel, dim3(2, 3, 2), dim3(5, 4, 3), 0, out.data());
    for (int i = 0; i < int(out.size()); ++i) REQUIRE(out[size_t(i)] == i / 60 * 1000 + i % 60);
  }
}

template <typename T>
__global__ void shuffle_kernel(T* out, int width) {
  const int lane = int(threadIdx.x);
  const T mine = T(100 + lane);
  out[lane] = __shfl_sync(kFullWarp, mine, lane * 3 + 1, width);
  out[32 + lane] = __shfl_up_sync(kFullWarp, mine, 3, width);
  out[64 + lane] = __shfl_down_sync(kFullWarp, mine, 5, width);
  out[96 + lane] = __shfl_xor_sync(kFullWarp, mine, 6, width);
}

template <typename T>
void check_shuffles(const Options& order) {
  for (const int width : {32, 16, 8}) {
    Fixture gpu(order);
    std::vector<T> out(128, T(0));
    gpu.run(shuffle_kernel<T>, 1, 32, 0, out.data(), width);
    for (int lane = 0; lane < 32; ++lane) {
      const int base = lane / width * width, in = lane % width;
      CHECK(out[size_t(lane)] == T(100 + base + (lane * 3 + 1) % width));
      CHECK(out[size_t(32 + lane)] == T(100 + (in >= 3 ? lane - 3 : lane)));
      CHECK(out[size_t(64 + lane)] == T(100 + (in + 5 < width ? lane + 5 : lane)));
      CHECK(out[size_t(96 + lane)] == T(100 + (lane ^ 6)));
    }
  }
}

TEST_CASE("shuffles move values between lanes") {
  for (const Options& order : all_orders()) {
    check_shuffles<int>(order);
    check_shuffles<unsigned>(order);
    check_shuffles<int64_t>(order);
    check_shuffles<float>(order);
    check_shuffles<double>(order);
  }
}

__global__ void vote_kernel(unsigned* out) {
  const unsigned odd = __ballot_sync(kFullWarp, threadIdx.x & 1);
  out[threadIdx.x] = odd;
  out[32 + threadIdx.x] = unsigned(__any_sync(kFullWarp, threadIdx.x == 40) * 2 + __all_sync(kFullWarp, threadIdx.x < 40));
  if (threadIdx.x < 8) out[64 + threadIdx.x] = __ballot_sync(0xffu, threadIdx.x < 3);
}

TEST_CASE("votes, also of a part of the warp") {
  for (const Options& order : all_orders()) {
    Fixture gpu(order);
    std::vector<unsigned> out(72, 0);
    gpu.run(vote_kernel, 1, 32, 0, out.data());
    for (size_t i = 0; i < 32; ++i) CHECK(out[i] == 0xaaaaaaaau);
    for (size_t i = 32; i < 64; ++i) CHECK(out[i] == 1);
    for (size_t i = 64; i < 72; ++i) CHECK(out[i] == 7);
  }
}

__global__ void early_exit_kernel(int* out) {
  __shared__ int seen[96];
  if (threadIdx.x >= 70) return;   // in the middle of a warp
  seen[threadIdx.x] = int(threadIdx.x);
  __syncthreads();
  int x = seen[69 - threadIdx.x];
  if (threadIdx.x >= 64) x += __shfl_xor_sync(kFullWarp, 1, 1);
  out[threadIdx.x] = x;
}

TEST_CASE("threads that have ended count as arrived") {
  for (const Options& order : all_orders()) {
    Fixture gpu(order);
    std::vector<int> out(96, -1);
    gpu.run(early_exit_kernel, 1, 96, 0, out.data());
    for (int i = 0; i < 70; ++i) CHECK(out[size_t(i)] == 69 - i + (i >= 64 ? 1 : 0));
  }
}

// ---- tensor cores and asynchronous copies -------------------------------------------------------------------------------------------

/// d [16, 8] = a [16, 16] b [16, 8] by one warp, both row-major in global memory; fragments through shared memory and ldmatrix.
__global__ void product_kernel(const bf16_t* a, const bf16_t* b, float* d) {
  namespace cuda = kernels::cuda;
  auto* const shared = cuda::dynamic_shared<bf16_t>();
  const int lane = int(threadIdx.x);
  for (int i = lane; i < 16 * 16; i += 32) shared[i] = a[i];
  for (int i = lane; i < 16 * 8; i += 32) shared[256 + i] = b[i];
  __syncthreads();
  uint32_t fragment_a[4], fragment_b[4];
  // Matrices 0 to 3: upper left, lower left, upper right, lower right quarter of a.
  cuda::ldmatrix_x4(fragment_a, shared + (lane % 16) * 16 + lane / 16 * 8);
  // Rows 0..7 and 8..15 of b, transposed; the other two repeat them.
  cuda::ldmatrix_x4_trans(fragment_b, shared + 256 + (lane % 16) * 8);
  float sum[4] = {};
  cuda::mma_bf16(sum, fragment_a, fragment_b[0], fragment_b[1]);
  const int group = lane / 4, pair = lane % 4 * 2;
  d[group * 8 + pair] = sum[0];
  d[group * 8 + pair + 1] = sum[1];
  d[(group + 8) * 8 + pair] = sum[2];
  d[(group + 8) * 8 + pair + 1] = sum[3];
}

TEST_CASE("tensor-core product of matrices loaded from shared memory") {
  for (const Options& order : all_orders()) {
    Fixture gpu(order);
    std::vector<bf16_t> a(256), b(128);
    std::vector<float> d(128, -1);
    for (size_t i = 0; i < a.size(); ++i) a[i] = __float2bfloat16_rn(float(int(i * 37 % 101) - 50));
    for (size_t i = 0; i < b.size(); ++i) b[i] = __float2bfloat16_rn(float(int(i * 53 % 97) - 48));
    gpu.run(product_kernel, 1, 32, 384 * sizeof(bf16_t), a.data(), b.data(), d.data());
    for (size_t row = 0; row < 16; ++row)
      for (size_t col = 0; col < 8; ++col) {
        float sum = 0;
        for (size_t k = 0; k < 16; ++k) sum += __bfloat162float(a[row * 16 + k]) * __bfloat162float(b[k * 8 + col]);
        CHECK(d[row * 8 + col] == sum);   // small integers: exact
      }
  }
}

/// Copies 512 bytes through shared memory and out, each thread writing out what another one has fetched.
template <bool kWait, bool kBarrier>
__global__ void copy_kernel(const int4* in, int4* out) {
  namespace cuda = kernels::cuda;
  auto* const shared = cuda::dynamic_shared<int4>();
  cuda::cp_async16(shared + threadIdx.x, in + threadIdx.x, threadIdx.x != 5);
  cuda::cp_async_commit();
  cuda::cp_async16(shared + 64 + threadIdx.x, in + 64 + threadIdx.x);
  cuda::cp_async_commit();
  if (kWait) cuda::cp_async_wait<1>();
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = shared[63 - threadIdx.x];
  out[64 + threadIdx.x] = shared[64 + threadIdx.x];   // of the group that nobody waited for
}

template <bool kWait, bool kBarrier>
bool copies(const Options& order) {
  Fixture gpu(order);
  std::vector<int4> in(128), out(128);
  for (int i = 0; i < 128; ++i) in[size_t(i)] = make_int4(i, 2 * i, 3 * i, 4 * i);
  gpu.run(copy_kernel<kWait, kBarrier>, 1, 64, 2048, in.data(), out.data());
  for (size_t i = 64; i < 128; ++i) CHECK(out[i].x == -1);   // not there yet
  in[5] = make_int4(0, 0, 0, 0);
  for (size_t i = 0; i < 64; ++i)
    if (std::memcmp(&out[i], &in[63 - i], 16) != 0) return false;
  return true;
}

TEST_CASE("asynchronous copies are there after the wait and a barrier, not before") {
  bool without_wait = true, without_barrier = true;
  for (const Options& order : all_orders()) {
    CHECK(copies<true, true>(order));
    without_wait &= copies<false, true>(order);
    without_barrier &= copies<true, false>(order);
  }
  CHECK_FALSE(without_wait);
  CHECK_FALSE(without_barrier);
}

__global__ void approximate_kernel(float* out) {
  out[0] = kernels::cuda::fast_exp2(3.5f);
  out[1] = kernels::cuda::fast_exp2(-INFINITY);
  out[2] = kernels::cuda::fast_exp2(-140.0f);
  out[3] = __uint_as_float(kernels::cuda::pack_bf16(1.0f, -2.0f));
}

TEST_CASE("2^x flushes denormals; packing puts the first number into the lower half") {
  Fixture gpu;
  std::vector<float> out(4, -1);
  gpu.run(approximate_kernel, 1, 1, 0, out.data());
  CHECK(out[0] == Approx(std::exp2(3.5f)));
  CHECK(out[1] == 0);
  CHECK(out[2] == 0);
  CHECK(__float_as_uint(out[3]) == 0xc0003f80u);
}

// ---- mistakes -----------------------------------------------------------------------------------------------------------------------

template <bool kBarrier>
__global__ void reverse_kernel(const int* in, int* out) {
  __shared__ int shared[128];
  shared[threadIdx.x] = in[threadIdx.x];
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = shared[127 - threadIdx.x];
  if (kBarrier) __syncthreads();
  shared[threadIdx.x] = -1;
}
template <bool kSyncwarp>
__global__ void neighbour_kernel(const int* in, int* out) {
  __shared__ int shared[32];
  shared[threadIdx.x] = in[threadIdx.x];
  if (kSyncwarp) __syncwarp();
  out[threadIdx.x] = shared[threadIdx.x ^ 1];
  if (kSyncwarp) __syncwarp();
  shared[threadIdx.x] = -1;
}

template <typename Kernel>
int orders_with_right_results(Kernel kernel, unsigned threads, int mirror) {
  int right = 0;
  for (const Options& order : all_orders()) {
    Fixture gpu(order);
    std::vector<int> in(threads), out(threads, -2);
    for (unsigned i = 0; i < threads; ++i) in[i] = int(i);
    gpu.run(kernel, 1, threads, 0, in.data(), out.data());
    bool equal = true;
    for (unsigned i = 0; i < threads; ++i) equal &= out[i] == int(i ^ unsigned(mirror));
    right += equal;
  }
  return right;
}

TEST_CASE("a missing barrier gives wrong data under some order") {
  const int orders = int(all_orders().size());
  CHECK(orders_with_right_results(reverse_kernel<true>, 128, 127) == orders);
  CHECK(orders_with_right_results(reverse_kernel<false>, 128, 127) < orders);
  CHECK(orders_with_right_results(neighbour_kernel<true>, 32, 1) == orders);
  CHECK(orders_with_right_results(neighbour_kernel<false>, 32, 1) < orders);
}

__global__ void two_barriers_kernel() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void barrier_and_shuffle_kernel() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __shfl_xor_sync(kFullWarp, 1, 1);
  }
}
__global__ void two_shuffles_kernel(int* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_xor_sync(kFullWarp, 1, 1);
  } else {
    out[threadIdx.x] = __shfl_xor_sync(kFullWarp, 2, 1);
  }
}
__global__ void foreign_mask_kernel() { __syncwarp(0x0000ffffu); }
__global__ void partial_mma_kernel() {
  float d[4] = {};
  const uint32_t a[4] = {};
  if (threadIdx.x < 31) kernels::cuda::mma_bf16(d, a, 0, 0);
}
__global__ void unaligned_kernel(const char* in) {
  kernels::cuda::cp_async16(kernels::cuda::dynamic_shared<char>() + 8, in);
}
__global__ void unaligned_row_kernel() {
  uint32_t r[4];
  kernels::cuda::ldmatrix_x4(r, kernels::cuda::dynamic_shared<char>() + threadIdx.x * 8);
}
__global__ void unaligned_vector_kernel(const float* in, float4* out) { *out = *reinterpret_cast<const float4*>(in + 1); }
__global__ void beyond_array_kernel(int at, int* out) {
  __shared__ int shared[8];
  shared[at] = 1;
  *out = shared[at];
}
__global__ void beyond_shared_kernel(int at) { kernels::cuda::dynamic_shared<int>()[at] = int(threadIdx.x); }

TEST_CASE("a kernel's mistakes end the process and say where") {
  for (const Options& order : all_orders()) {
    const auto message = [&](auto kernel, unsigned threads, size_t shared_bytes, auto... arguments) {
      return abort_message([&] { Fixture(order).run(kernel, dim3(2), dim3(threads), shared_bytes, arguments...); });
    };
    std::vector<int> out(64);
    CHECK_THAT(message(two_barriers_kernel, 64, 0), Contains("different barriers") && Contains("test_kernel, block (") &&
                                                        Contains("kernel_test.cpp:"));
    CHECK_THAT(message(barrier_and_shuffle_kernel, 64, 0), Contains("deadlock") && Contains("at a warp instruction") &&
                                                               Contains("at a block barrier"));
    CHECK_THAT(message(two_shuffles_kernel, 32, 0, out.data()), Contains("different warp instructions"));
    CHECK_THAT(message(foreign_mask_kernel, 32, 0), Contains("mask of a warp instruction lacks the lane"));
    CHECK_THAT(message(partial_mma_kernel, 32, 0), Contains("deadlock") || Contains("not all 32 lanes"));
    CHECK_THAT(message(unaligned_kernel, 1, 64, reinterpret_cast<const char*>(out.data())), Contains("not on 16 bytes"));
    CHECK_THAT(message(unaligned_row_kernel, 32, 1024), Contains("not on 16 bytes"));
    alignas(16) float vectors[12] = {};
    CHECK_THAT(message(unaligned_vector_kernel, 1, 0, vectors, reinterpret_cast<float4*>(vectors + 8)),
               Contains("test_kernel, block (") && Contains("a trap: a pointer without the alignment of its type"));
    CHECK_THAT(message(beyond_array_kernel, 1, 0, 8, out.data()), Contains("an index beyond an array"));
    CHECK_THAT(message(beyond_shared_kernel, 1, 40, 10), Contains("beyond the end of dynamic shared memory"));
  }
}

}  // namespace
}  // namespace trainctl::emulated_gpu
