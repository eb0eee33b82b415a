#include "kernels/tally.h"

#include <algorithm>

#include "kernels/host_memory.h"
#include "kernels/plain_weight.h"
#include "runtime/base/file_system.h"

namespace trainctl::kernels {
namespace {

/// Addresses, never memory.
class AddressBuffer final : public Buffer {
 public:
  AddressBuffer(size_t address, size_t bytes, std::shared_ptr<size_t> allocated)
      : address_(address), bytes_(bytes), allocated_(std::move(allocated)) {
    *allocated_ += bytes_;
  }
  ~AddressBuffer() override { *allocated_ -= bytes_; }
  void* data() override { return reinterpret_cast<void*>(address_); }
  size_t bytes() const override { return bytes_; }

 private:
  size_t address_, bytes_;
  std::shared_ptr<size_t> allocated_;
};

/// The device of the tally twin: ops do nothing.
class NoDevice : public Backend {
 public:
  explicit NoDevice(bool bias_in_activation_dtype) : bias_in_activation_dtype_(bias_in_activation_dtype) {}
  std::string name() const override { return "tally"; }
  std::string numerics() const override { return "tally"; }
  bool computes() const override { return false; }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<HostStream>(); }
  std::unique_ptr<Event> create_event() override { return std::make_unique<HostEvent>(); }
  std::unique_ptr<Buffer> allocate(size_t bytes) override {
    const size_t address = next_;
    next_ += (bytes + 4095) / 4096 * 4096;
    auto buffer = std::make_unique<AddressBuffer>(address, bytes, allocated_);
    peak_ = std::max(peak_, *allocated_);
    return buffer;
  }
  std::unique_ptr<Buffer> allocate_host(size_t bytes) override { return std::make_unique<HostBuffer>(bytes); }
  void copy_to_device(Stream&, void*, const void*, size_t) override {}
  void copy_to_host(Stream&, void*, const void*, size_t) override {}
  void copy_on_device(Stream&, void*, const void*, size_t) override {}
  size_t allocated_bytes() const override { return *allocated_; }
  size_t peak_allocated_bytes() const override { return peak_; }
  std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return PlainWeight::make(n, k, dtype);
  }
  DType bias_dtype(DType activation) const override {
    return bias_in_activation_dtype_ ? activation : DType::f32;
  }

  void run(Stream&, const Op& op) override {
    const auto* pack = std::get_if<Pack>(&op);   // readers of its places may ask for the weight
    if (!pack) return;
    pack->check();
    PlainWeight::pack(*pack);
  }

 private:
  bool bias_in_activation_dtype_;
  size_t next_ = size_t{1} << 32;   // never null
  std::shared_ptr<size_t> allocated_ = std::make_shared<size_t>(0);
  size_t peak_ = 0;
};

void add(const auto& op, OpCount& count) {
  ++count.calls;
  count.bytes += op.bytes();
  if constexpr (requires { op.apart_bytes(); }) count.apart_bytes += op.apart_bytes();
  if constexpr (requires { op.flops(); }) {
    count.flops += op.flops();
    if constexpr (requires { op.shape.head_dim; }) count.attention_flops += op.flops();
  }
}

class CountingBackend final : public Backend {
 public:
  /// seconds: null: ops are not timed.
  CountingBackend(std::unique_ptr<Backend> real, WorkTally& tally, OpSeconds* seconds)
      : real_(std::move(real)), tally_(tally), seconds_(seconds) {}

  std::string name() const override { return real_->name(); }
  std::string numerics() const override { return real_->numerics(); }
  bool is_host() const override { return real_->is_host(); }
  bool computes() const override { return real_->computes(); }
  std::unique_ptr<Stream> create_stream() override { return real_->create_stream(); }
  std::unique_ptr<Stream> create_stream_before(int priority) override {
    return real_->create_stream_before(priority);
  }
  std::unique_ptr<Event> create_event() override { return real_->create_event(); }
  std::unique_ptr<Buffer> allocate(size_t bytes) override { return real_->allocate(bytes); }
  std::unique_ptr<Buffer> allocate_host(size_t bytes) override { return real_->allocate_host(bytes); }
  void copy_to_device(Stream& s, void* to, const void* from, size_t n) override {
    real_->copy_to_device(s, to, from, n);
  }
  void copy_to_host(Stream& s, void* to, const void* from, size_t n) override {
    real_->copy_to_host(s, to, from, n);
  }
  void copy_on_device(Stream& s, void* to, const void* from, size_t n) override {
    real_->copy_on_device(s, to, from, n);
  }
  void begin_range(const char* name) override { real_->begin_range(name); }
  void end_range() override { real_->end_range(); }
  void reserve_scratch(const ScratchShape& shape) override { real_->reserve_scratch(shape); }
  size_t allocated_bytes() const override { return real_->allocated_bytes(); }
  size_t peak_allocated_bytes() const override { return real_->peak_allocated_bytes(); }
  std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return real_->make_packed(n, k, dtype);
  }
  DType bias_dtype(DType activation) const override { return real_->bias_dtype(activation); }

  void run(Stream& stream, const Op& op) override {
    std::visit([&](const auto& o) { add(o, tally_.ops[o.cost_shape()]); }, op);
    if (!seconds_) return real_->run(stream, op);
    stream.synchronize();
    const double begin_s = real_clock().monotonic_s();
    real_->run(stream, op);
    stream.synchronize();
    const double took_s = real_clock().monotonic_s() - begin_s;
    std::visit([&](const auto& o) { (*seconds_)[o.cost_shape()].push_back(took_s); }, op);
  }

 private:
  const std::unique_ptr<Backend> real_;
  WorkTally& tally_;
  OpSeconds* const seconds_;
};

}  // namespace

double WorkTally::flops() const {
  double sum = 0;
  for (const auto& [shape, count] : ops) sum += count.flops;
  return sum;
}

double WorkTally::attention_flops() const {
  double sum = 0;
  for (const auto& [shape, count] : ops) sum += count.attention_flops;
  return sum;
}

std::unique_ptr<Backend> make_counting_backend(std::unique_ptr<Backend> real, WorkTally& tally) {
  return std::make_unique<CountingBackend>(std::move(real), tally, nullptr);
}

std::unique_ptr<Backend> make_timing_backend(std::unique_ptr<Backend> real, WorkTally& tally,
                                             OpSeconds& seconds) {
  return std::make_unique<CountingBackend>(std::move(real), tally, &seconds);
}

std::unique_ptr<Backend> make_tally_backend(WorkTally& tally, bool bias_in_activation_dtype) {
  return make_counting_backend(std::make_unique<NoDevice>(bias_in_activation_dtype), tally);
}

}  // namespace trainctl::kernels
