#include "test/support/flipping_backend.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <vector>

namespace trainctl::test {
namespace {

using kernels::AdamW;
using kernels::Op;
using kernels::UpdateBox;

void flip_bit(void* data, size_t bytes_of_element, int64_t element, int bit) {
  auto* const byte = static_cast<unsigned char*>(data) + size_t(element) * bytes_of_element +
                     size_t(bit / 8) % bytes_of_element;
  *byte = static_cast<unsigned char>(*byte ^ 1u << bit % 8);
}

class FlippingBackend final : public kernels::Backend {
 public:
  FlippingBackend(int threads, const Flip& flip) : device_(kernels::make_cpu_backend(threads)), flip_(flip) {}
  std::string name() const override { return device_->name(); }
  std::string numerics() const override { return device_->numerics(); }
  bool is_host() const override { return true; }
  std::unique_ptr<kernels::Stream> create_stream() override { return device_->create_stream(); }
  std::unique_ptr<kernels::Event> create_event() override { return device_->create_event(); }
  std::unique_ptr<kernels::Buffer> allocate(size_t bytes) override { return device_->allocate(bytes); }
  std::unique_ptr<kernels::Buffer> allocate_host(size_t bytes) override {
    return device_->allocate_host(bytes);
  }
  void copy_to_device(kernels::Stream& s, void* to, const void* from, size_t n) override {
    device_->copy_to_device(s, to, from, n);
  }
  void copy_to_host(kernels::Stream& s, void* to, const void* from, size_t n) override {
    device_->copy_to_host(s, to, from, n);
  }
  void copy_on_device(kernels::Stream& s, void* to, const void* from, size_t n) override {
    device_->copy_on_device(s, to, from, n);
  }
  void reserve_scratch(const kernels::ScratchShape& shape) override { device_->reserve_scratch(shape); }
  size_t allocated_bytes() const override { return device_->allocated_bytes(); }
  size_t peak_allocated_bytes() const override { return device_->peak_allocated_bytes(); }
  std::unique_ptr<kernels::PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return device_->make_packed(n, k, dtype);
  }
  DType bias_dtype(DType activation) const override { return device_->bias_dtype(activation); }
  void run(kernels::Stream& stream, const Op& op) override {
    const auto* const update = std::get_if<AdamW>(&op);
    if (updates_ >= flip_.step && flips_product(op)) return run_flipped(stream, op);
    // Behind the forward passes: all copies are there.
    if (std::holds_alternative<kernels::LinearBackwardInput>(op) && updates_ == flip_.step - 1 && known_)
      if (flip_.what == Flipped::copy) flip(kept_);
    if (update && ++updates_ == flip_.step && flip_.what == Flipped::gradient) flip(box_of(*update));
    device_->run(stream, op);
    if (std::holds_alternative<kernels::LinearBackwardInput>(op) && updates_ == flip_.step && known_ &&
        flip_.what == Flipped::resting)
      flip(kept_);
    if (std::holds_alternative<kernels::Digest>(op) && updates_ == flip_.step && flip_.what == Flipped::saved)
      flip(kept_);
    if (!update) return;
    kept_ = box_of(*update), known_ = true;
    if (updates_ == flip_.step && (flip_.what == Flipped::master || flip_.what == Flipped::first_moment ||
                                   flip_.what == Flipped::second_moment))
      flip(kept_);
  }

 private:
  const UpdateBox& box_of(const AdamW& op) const { return op.boxes[flip_.box % op.boxes.size()]; }
  void flip(const UpdateBox& box) {
    if (done_) return;
    done_ = true;
    const int64_t at = flip_.element % box.param.cols;  // of the first row
    switch (flip_.what) {
      case Flipped::copy: return flip_bit(box.param.data, size_of(box.param.dtype), at, flip_.bit);
      case Flipped::resting:
      case Flipped::saved:
      case Flipped::master: return flip_bit(box.master, 4, at, flip_.bit);
      case Flipped::first_moment: return flip_bit(box.first_moment, 4, at, flip_.bit);
      case Flipped::second_moment: return flip_bit(box.second_moment, 4, at, flip_.bit);
      case Flipped::gradient: return flip_bit(const_cast<float*>(box.grad), 4, at, flip_.bit);
      default: return;
    }
  }
  /// Whether it is the product, or one of them.
  bool flips_product(const Op& op) {
    const bool is_one =
        (flip_.what == Flipped::output && std::holds_alternative<kernels::LinearForward>(op)) ||
        (flip_.what == Flipped::input_gradient && std::holds_alternative<kernels::LinearBackwardInput>(op)) ||
        (flip_.what == Flipped::weight_gradient &&
         std::holds_alternative<kernels::LinearBackwardWeight>(op)) ||
        (flip_.what == Flipped::expert_output && std::holds_alternative<kernels::GroupedForward>(op)) ||
        (flip_.what == Flipped::packed && std::holds_alternative<kernels::Pack>(op));
    if (!is_one) return false;
    const size_t number = products_++;
    return flip_.each ? number >= flip_.box : number == flip_.box;
  }
  void flip(const kernels::Matrix& m) {
    const auto* const bytes =
        static_cast<const std::byte*>(m.data) + size_t(flip_.element % m.cols) * size_of(m.dtype);
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    if (flip_.spares_zeros && std::all_of(bytes, bytes + size_of(m.dtype), is_zero)) return;
    flip_bit(m.data, size_of(m.dtype), flip_.element % m.cols, flip_.bit);
  }
  void run_flipped(kernels::Stream& stream, const Op& op) {
    if (const auto* const p = std::get_if<kernels::Pack>(&op)) return run_packed_wrong(stream, *p);
    device_->run(stream, op);
    if (const auto* const p = std::get_if<kernels::LinearForward>(&op)) flip(p->y);
    if (const auto* const p = std::get_if<kernels::GroupedForward>(&op)) flip(p->y);
    if (const auto* const p = std::get_if<kernels::LinearBackwardInput>(&op)) flip(p->dx);
    if (const auto* const p = std::get_if<kernels::LinearBackwardWeight>(&op)) flip(p->dw);
  }

  /// As if packing copied the weight, which the CPU does not.
  void run_packed_wrong(kernels::Stream& stream, kernels::Pack op) {
    const size_t bytes = size_t(op.w.count()) * size_of(op.w.dtype);
    std::vector<std::byte>& copy = packed_.emplace_back(bytes);
    std::memcpy(copy.data(), op.w.data, bytes);
    op.w = kernels::matrix(copy.data(), op.w.dtype, op.w.rows, op.w.cols);
    flip(op.w);
    device_->run(stream, op);
  }

  const std::unique_ptr<kernels::Backend> device_;
  const Flip flip_;
  std::list<std::vector<std::byte>> packed_;  // wrong ones, until the end
  int64_t updates_ = 0;
  size_t products_ = 0;
  bool known_ = false, done_ = false;
  UpdateBox kept_;
};

}  // namespace

std::unique_ptr<kernels::Backend> make_flipping_backend(int threads, const Flip& flip) {
  return std::make_unique<FlippingBackend>(threads, flip);
}

}  // namespace trainctl::test
