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

namespace trainctl::kernels::cuda {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options);

  std::string name() const override { return "cuda"; }
  std::string numerics() const override { return cuda_numerics(device_->index()); }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<CudaStream>(device_); }
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

  void fill_zero(Stream&, void* data, size_t bytes) override;
  void copy(Stream&, Matrix src, Matrix dst) override;
  void add(Stream&, Matrix src, Matrix dst) override;
  void tree_sum(Stream&, std::span<const void* const> inputs, void* out, DType dtype, int64_t count) override;
  void add_rounded(Stream&, Matrix left, Matrix right, Matrix out) override;

  void embedding_forward(Stream&, const int32_t* ids, Matrix table, int64_t vocab_begin, Matrix out) override;
  void embedding_backward(Stream&, const int32_t* ids, Matrix dout, int64_t vocab_begin, Matrix dtable) override;
  void add_position(Stream&, Matrix table, int64_t first_row, int64_t seq_len, Matrix x) override;
  void add_position_backward(Stream&, Matrix dx, int64_t first_row, int64_t seq_len, Matrix dtable) override;

  void norm_forward(Stream&, NormKind, Matrix x, Matrix delta, Matrix weight, Matrix bias, float eps, Matrix sum, Matrix y,
                    float* stats) override;
  void norm_backward(Stream&, NormKind, Matrix dy, Matrix x, Matrix weight, const float* stats, Matrix dresidual, Matrix dx,
                     Matrix dweight, Matrix dbias, bool accumulate) override;
  void norm_apply(Stream&, NormKind, Matrix x, const float* stats, Matrix weight, Matrix bias, Matrix y) override;

  std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override;
  void pack(Stream&, Matrix w, PackedWeight& packed) override;
  DType bias_dtype(DType activation) const override { return activation; }
  void linear_forward(Stream&, Matrix x, const PackedWeight& w, Matrix bias, Matrix y) override;
  void linear_backward_input(Stream&, Matrix dy, const PackedWeight& w, Matrix dx) override;
  void linear_gelu_forward(Stream&, Matrix x, const PackedWeight& w, Matrix bias, Matrix pre, Matrix y) override;
  void linear_gelu_backward_input(Stream&, Matrix dy, const PackedWeight& w, Matrix pre, Matrix dx) override;
  void linear_backward_weight(Stream&, Matrix dy, Matrix x, Matrix dw, Matrix dbias, bool accumulate) override;

  void gelu_forward(Stream&, Matrix x, Matrix y) override;
  void gelu_backward(Stream&, Matrix x, Matrix dy, Matrix dx) override;
  void swiglu_forward(Stream&, Matrix gate, Matrix up, Matrix y) override;
  void swiglu_backward(Stream&, Matrix gate, Matrix up, Matrix dy, Matrix dgate, Matrix dup) override;

  void rope(Stream&, Matrix x, int64_t head_dim, int64_t seq_len, const float* cos_sin, bool inverse) override;
  void attention_forward(Stream&, const AttentionShape&, Matrix q, Matrix k, Matrix v, Matrix out, float* lse) override;
  void attention_backward(Stream&, const AttentionShape&, Matrix q, Matrix k, Matrix v, Matrix out, const float* lse, Matrix dout,
                          Matrix dq, Matrix dk, Matrix dv) override;

  void cross_entropy_stats(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin, float* stats) override;
  void cross_entropy_combine(Stream&, const float* stats, int parts, int64_t m, float* lse, float* loss) override;
  void cross_entropy_backward(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin, const float* lse,
                              float scale) override;

  void adamw(Stream&, std::span<const AdamWBox> boxes, const AdamWStep& step) override;
  void sum_squares(Stream&, std::span<const Matrix> boxes, double* out) override;
  void sum(Stream&, const float* x, int64_t n, double* out) override;

 private:
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
