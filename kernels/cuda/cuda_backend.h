// The GPU backend. It checks arguments, provides scratch memory and enqueues each op on its stream. ops.h
// declares the kernels, product.h the matrix products. Ops with scratch memory on several streams wait for
// each other on the device.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda/ops.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/tile_tables.h"
#include "kernels/device.h"
#include "kernels/plain_weight.h"

namespace trainctl::kernels::cuda {

/// A sum of no rows is written, too: it is 0.
inline bool is_empty(const ExpertBiasBackward& op) { return op.dbias.count() == 0; }

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options);

  std::string name() const override { return "cuda"; }
  std::string numerics() const override { return cuda_numerics(device_->index()); }
  std::unique_ptr<Stream> create_stream() override { return create_stream_before(0); }
  std::unique_ptr<Stream> create_stream_before(int priority) override {
    return std::make_unique<CudaStream>(device_, priority);
  }
  std::unique_ptr<Event> create_event() override { return std::make_unique<CudaEvent>(device_); }
  std::unique_ptr<Buffer> allocate(size_t bytes) override { return std::make_unique<CudaBuffer>(device_, bytes); }
  std::unique_ptr<Buffer> allocate_host(size_t bytes) override { return std::make_unique<PinnedBuffer>(device_, bytes); }
  void copy_to_device(Stream&, void* device, const void* host, size_t bytes) override;
  void copy_to_host(Stream&, void* host, const void* device, size_t bytes) override;
  void copy_on_device(Stream&, void* dst, const void* src, size_t bytes) override;
  void reserve_scratch(const ScratchShape& shape) override;
  void begin_range(const char* name) override;
  void end_range() override;
  size_t allocated_bytes() const override { return device_->allocated_bytes(); }
  size_t peak_allocated_bytes() const override { return device_->peak_allocated_bytes(); }

  std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return PlainWeight::make(n, k, dtype);
  }
  DType bias_dtype(DType activation) const override { return activation; }
  void run(Stream& stream, const Op& op) override {
    std::visit([&](const auto& o) { o.check(), compute(stream, o); }, op);
  }

 private:
  /// Most ops: kernels that ops.h declares, with scratch memory if it says so.
  template <typename O>
  void compute(Stream& stream, const O& op) {
    if (is_empty(op)) return;
    if constexpr (requires { scratch_bytes(op); }) {
      give_with_scratch(stream, O::kName, scratch_bytes(op),
                        [&](const Queue& queue, void* scratch) { enqueue(queue, op, scratch); });
    } else {
      give(stream, O::kName, [&](const Queue& queue) { enqueue(queue, op); });
    }
  }
  // The others.
  void compute(Stream&, const FillZero& op);
  void compute(Stream&, const AddPositionBackward& op);
  void compute(Stream&, const NormBackward& op);
  void compute(Stream&, const GroupNormBackward& op);
  void compute(Stream&, const AttentionForward& op);
  void compute(Stream&, const AttentionBackward& op);
  void compute(Stream&, const HeadScalarBackward& op);
  void compute(Stream&, const kernels::Pack& op) { PlainWeight::pack(op); }
  void compute(Stream&, const LinearForward& op);
  void compute(Stream&, const LinearBackwardInput& op);
  void compute(Stream&, const LinearGeluForward& op);
  void compute(Stream&, const LinearGeluBackwardInput& op);
  void compute(Stream&, const LinearBackwardWeight& op);
  void compute(Stream&, const GroupedForward& op);
  void compute(Stream&, const GroupedBackwardInput& op);
  void compute(Stream&, const AdamW& op);
  void compute(Stream&, const Lion& op);
  void compute(Stream&, const Sgd& op);
  void compute(Stream&, const SumSquares& op);
  void compute(Stream&, const Sum& op);
  void compute(Stream&, const Digest& op);

  /// An op on boxes and their tiles.
  template <typename O, typename Kernel>
  void update(Stream&, const O& op, Kernel kernel);

  /// Calls body(queue), which enqueues the work of `op` on the stream.
  template <typename Body>
  void give(Stream& stream, const char* op, Body body) {
    auto& to = static_cast<CudaStream&>(stream);
    to.give(op, [&] { body(queue_of(to)); });
  }
  /// Like give, for an op with `bytes` of scratch memory: calls body(queue, scratch).
  template <typename Body>
  void give_with_scratch(Stream& stream, const char* op, size_t bytes, Body body) {
    auto& to = static_cast<CudaStream&>(stream);
    const std::lock_guard lock(shared_);
    to.give(op, [&] {
      device_->hand_shared_memory_to(to);
      body(queue_of(to), at_least(scratch_, bytes));
    });
  }
  Queue queue_of(const CudaStream& stream) const {
    return {stream.handle(), device_->multiprocessors(), device_->compute(), device_->most_shared_bytes()};
  }
  void give_forward(Stream& stream, const Matrix& x, const Matrix& w, const Matrix& bias, const Matrix& y);
  /// Enqueues a product, with its bias ([1, N], may be empty) converted to the library's form. Returns false
  /// if there is no algorithm with this epilogue.
  bool give_product(Stream& stream, Product product, const Matrix& bias);
  /// Enqueues a weight gradient whose product also computes dbias. Returns false if the library has no such
  /// algorithm.
  bool give_product_with_bias_gradient(Stream& stream, Product product, const Matrix& dbias);
  void* at_least(std::unique_ptr<CudaBuffer>& buffer, size_t bytes);

  const std::shared_ptr<Device> device_;   // first: the members below use it
  const bool bias_gradients_by_product_;
  std::mutex shared_;                      // guards the members below: one op at a time uses them
  ProductEngine products_;
  std::unique_ptr<CudaBuffer> scratch_, workspace_;
  TileTables tables_;
};

}  // namespace trainctl::kernels::cuda
