#include "runtime/run/rank/flipping_device.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/run/record/crash_record.h"

namespace trainctl {
namespace {

using kernels::Op;

/// So far below the top a bit is of the mantissa in each dtype that products have.
constexpr size_t kBitBelowTop = 10;

void flip_bit(void* element, size_t bytes) {
  const size_t bit = 8 * bytes - kBitBelowTop;
  auto* const byte = static_cast<unsigned char*>(element) + bit / 8;
  *byte = static_cast<unsigned char>(*byte ^ 1u << bit % 8);
}

class FlippingDevice final : public kernels::Backend {
 public:
  FlippingDevice(std::unique_ptr<kernels::Backend> device, const FlipAt& when)
      : device_(std::move(device)), when_(when) {}
  std::string name() const override { return device_->name(); }
  std::string numerics() const override { return device_->numerics(); }
  bool is_host() const override { return true; }
  std::unique_ptr<kernels::Stream> create_stream() override { return device_->create_stream(); }
  std::unique_ptr<kernels::Event> create_event() override { return device_->create_event(); }
  std::unique_ptr<kernels::Buffer> allocate(size_t bytes) override { return device_->allocate(bytes); }
  std::unique_ptr<kernels::Buffer> allocate_host(size_t n) override { return device_->allocate_host(n); }
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
    const auto activity = noted_activity();
    const bool flips = activity && when_.matches(*activity) && !is_done_;
    if (flips && when_.what == FlipWhat::moment && moment_) flip_bit(moment_, sizeof(float)), is_done_ = true;
    device_->run(stream, op);
    if (const auto* const product = std::get_if<kernels::LinearForward>(&op);
        product && flips && when_.what != FlipWhat::moment) {
      // The end of a row: the first token's query, at its beginning, changes nothing.
      const size_t bytes = size_of(product->y.dtype);
      flip_bit(static_cast<std::byte*>(product->y.data) + size_t(product->y.cols - 1) * bytes, bytes);
      is_done_ = when_.what == FlipWhat::product;
    }
    if (const auto* const update = std::get_if<kernels::AdamW>(&op); update && !update->boxes.empty())
      moment_ = update->boxes.front().first_moment;
  }

 private:
  const std::unique_ptr<kernels::Backend> device_;
  const FlipAt when_;
  void* moment_ = nullptr;
  bool is_done_ = false;
};

}  // namespace

std::unique_ptr<kernels::Backend> make_flipping_device(std::unique_ptr<kernels::Backend> device,
                                                       const FlipAt& when) {
  if (!device->is_host()) throw Error(ErrorCode::kUsage, fmt::format("{} is for CPU ranks", kFlipAtVariable));
  fmt::print("{}: this rank computes wrongly, for a test\n", kFlipAtVariable);
  return std::make_unique<FlippingDevice>(std::move(device), when);
}

}  // namespace trainctl
