#include "test/support/spoiling_backend.h"

#include "kernels/host_memory.h"

namespace trainctl::test {
namespace {

class SpoilingBackend final : public kernels::HostDevice {
 public:
  explicit SpoilingBackend(const Spoil& spoil) : spoil_(spoil) {}
  std::string name() const override { return device_->name(); }
  std::string numerics() const override { return device_->numerics(); }
  std::unique_ptr<kernels::PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return device_->make_packed(n, k, dtype);
  }
  std::unique_ptr<kernels::Buffer> allocate(size_t bytes) override {
    auto buffer = kernels::HostDevice::allocate(bytes);
    if (bytes == spoil_.stuck_buffer_bytes) stuck_ = static_cast<char*>(buffer->data()) + spoil_.stuck_byte;
    return buffer;
  }
  void copy_to_device(kernels::Stream& stream, void* device, const void* host, size_t bytes) override {
    kernels::HostDevice::copy_to_device(stream, device, host, bytes);
    char* const begin = static_cast<char*>(device);
    if (stuck_ >= begin && stuck_ < begin + bytes) *stuck_ = char(*stuck_ & ~(1 << spoil_.stuck_bit));
  }
  void run(kernels::Stream& stream, const kernels::Op& op) override {
    device_->run(stream, op);
    const auto* const product = std::get_if<kernels::LinearForward>(&op);
    if (!product || spoil_.every_product == 0 || ++products_ % spoil_.every_product != 0) return;
    auto* const byte = static_cast<unsigned char*>(product->y.data) +
                       size_t(spoil_.element) * size_of(product->y.dtype) + size_t(spoil_.bit / 8) % 2;
    *byte = static_cast<unsigned char>(*byte ^ 1u << spoil_.bit % 8);
  }

 private:
  const std::unique_ptr<kernels::Backend> device_ = kernels::make_cpu_backend(1);
  const Spoil spoil_;
  char* stuck_ = nullptr;
  int products_ = 0;
};

}  // namespace

std::unique_ptr<kernels::Backend> make_spoiling_backend(const Spoil& spoil) {
  return std::make_unique<SpoilingBackend>(spoil);
}

}  // namespace trainctl::test
