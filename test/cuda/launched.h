// What the tests of single launchers share: matrices in device memory, a run under every order of the GPU's threads, and windows: the
// columns of a wider matrix that an op is given, around which nothing may change.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>

#include "kernels/cuda/ops.h"
#include "test/kernels/support.h"
#include "test/support/emulated_gpu/emulated_gpu.h"

namespace trainctl::kernels::test {

/// A queue of its own on the first GPU.
inline cuda::Queue make_queue() {
  cuda::Queue queue;
  REQUIRE(cudaStreamCreateWithFlags(&queue.stream, cudaStreamNonBlocking) == cudaSuccess);
  int shared_bytes = 0;
  REQUIRE(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess);
  queue.most_shared_bytes = size_t(shared_bytes);
  int major = 0, minor = 0;
  REQUIRE(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess);
  queue.compute = 10 * major + minor;
  return queue;
}

/// Runs `body` on a fresh GPU under every order of its threads: the two extremes and `seeds` random ones.
inline void each_order(int seeds, const std::function<void(const cuda::Queue&)>& body, const emulated_gpu::DeviceOptions& gpu = {}) {
  using emulated_gpu::OrderKind;
  for (int order = 0; order < 2 + seeds; ++order) {
    const OrderKind kind = order == 0 ? OrderKind::forward : order == 1 ? OrderKind::reverse : OrderKind::random;
    emulated_gpu::reset({.thread_order = kind, .seed = uint64_t(order), .devices = {gpu}});
    const cuda::Queue queue = make_queue();
    INFO("order of threads " << order);
    body(queue);
    REQUIRE(cudaStreamSynchronize(queue.stream) == cudaSuccess);
    REQUIRE(cudaStreamDestroy(queue.stream) == cudaSuccess);
  }
}

/// Device memory for the duration of a run. Each piece is 256-byte aligned and as long as asked for.
class OnDevice {
 public:
  explicit OnDevice(const cuda::Queue& queue) : queue_(queue) {}
  ~OnDevice() {
    cudaStreamSynchronize(queue_.stream);
    for (void* piece : pieces_) cudaFree(piece);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void* copy_of(const void* host, size_t bytes) {
    void* device = nullptr;
    REQUIRE(cudaMalloc(&device, std::max<size_t>(bytes, 1)) == cudaSuccess);
    pieces_.push_back(device);
    REQUIRE(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, queue_.stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(queue_.stream) == cudaSuccess);
    return device;
  }
  template <typename T>
  T* copy_of(const std::vector<T>& host) {
    return static_cast<T*>(copy_of(host.data(), host.size() * sizeof(T)));
  }
  /// The whole of a matrix, with its padding.
  Matrix copy_of(const Storage& host) {
    Matrix view = host;
    view.data = copy_of(host->data, bytes_of(host));
    return view;
  }
  /// Bytes that are NaN in every format.
  void* poisoned(size_t bytes) { return copy_of(std::vector<unsigned char>(bytes, 0xff)); }

  void bring_back(const void* device, void* host, size_t bytes) {
    REQUIRE(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, queue_.stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(queue_.stream) == cudaSuccess);
  }
  void bring_back(const Matrix& device, Storage& host) { bring_back(device.data, host->data, bytes_of(host)); }

 private:
  static size_t bytes_of(const Storage& s) { return size_t(s->rows * s->stride + 64) * size_of(s->dtype); }

  const cuda::Queue& queue_;
  std::vector<void*> pieces_;
};

/// The columns of a wider matrix that an op works on. `first` decides the alignment.
struct Window {
  int64_t first = 0, cols = 0, behind = 0;
  int64_t width() const { return first + cols + behind; }
  Matrix operator()(const Matrix& m) const { return m.columns(first, cols); }
};
/// For storage with 8 columns of padding: rows that begin on 16 bytes, whatever their length; rows that do not; the first columns.
inline std::vector<Window> windows(int64_t cols) {
  return {{8, cols, 8 + (8 - cols % 8) % 8}, {1, cols, 2}, {0, cols, 0}};
}

/// ||a - b|| / ||b|| over the window.
inline double window_error(const Window& w, const Storage& a, const Storage& b) {
  double difference = 0, norm = 0;
  for (int64_t r = 0; r < a->rows; ++r) {
    for (int64_t c = w.first; c < w.first + w.cols; ++c) {
      const double x = a.get(r, c), y = b.get(r, c);
      difference += (x - y) * (x - y);
      norm += y * y;
    }
  }
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isnan(error) ? INFINITY : error;
}

/// The bits in the window.
inline std::vector<char> window_bits(const Window& w, const Storage& s) {
  std::vector<char> bits;
  const size_t element = size_of(s->dtype);
  for (int64_t r = 0; r < s->rows; ++r) {
    const char* row = static_cast<const char*>(s->row_range(r, 1).data);
    bits.insert(bits.end(), row + size_t(w.first) * element, row + size_t(w.first + w.cols) * element);
  }
  return bits;
}

/// Whether only the window changed.
inline bool unchanged_around(const Window& w, Storage before, Storage after) {
  for (Storage* s : {&before, &after}) {
    for (int64_t r = 0; r < (*s)->rows; ++r) {
      for (int64_t c = w.first; c < w.first + w.cols; ++c) s->set(r, c, 0);
    }
  }
  return before.content() == after.content() && after.padding_untouched();
}

}  // namespace trainctl::kernels::test
