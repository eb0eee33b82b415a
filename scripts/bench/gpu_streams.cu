// What streams of one GPU do to each other: how many hardware queues they share, what blocks that spin (as
// NCCL's do while a message has not come) cost a matrix product, how long dependent small kernels wait next to
// products with and without priority, and what a call of NCCL costs the host. One JSON object a line.
//
//   bench_gpu_streams [queues | spin | hops | self]     nothing: all
//
// parallel/README.md says what each number decides.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "kernels/device.h"
#include "parallel/nccl_api.h"

namespace {

using namespace trainctl;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "bench_gpu_streams: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

__global__ void spin_kernel(const volatile int* flag) {
  if (threadIdx.x == 0)
    while (*flag == 0) __nanosleep(200);
  __syncthreads();
}
__global__ void mark_kernel(volatile int* done) { *done = 1; }
__global__ void add_kernel(float* x) { x[threadIdx.x] += 1; }

/// Host memory that the GPU reads and writes.
struct Flags {
  explicit Flags(int count) {
    must(cudaHostAlloc(reinterpret_cast<void**>(&host), size_t(count) * sizeof(int), cudaHostAllocMapped),
         "cudaHostAlloc");
    std::memset(host, 0, size_t(count) * sizeof(int));
    must(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device), host, 0), "cudaHostGetDevicePointer");
  }
  ~Flags() { (void)cudaFreeHost(host); }
  volatile int& operator[](int i) { return host[i]; }
  int *host = nullptr, *device = nullptr;
};

cudaStream_t make_stream(int priority = 0) {
  int least = 0, greatest = 0;
  must(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities");
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, std::max(greatest, least - priority)),
       "stream");
  return stream;
}

/// A stream spins, with a kernel behind it that cannot run yet; which others come to their ends? Streams that
/// do not share its queue.
void queues() {
  constexpr int kStreams = 40;
  std::vector<cudaStream_t> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(make_stream());
  Flags flags(2 + kStreams);
  int held = 0, queues = 0;
  for (int i = 0; i < kStreams; ++i) {
    for (int f = 0; f < 2 + kStreams; ++f) flags[f] = 0;
    spin_kernel<<<1, 32, 0, streams[size_t(i)]>>>(flags.device);
    mark_kernel<<<1, 1, 0, streams[size_t(i)]>>>(flags.device + 1);
    for (int j = 0; j < kStreams; ++j)
      if (j != i) mark_kernel<<<1, 1, 0, streams[size_t(j)]>>>(flags.device + 2 + j);
    const auto unfinished = [&] {
      int n = 0;
      for (int j = 0; j < kStreams; ++j) n += j != i && flags[2 + j] == 0;
      return n;
    };
    for (const auto begin = Clock::now(); unfinished() > 0 && seconds_since(begin) < 0.1;) {
    }
    held += unfinished();
    // The first stream of each queue counts it.
    bool is_first = true;
    for (int j = 0; j < i; ++j) is_first &= flags[2 + j] != 0;
    queues += is_first;
    flags[0] = 1;
    must(cudaDeviceSynchronize(), "queues");
  }
  for (cudaStream_t stream : streams) (void)cudaStreamDestroy(stream);
  std::printf("{\"part\":\"queues\",\"streams\":%d,\"max_connections\":%s,\"queues\":%d,\"held_pairs\":%d}\n",
              kStreams, std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), queues, held);
}

/// A product of a layer of an 8B model.
class Product {
 public:
  explicit Product(kernels::Backend& backend) : backend_(backend), stream_(backend.create_stream()) {
    for (const int64_t count : {kRows * kIn, kIn * kOut, kRows * kOut})
      memory_.push_back(backend.allocate(size_t(count) * 2));
    packed_ = backend.make_packed(kOut, kIn, DType::bf16);
    const kernels::Matrix w = matrix(1, kOut, kIn);
    backend.run(*stream_, kernels::Pack{.w = w, .packed = packed_.get()});
    stream_->synchronize();
  }
  void give() {
    backend_.run(*stream_, kernels::LinearForward{
                               .x = matrix(0, kRows, kIn), .w = packed_.get(), .y = matrix(2, kRows, kOut)});
  }
  kernels::Stream& stream() { return *stream_; }
  static double flops() { return 2.0 * kRows * kIn * kOut; }

 private:
  static constexpr int64_t kRows = 8192, kIn = 4096, kOut = 4096;
  kernels::Matrix matrix(size_t i, int64_t rows, int64_t cols) {
    return kernels::matrix(memory_[i]->data(), DType::bf16, rows, cols);
  }
  kernels::Backend& backend_;
  std::unique_ptr<kernels::Stream> stream_;
  std::vector<std::unique_ptr<kernels::Buffer>> memory_;
  std::unique_ptr<kernels::PackedWeight> packed_;
};

double seconds_of_products(Product& product, int count) {
  product.stream().synchronize();
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i) product.give();
  product.stream().synchronize();
  return seconds_since(begin) / count;
}

void spin(kernels::Backend& backend) {
  Product product(backend);
  (void)seconds_of_products(product, 50);
  Flags flag(1);
  cudaStream_t other = make_stream();
  for (const int blocks : {0, 4, 8, 16, 32}) {
    flag[0] = 0;
    if (blocks > 0) spin_kernel<<<blocks, 640, 0, other>>>(flag.device);
    const double seconds = seconds_of_products(product, 200);
    flag[0] = 1;
    must(cudaStreamSynchronize(other), "spin");
    std::printf("{\"part\":\"spin\",\"spinning_blocks\":%d,\"us\":%.1f,\"tflops\":%.1f}\n", blocks,
                seconds * 1e6, Product::flops() / seconds * 1e-12);
  }
  (void)cudaStreamDestroy(other);
}

/// Two streams hand small kernels to each other while a third one computes products.
void hops(kernels::Backend& backend) {
  constexpr int kHops = 200;
  Product product(backend);
  float* x = nullptr;
  must(cudaMalloc(reinterpret_cast<void**>(&x), 1024), "cudaMalloc");
  const double alone = seconds_of_products(product, 200);
  for (const bool busy : {false, true})
    for (const int priority : {0, 1, 2}) {
      cudaStream_t two[2] = {make_stream(priority), make_stream(priority)};
      cudaEvent_t event = nullptr, begin = nullptr, end = nullptr;
      must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
      must(cudaEventCreate(&begin), "event");
      must(cudaEventCreate(&end), "event");
      constexpr int kProducts = 400;
      product.stream().synchronize();
      const auto start = Clock::now();
      if (busy)
        for (int i = 0; i < kProducts; ++i) product.give();
      must(cudaEventRecord(begin, two[0]), "record");
      for (int hop = 0; hop < kHops; ++hop) {
        cudaStream_t own = two[hop % 2], next = two[(hop + 1) % 2];
        add_kernel<<<1, 256, 0, own>>>(x);
        must(cudaEventRecord(event, own), "record");
        must(cudaStreamWaitEvent(next, event, 0), "wait");
      }
      must(cudaEventRecord(end, two[kHops % 2]), "record");
      must(cudaEventSynchronize(end), "hops");
      product.stream().synchronize();
      const double products_s = busy ? seconds_since(start) / kProducts : 0;
      float ms = 0;
      must(cudaEventElapsedTime(&ms, begin, end), "time");
      std::printf(
          "{\"part\":\"hops\",\"beside_products\":%d,\"priority\":%d,\"us_a_hop\":%.2f,\"products_slower\":%."
          "3f}\n",
          busy ? 1 : 0, priority, double(ms) * 1e3 / kHops, busy ? products_s / alone : 1.0);
      for (cudaEvent_t e : {event, begin, end}) (void)cudaEventDestroy(e);
      for (cudaStream_t s : two) (void)cudaStreamDestroy(s);
    }
  (void)cudaFree(x);
}

/// A group of a send and a receive of one rank with itself: the host's time for a call.
void self() {
  const parallel::NcclApi& api = parallel::nccl();
  cudaStream_t stream = make_stream();
  char* memory = nullptr;
  must(cudaMalloc(reinterpret_cast<void**>(&memory), 2 << 20), "cudaMalloc");
  for (const int blocking : {0, 1}) {
    ncclUniqueId id{};
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    const auto await = [&] {
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress) (void)api.comm_get_async_error(comm, &state);
      if (state != ncclSuccess) std::exit(1);
    };
    if (api.get_unique_id(&id) != ncclSuccess) std::exit(1);
    (void)api.comm_init_rank_config(&comm, 1, id, 0, &config);
    await();
    const auto exchange = [&] {
      (void)api.group_start();
      (void)api.send(memory, 1 << 20, ncclUint8, 0, comm, stream);
      (void)api.receive(memory + (1 << 20), 1 << 20, ncclUint8, 0, comm, stream);
      (void)api.group_end();
      if (!blocking) await();
    };
    constexpr int kCalls = 500;
    for (int i = 0; i < 20; ++i) exchange();
    must(cudaStreamSynchronize(stream), "self");
    const auto begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) exchange();
    const double seconds = seconds_since(begin);
    must(cudaStreamSynchronize(stream), "self");
    std::printf("{\"part\":\"self\",\"blocking\":%d,\"host_us_a_call\":%.2f}\n", blocking,
                seconds * 1e6 / kCalls);
    (void)api.comm_abort(comm);
  }
  (void)cudaFree(memory);
  (void)cudaStreamDestroy(stream);
}

}  // namespace

int main(int count, char** arguments) {
  const char* const part = count > 1 ? arguments[1] : "";
  const auto is_wanted = [&](const char* name) { return !*part || std::strcmp(part, name) == 0; };
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // as a rank does
  must(cudaSetDevice(0), "cudaSetDevice");
  if (is_wanted("queues")) queues();
  if (is_wanted("spin") || is_wanted("hops")) {
    const auto backend = kernels::make_cuda_backend({});
    if (is_wanted("spin")) spin(*backend);
    if (is_wanted("hops")) hops(*backend);
  }
  if (is_wanted("self")) self();
}
