#include "test/support/host_facing_backend.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/host_memory.h"
#include "runtime/base/error.h"

namespace trainctl::kernels::test {

namespace {

/// Host memory that an op may touch.
struct Range {
  Range(const void* begin, size_t bytes)
      : begin(reinterpret_cast<uintptr_t>(begin)), end(this->begin + (begin ? bytes : 0)) {}
  Range(const Matrix& m)  // NOLINT: a matrix is its memory
      : Range(m.data, m.count() == 0 ? 0 : size_t((m.rows - 1) * m.stride + m.cols) * size_of(m.dtype)) {}
  uintptr_t begin, end;
};

/// The ranges of one call on the device.
class Mirror {
 public:
  Mirror(Backend& device, Stream& stream, std::unique_ptr<Buffer>& memory, std::vector<Range> ranges)
      : device_(device), stream_(stream) {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    size_t bytes = 0;
    for (const Range& r : ranges) {
      if (r.begin == r.end) continue;
      if (!pieces_.empty() && r.begin < pieces_.back().host.end) {
        pieces_.back().host.end = std::max(pieces_.back().host.end, r.end);
      } else {
        pieces_.push_back({r, 0});
      }
    }
    for (Piece& p : pieces_) {
      p.offset = bytes + kGuard + p.host.begin % kGuard;
      bytes = (p.offset + (p.host.end - p.host.begin) + 2 * kGuard) / kGuard * kGuard;
    }
    if (!memory || memory->bytes() < bytes) {
      memory.reset();
      memory = device.allocate(2 * bytes);
    }
    base_ = static_cast<char*>(memory->data());
    image_.assign(bytes, kPattern);
    for (const Piece& p : pieces_)
      std::memcpy(image_.data() + p.offset, reinterpret_cast<const void*>(p.host.begin), p.bytes());
    device_.copy_to_device(stream_, base_, image_.data(), bytes);
    stream_.synchronize();
  }

  /// Everything comes back; the memory between the pieces must hold its pattern.
  void bring_back() {
    device_.copy_to_host(stream_, image_.data(), base_, image_.size());
    stream_.synchronize();
    for (const Piece& p : pieces_) {
      std::memcpy(reinterpret_cast<void*>(p.host.begin), image_.data() + p.offset, p.bytes());
      std::memset(image_.data() + p.offset, kPattern, p.bytes());
    }
    for (size_t i = 0; i < image_.size(); ++i)
      ENSURE(image_[i] == kPattern, "an op wrote outside its arguments: byte {} of {} on the device", i,
             image_.size());
  }

  template <typename T>
  T* operator()(T* host) const {
    const auto at = reinterpret_cast<uintptr_t>(host);
    for (const Piece& p : pieces_)
      if (at >= p.host.begin && at < p.host.end)
        return reinterpret_cast<T*>(base_ + p.offset + (at - p.host.begin));
    return host;  // empty, or of no bytes
  }
  Matrix operator()(Matrix m) const {
    m.data = (*this)(m.data);
    return m;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr char kPattern = 0x5a;
  struct Piece {
    Range host;
    size_t offset;
    size_t bytes() const { return host.end - host.begin; }
  };
  Backend& device_;
  Stream& stream_;
  std::vector<Piece> pieces_;
  std::vector<char> image_;
  char* base_ = nullptr;
};

/// A weight on the host and its form on the device.
struct HostWeight final : PackedWeight {
  explicit HostWeight(std::unique_ptr<PackedWeight> form)
      : PackedWeight(form->n, form->k, form->dtype), packed(std::move(form)) {}
  size_t bytes() const override { return packed->bytes(); }
  const std::unique_ptr<PackedWeight> packed;
  Matrix w;
};

const HostWeight& host_weight(const PackedWeight* w) {
  const auto& weight = static_cast<const HostWeight&>(*w);
  ENSURE(weight.w, "multiplied by a weight that was never packed");
  return weight;
}

/// Collects the host memory of an op's arguments.
struct Collect {
  std::vector<Range>& ranges;
  void operator()(const Matrix& m) { ranges.push_back(m); }
  void operator()(const void* data, size_t bytes) { ranges.push_back({data, bytes}); }
  void operator()(const PackedWeight* w) { ranges.push_back(host_weight(w).w); }
};

class HostFacing final : public HostDevice {
 public:
  explicit HostFacing(std::unique_ptr<Backend> device)
      : device_(std::move(device)), stream_(device_->create_stream()) {}
  std::string name() const override { return device_->name(); }
  std::string numerics() const override { return device_->numerics(); }
  void reserve_scratch(const ScratchShape& shape) override { device_->reserve_scratch(shape); }
  std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return std::make_unique<HostWeight>(device_->make_packed(n, k, dtype));
  }
  DType bias_dtype(DType activation) const override { return device_->bias_dtype(activation); }
  void run(Stream&, const Op& op) override {
    std::visit([&](const auto& o) { mirror(o); }, op);
  }

 private:
  /// An op with its arguments on the device; a weight is packed there first.
  template <typename O>
  void mirror(O op) {
    std::vector<Range> ranges;
    op.arguments(Collect{ranges});
    Mirror on(*device_, *stream_, memory_, std::move(ranges));
    op.arguments(Move{*this, on});
    device_->run(*stream_, op);
    on.bring_back();
  }
  struct Move {
    HostFacing& self;
    const Mirror& on;
    void operator()(Matrix& m) { m = on(m); }
    template <typename T>
    void operator()(T*& data, size_t) {
      data = on(data);
    }
    void operator()(const PackedWeight*& w) {
      const HostWeight& weight = host_weight(w);
      self.device_->run(*self.stream_, Pack{.w = on(weight.w), .packed = weight.packed.get()});
      w = weight.packed.get();
    }
  };

  void mirror(const Pack& op) { static_cast<HostWeight&>(*op.packed).w = op.w; }

  // Ops on lists.
  void mirror(TreeSum op) {
    const size_t bytes = size_t(op.count) * size_of(op.dtype);
    std::vector<Range> ranges = {{op.out, bytes}};
    for (const void* input : op.inputs) ranges.push_back({input, bytes});
    Mirror on(*device_, *stream_, memory_, std::move(ranges));
    std::vector<const void*> there;
    for (const void* input : op.inputs) there.push_back(on(input));
    op.inputs = there;
    op.out = on(op.out);
    device_->run(*stream_, op);
    on.bring_back();
  }
  void mirror(const AdamW& op) { mirror_update(op); }
  void mirror(const Lion& op) { mirror_update(op); }
  void mirror(const Sgd& op) { mirror_update(op); }
  void mirror(const Balance& op) { mirror_update(op); }
  template <typename O>
  void mirror_update(O op) {
    std::vector<Range> ranges;
    for (const UpdateBox& b : op.boxes) {
      const Matrix grad{const_cast<float*>(b.grad), DType::f32, b.param.rows, b.param.cols, b.grad_stride};
      const auto count = size_t(b.param.count()), blocks = size_t(moment_blocks(b.param.count()));
      const size_t of_moment = b.moments == Moments::f32 ? 4 : b.moments == Moments::bf16 ? 2 : 1;
      ranges.push_back({b.master, count * 4});
      for (void* moment : {b.first_moment, b.second_moment}) ranges.push_back({moment, count * of_moment});
      for (float* scales : {b.first_scales, b.second_scales}) ranges.push_back({scales, blocks * 4});
      ranges.push_back(grad);
      ranges.push_back(b.param);
    }
    Mirror on(*device_, *stream_, memory_, std::move(ranges));
    std::vector<UpdateBox> there;
    for (const UpdateBox& b : op.boxes)
      there.push_back({on(b.master), on(b.first_moment), on(b.second_moment), on(b.grad), b.grad_stride,
                       on(b.param), b.weight_decay, b.lr_scale, b.moments, on(b.first_scales),
                       on(b.second_scales)});
    op.boxes = there;
    device_->run(*stream_, op);
    on.bring_back();
  }
  void mirror(SumSquares op) {
    Mirror on(*device_, *stream_, memory_, std::vector<Range>(op.boxes.begin(), op.boxes.end()));
    std::vector<Matrix> there;
    for (const Matrix& b : op.boxes) there.push_back(on(b));
    op.boxes = there;
    device_->run(*stream_, op);
    on.bring_back();
  }

  void mirror(Digest op) {
    std::vector<Range> ranges;
    for (const DigestBox& b : op.boxes) ranges.push_back(b.data);
    Mirror on(*device_, *stream_, memory_, std::move(ranges));
    std::vector<DigestBox> there(op.boxes.begin(), op.boxes.end());
    for (DigestBox& b : there) b.data = on(b.data);
    op.boxes = there;
    device_->run(*stream_, op);
    on.bring_back();
  }

  const std::unique_ptr<Backend> device_;
  const std::unique_ptr<Stream> stream_;
  std::unique_ptr<Buffer> memory_;
};

}  // namespace

std::unique_ptr<Backend> make_host_facing(std::unique_ptr<Backend> device) {
  return std::make_unique<HostFacing>(std::move(device));
}

}  // namespace trainctl::kernels::test
