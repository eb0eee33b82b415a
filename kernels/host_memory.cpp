#include "kernels/host_memory.h"

#include <sys/mman.h>

#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace trainctl::kernels {

namespace {
// Large pages pay for matrices of many megabytes and are wasted on small ones.
constexpr size_t kHugePageBytes = size_t(2) << 20;
}  // namespace

HostBuffer::HostBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) {
    return;
  }
  data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    throw Error(
        ErrorCode::kPlan,
        fmt::format(
            "cannot allocate {} of host memory: {}; use a smaller micro-batch, activation recomputation or "
            "fewer ranks a machine (`trainctl plan` shows what fits), or of `sample` and `eval` --dtype bf16",
            memory_text(double(bytes)), std::strerror(errno)));
  }
  if (bytes >= 4 * kHugePageBytes) {
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

class HostDevice::CountedBuffer final : public Buffer {
 public:
  CountedBuffer(size_t bytes, std::shared_ptr<Count> count) : memory_(bytes), count_(std::move(count)) {
    const size_t now = count_->now += bytes;
    for (size_t most = count_->most; most < now && !count_->most.compare_exchange_weak(most, now);) {
    }
  }
  ~CountedBuffer() override { count_->now -= memory_.bytes(); }
  void* data() override { return memory_.data(); }
  size_t bytes() const override { return memory_.bytes(); }

 private:
  HostBuffer memory_;
  std::shared_ptr<Count> count_;
};

std::unique_ptr<Buffer> HostDevice::allocate(size_t bytes) {
  return std::make_unique<CountedBuffer>(bytes, count_);
}

}  // namespace trainctl::kernels
