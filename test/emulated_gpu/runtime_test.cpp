// Goal: the fake CUDA runtime orders what CUDA orders and nothing more, keeps device memory from the host, and fails on request.
// Method: each property by itself; mistakes that CUDA forgives by luck (a missing event, memory given up too early, a host access) must
// give wrong data in lazy mode or for some seed, or end the process.
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "test/emulated_gpu/support.h"

namespace trainctl::emulated_gpu {
namespace {

using Catch::Matchers::Contains;
using kernels::cuda::Queue;

TEST_CASE("work on one stream runs in order, in every mode") {
  for (const Options& mode : all_modes()) {
    reset(mode);
    {
      const StreamHandle s;
      const DeviceArray<float> a(100), b(100);
      std::vector<float> in(100, 3), out(100, -1);
      REQUIRE(cudaMemcpyAsync(a.data, in.data(), 400, cudaMemcpyHostToDevice, s.stream) == cudaSuccess);
      twice(s.stream, a.data, b.data, 100);
      REQUIRE(cudaMemsetAsync(a.data, 0, 400, s.stream) == cudaSuccess);
      REQUIRE(cudaMemcpyAsync(a.data, b.data, 200, cudaMemcpyDeviceToDevice, s.stream) == cudaSuccess);
      REQUIRE(cudaMemcpyAsync(out.data(), a.data, 400, cudaMemcpyDefault, s.stream) == cudaSuccess);
      REQUIRE(cudaStreamSynchronize(s.stream) == cudaSuccess);
      for (size_t i = 0; i < 100; ++i) REQUIRE(out[i] == (i < 50 ? 6 : 0));
      CHECK(counts(0).kernels == 1);
      CHECK(counts(0).copies == 3);
      CHECK(counts(0).pageable_copies == 2);
      CHECK(counts(0).memsets == 1);
      CHECK(launches_of("twice") == 1);
      CHECK_FALSE(leaks().empty());
    }
    CHECK(leaks().empty());
  }
}

/// Stream `first` fills, stream `second` doubles; with or without the event between them. Waits for the second alone.
bool ordered_between_streams(const Options& mode, bool with_event) {
  reset(mode);
  const StreamHandle first, second;
  const EventHandle event;
  const DeviceArray<float> a(64), b(64);
  std::vector<float> out(64, -1);
  fill(first.stream, a.data, 5, 64);
  REQUIRE(cudaEventRecord(event.event, first.stream) == cudaSuccess);
  fill(first.stream, a.data, 7, 64);   // after the event: its order against the second stream is open
  if (with_event) REQUIRE(cudaStreamWaitEvent(second.stream, event.event) == cudaSuccess);
  twice(second.stream, a.data, b.data, 64);
  REQUIRE(cudaMemcpyAsync(out.data(), b.data, 256, cudaMemcpyDeviceToHost, second.stream) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(second.stream) == cudaSuccess);
  return out[63] == 10 || out[63] == 14;
}

TEST_CASE("an event orders two streams; without it lazy mode and some seed give wrong data") {
  int wrong_seeds = 0;
  for (const Options& mode : all_modes()) {
    CHECK(ordered_between_streams(mode, true));
    const bool right = ordered_between_streams(mode, false);
    if (mode.stream_mode == StreamMode::eager) CHECK(right);
    if (mode.stream_mode == StreamMode::lazy) CHECK_FALSE(right);
    wrong_seeds += mode.stream_mode == StreamMode::random && !right;
  }
  CHECK(wrong_seeds > 0);
}

TEST_CASE("an event orders only what was given before it, and a later record moves it") {
  std::set<float> seen;
  for (const Options& mode : all_modes()) {
    reset(mode);
    const StreamHandle first, second;
    const EventHandle event;
    const DeviceArray<float> a(64), b(64);
    CHECK(cudaEventQuery(event.event) == cudaSuccess);                            // never recorded: reached
    CHECK(cudaStreamWaitEvent(second.stream, event.event) == cudaSuccess);
    float out = -1;
    fill(first.stream, a.data, 5, 64);
    REQUIRE(cudaEventRecord(event.event, first.stream) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(second.stream, event.event) == cudaSuccess);     // waits for the mark of now
    fill(first.stream, a.data, 7, 64);
    REQUIRE(cudaEventRecord(event.event, first.stream) == cudaSuccess);
    twice(second.stream, a.data, b.data, 64);
    REQUIRE(cudaMemcpyAsync(&out, b.data, 4, cudaMemcpyDeviceToHost, second.stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(second.stream) == cudaSuccess);
    seen.insert(out);
    REQUIRE(cudaEventSynchronize(event.event) == cudaSuccess);
    REQUIRE(cudaMemcpyAsync(&out, a.data, 4, cudaMemcpyDeviceToHost, second.stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(second.stream) == cudaSuccess);
    CHECK(out == 7);
  }
  CHECK(seen == std::set<float>{10, 14});   // both orders occur
}

TEST_CASE("lazy mode does only what is awaited; queries go on by themselves") {
  reset(Options{});
  const StreamHandle first, second;
  const EventHandle timed(cudaEventDefault), end(cudaEventDefault);
  const DeviceArray<float> a(64);
  fill(first.stream, a.data, 1, 64);
  fill(second.stream, a.data, 2, 64);
  CHECK(counts(0).kernels == 0);
  REQUIRE(cudaStreamSynchronize(first.stream) == cudaSuccess);
  CHECK(counts(0).kernels == 1);
  CHECK(cudaStreamQuery(first.stream) == cudaSuccess);
  REQUIRE(cudaEventRecord(timed.event, second.stream) == cudaSuccess);
  REQUIRE(cudaEventRecord(end.event, second.stream) == cudaSuccess);
  float ms = -1;
  CHECK(cudaEventElapsedTime(&ms, timed.event, end.event) == cudaErrorNotReady);
  CHECK(cudaEventQuery(end.event) == cudaErrorNotReady);
  for (int i = 0; i < 10 && cudaEventQuery(end.event) == cudaErrorNotReady; ++i) continue;
  CHECK(cudaEventQuery(end.event) == cudaSuccess);
  CHECK(counts(0).kernels == 2);
  CHECK(cudaEventElapsedTime(&ms, timed.event, end.event) == cudaSuccess);
  CHECK(ms >= 0);
}

TEST_CASE("host memory of an asynchronous copy is read and written when the copy runs") {
  reset(Options{});
  const StreamHandle s;
  const DeviceArray<float> a(4);
  float in = 1, out = -1;
  REQUIRE(cudaMemcpyAsync(a.data, &in, 4, cudaMemcpyHostToDevice, s.stream) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(&out, a.data, 4, cudaMemcpyDeviceToHost, s.stream) == cudaSuccess);
  in = 2;   // too early: the copy has not run
  CHECK(out == -1);
  REQUIRE(cudaStreamSynchronize(s.stream) == cudaSuccess);
  CHECK(out == 2);
}

TEST_CASE("a destroyed stream still does its work; a device waits for all its streams") {
  reset(Options{.devices = {DeviceOptions{}, DeviceOptions{}}});
  const DeviceArray<float> a(64);
  const EventHandle event;
  const StreamHandle other;
  {
    const StreamHandle s;
    fill(s.stream, a.data, 4, 64);
    REQUIRE(cudaEventRecord(event.event, s.stream) == cudaSuccess);
  }
  REQUIRE(cudaStreamWaitEvent(other.stream, event.event) == cudaSuccess);
  float out = -1;
  REQUIRE(cudaMemcpyAsync(&out, a.data, 4, cudaMemcpyDeviceToHost, other.stream) == cudaSuccess);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(out == -1);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(out == 4);
}

// ---- memory -------------------------------------------------------------------------------------------------------------------------

TEST_CASE("memory: garbage at first, limited, counted, aligned") {
  reset(Options{.devices = {{.memory_bytes = 1 << 20}, {.memory_bytes = 2 << 20}}});
  const StreamHandle s;
  size_t free_bytes = 0, total_bytes = 0;
  {
    const DeviceArray<float> a(1000);
    CHECK(reinterpret_cast<uintptr_t>(a.data) % 256 == 0);
    std::vector<float> out(1000, 0);
    REQUIRE(cudaMemcpyAsync(out.data(), a.data, 4000, cudaMemcpyDeviceToHost, s.stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(s.stream) == cudaSuccess);
    for (const float x : out) REQUIRE(x != x);
    REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
    CHECK(total_bytes == 1 << 20);
    CHECK(free_bytes == (1 << 20) - 4096);
    void* p = nullptr;
    CHECK(cudaMalloc(&p, (1 << 20) - 4095) == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaMalloc(&p, (1 << 20) - 4096) == cudaSuccess);
    CHECK(cudaFree(p) == cudaSuccess);
    CHECK(cudaFree(p) == cudaErrorInvalidValue);
    cudaPointerAttributes where{};
    REQUIRE(cudaPointerGetAttributes(&where, a.data + 1) == cudaSuccess);
    CHECK(where.type == cudaMemoryTypeDevice);
    CHECK(where.device == 0);
  }
  CHECK(counts(0).allocated_bytes == 0);
  CHECK(counts(0).peak_allocated_bytes == 1 << 20);
  CHECK(counts(1).peak_allocated_bytes == 0);
  void* host = nullptr;
  REQUIRE(cudaHostAlloc(&host, 100, cudaHostAllocDefault) == cudaSuccess);
  CHECK(pinned_bytes() == 100);
  cudaPointerAttributes where{};
  REQUIRE(cudaPointerGetAttributes(&where, host) == cudaSuccess);
  CHECK(where.type == cudaMemoryTypeHost);
  REQUIRE(cudaPointerGetAttributes(&where, &where) == cudaSuccess);
  CHECK(where.type == cudaMemoryTypeUnregistered);
  CHECK(leaks() == "stream 1 of device 0\n100 bytes of pinned host memory\n");
  CHECK(cudaFreeHost(host) == cudaSuccess);
}

TEST_CASE("copies that leave their allocation or go the wrong way are refused") {
  reset(Options{});
  const StreamHandle s;
  const DeviceArray<char> a(100), b(100);
  char host[200] = {};
  CHECK(cudaMemcpyAsync(a.data, host, 101, cudaMemcpyHostToDevice, s.stream) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(host, a.data + 50, 51, cudaMemcpyDefault, s.stream) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(a.data, b.data, 10, cudaMemcpyHostToDevice, s.stream) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(a.data, host, 10, cudaMemcpyDeviceToHost, s.stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(host, 0, 10, s.stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(a.data, 0, 101, s.stream) == cudaErrorInvalidValue);
}

__global__ void poke_kernel(float* p, int64_t at) { p[at] = 1; }

TEST_CASE("host code that touches device memory, and kernels that leave theirs, end the process") {
  reset(Options{.devices = {DeviceOptions{}, DeviceOptions{}}});
  const auto poke = [](float* p, int64_t at) {
    const StreamHandle s;
    kernels::cuda::launch(Queue{s.stream}, "poke", poke_kernel, 1, 1, 0, p, at);
    cudaStreamSynchronize(s.stream);
  };
  CHECK_THAT(abort_message([] { *const_cast<volatile float*>(DeviceArray<float>(10).data) = 1; }),
             Contains("host code touched memory of device 0") && Contains("byte 0 of an allocation of 40 bytes"));
  CHECK_THAT(abort_message([&] {
               const DeviceArray<float> a(64);
               poke(a.data, 3);
               *const_cast<volatile float*>(a.data + 3) = 1;   // closed again after a kernel ran
             }),
             Contains("host code touched memory of device 0"));
  CHECK_THAT(abort_message([&] { poke(DeviceArray<float>(64).data, 64); }), Contains("emulated GPU: poke, block (0, 0, 0)"));
  CHECK_THAT(abort_message([&] {
               const DeviceArray<float> a(64);
               poke(a.data, 64);
             }),
             Contains("emulated GPU: poke, block (0, 0, 0), thread (0, 0, 0) touched memory of device 0") &&
                 Contains("byte 256 from the start of an allocation of 256 bytes"));
  CHECK_THAT(abort_message([&] {
               const DeviceArray<float> a(63);
               poke(a.data, 63);   // within the last 256 bytes: seen when it is freed
             }),
             Contains("a write of device 0 beside an allocation of 252 bytes, at byte 252"));
  CHECK_THAT(abort_message([&] {
               const DeviceArray<float> a(63);
               poke(a.data, -1);
             }),
             Contains("a write of device 0 beside an allocation of 252 bytes, at byte -4"));
  CHECK_THAT(abort_message([&] {
               float* freed = nullptr;
               REQUIRE(cudaMalloc(&freed, 4096) == cudaSuccess);
               REQUIRE(cudaFree(freed) == cudaSuccess);
               poke(freed, 0);
             }),
             Contains("emulated GPU: poke, block (0, 0, 0)") && Contains("memory of device 0"));
  CHECK_THAT(abort_message([&] {
               const DeviceArray<float> a(64);
               cudaSetDevice(1);
               poke(a.data, 0);
             }),
             Contains("poke, block (0, 0, 0), thread (0, 0, 0) touched memory of device 0") &&
                 Contains("the kernel runs on another device"));
  CHECK_THAT(abort_message([&] { poke(nullptr, 5); }), Contains("poke, block (0, 0, 0), thread (0, 0, 0): bad address"));
}

// ---- what is refused ----------------------------------------------------------------------------------------------------------------

__global__ void empty_kernel() {}

cudaError_t try_launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, empty_kernel);
}

TEST_CASE("launches beyond the device's limits, on the default stream or for another device are refused") {
  reset(Options{.devices = {DeviceOptions{}, {.name = "Emulated A100", .major = 8, .minor = 0}}});
  const StreamHandle s;
  CHECK(try_launch(s.stream, 1, 1024, 0) == cudaSuccess);
  CHECK(try_launch(s.stream, 1, 1025, 0) == cudaErrorInvalidConfiguration);
  CHECK(try_launch(s.stream, 1, dim3(1, 1, 65), 0) == cudaErrorInvalidConfiguration);
  CHECK(try_launch(s.stream, dim3(1, 65536), 1, 0) == cudaErrorInvalidConfiguration);
  CHECK(try_launch(s.stream, 0, 1, 0) == cudaErrorInvalidConfiguration);
  CHECK(try_launch(nullptr, 1, 1, 0) == cudaErrorInvalidResourceHandle);
  CHECK(try_launch(s.stream, 1, 1, 49153) == cudaErrorInvalidValue);
  const auto* const kernel = reinterpret_cast<const void*>(empty_kernel);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10) == cudaSuccess);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (227 << 10) + 1) == cudaErrorInvalidValue);
  CHECK(try_launch(s.stream, 1, 1, 227 << 10) == cudaSuccess);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  CHECK(try_launch(s.stream, 1, 1, 0) == cudaErrorInvalidResourceHandle);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10) == cudaErrorInvalidValue);
  const EventHandle event;
  CHECK(cudaEventRecord(event.event, s.stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(event.event) == cudaErrorInvalidResourceHandle);
  CHECK(cudaMemsetAsync(nullptr, 0, 4) == cudaErrorInvalidResourceHandle);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  int device = -1;
  cudaError_t seen = cudaErrorUnknown;
  std::thread([&] {
    cudaGetDevice(&device);
    seen = cudaPeekAtLastError();
  }).join();
  CHECK(device == 0);   // device and error are each thread's own
  CHECK(seen == cudaSuccess);
}

TEST_CASE("devices tell what the test says they are") {
  reset(Options{.devices = {DeviceOptions{}, {.name = "Two", .memory_bytes = 5 << 20, .multiprocessors = 7, .major = 8, .minor = 0}}});
  int count = 0, value = 0;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 2);
  cudaDeviceProp p{};
  REQUIRE(cudaGetDeviceProperties(&p, 1) == cudaSuccess);
  CHECK(std::string(p.name) == "Two");
  CHECK(p.totalGlobalMem == 5 << 20);
  CHECK(p.multiProcessorCount == 7);
  CHECK(p.major * 10 + p.minor == 80);
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
  CHECK(value == 9);
  CHECK(cudaGetDeviceProperties(&p, 2) == cudaErrorInvalidDevice);
  char id[16];
  REQUIRE(cudaDeviceGetPCIBusId(id, sizeof id, 1) == cudaSuccess);
  CHECK(std::string(id) == "0000:02:00.0");
  reset(Options{.devices = {}});
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  CHECK(cudaSetDevice(0) == cudaErrorNoDevice);
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreate(&stream) == cudaErrorNoDevice);
}

// ---- failures on request ------------------------------------------------------------------------------------------------------------

TEST_CASE("the n-th call fails as told, once") {
  reset(Options{});
  fail_call("cudaMalloc", 2, cudaErrorUnknown);
  void *a = nullptr, *b = nullptr;
  CHECK(cudaMalloc(&a, 4) == cudaSuccess);
  CHECK(cudaMalloc(&b, 4) == cudaErrorUnknown);
  CHECK(cudaMalloc(&b, 4) == cudaSuccess);
  CHECK(cudaFree(a) == cudaSuccess);
  CHECK(cudaFree(b) == cudaSuccess);
}

TEST_CASE("a kernel that fails leaves its device failed for every thread, and no other") {
  for (const Options& mode : all_modes()) {
    Options options = mode;
    options.devices.resize(2);
    reset(options);
    const StreamHandle s;
    const DeviceArray<float> a(64);
    fail_kernel("fill", 2, cudaErrorIllegalAddress);
    fill(s.stream, a.data, 1, 64);
    fill(s.stream, a.data, 2, 64);
    CHECK(cudaStreamSynchronize(s.stream) == cudaErrorIllegalAddress);
    CHECK(cudaStreamSynchronize(s.stream) == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);   // stays
    void* p = nullptr;
    cudaError_t elsewhere = cudaSuccess;
    std::thread([&] { elsewhere = cudaMalloc(&p, 4); }).join();
    CHECK(elsewhere == cudaErrorIllegalAddress);
    CHECK(try_launch(s.stream, 1, 1, 0) == cudaErrorIllegalAddress);
    CHECK(cudaSetDevice(1) == cudaSuccess);
    CHECK(cudaMalloc(&p, 4) == cudaSuccess);
    CHECK(cudaFree(p) == cudaSuccess);
    CHECK(cudaSetDevice(0) == cudaSuccess);
    CHECK(counts(0).kernels == 1);
  }
}

TEST_CASE("a hung kernel holds its stream until it is released, not the others") {
  for (const Options& mode : all_modes()) {
    reset(mode);
    const StreamHandle hung, other;
    const DeviceArray<float> a(64), b(64);
    const EventHandle event;
    hang_kernel("fill", 1);
    fill(hung.stream, a.data, 1, 64);
    REQUIRE(cudaEventRecord(event.event, hung.stream) == cudaSuccess);
    fill(other.stream, b.data, 2, 64);
    CHECK(cudaStreamSynchronize(other.stream) == cudaSuccess);
    for (int i = 0; i < 20; ++i) CHECK(cudaEventQuery(event.event) == cudaErrorNotReady);
    cudaError_t waited = cudaErrorUnknown;
    std::thread waiter([&] { waited = cudaEventSynchronize(event.event); });
    release_hung();
    waiter.join();
    CHECK(waited == cudaSuccess);
    CHECK(counts(0).kernels == 2);
  }
}

TEST_CASE("a wait beyond the limit ends the process and says for what") {
  reset(Options{.wait_limit_ms = 20});
  const StreamHandle s;
  const DeviceArray<float> a(64);
  fill(s.stream, a.data, 1, 64);
  hang_stream(s.stream);
  CHECK_THAT(abort_message([&] { cudaStreamSynchronize(s.stream); }),
             Contains("a wait for stream 1 of device 0 took longer than 20 ms") && Contains("1 to do, first fill, hung"));
  release_hung();
}

}  // namespace
}  // namespace trainctl::emulated_gpu
