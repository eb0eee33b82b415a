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
  size_t bytes() const override { return packed->bytes(); }
  std::unique_ptr<PackedWeight> packed;
  Matrix w;
};

const HostWeight& host_weight(const PackedWeight& w) { return static_cast<const HostWeight&>(w); }

class HostFacing final : public HostDevice {
 public:
  explicit HostFacing(std::unique_ptr<Backend> device)
      : device_(std::move(device)), stream_(device_->create_stream()) {}
  std::string name() const override { return device_->name(); }
  std::string numerics() const override { return device_->numerics(); }
  void reserve_scratch(const ScratchShape& shape) override { device_->reserve_scratch(shape); }

  void fill_zero(Stream&, void* data, size_t bytes) override {
    run({{data, bytes}}, [&](const Mirror& on) { device_->fill_zero(*stream_, on(data), bytes); });
  }
  void copy(Stream&, Matrix src, Matrix dst) override {
    run({src, dst}, [&](const Mirror& on) { device_->copy(*stream_, on(src), on(dst)); });
  }
  void add(Stream&, Matrix src, Matrix dst) override {
    run({src, dst}, [&](const Mirror& on) { device_->add(*stream_, on(src), on(dst)); });
  }
  void tree_sum(Stream&, std::span<const void* const> inputs, void* out, DType dtype,
                int64_t count) override {
    const size_t bytes = size_t(count) * size_of(dtype);
    std::vector<Range> ranges = {{out, bytes}};
    for (const void* input : inputs) ranges.push_back({input, bytes});
    run(ranges, [&](const Mirror& on) {
      std::vector<const void*> there;
      for (const void* input : inputs) there.push_back(on(static_cast<const char*>(input)));
      device_->tree_sum(*stream_, there, on(static_cast<char*>(out)), dtype, count);
    });
  }

  void add_rounded(Stream&, Matrix left, Matrix right, Matrix out) override {
    run({left, right, out},
        [&](const Mirror& on) { device_->add_rounded(*stream_, on(left), on(right), on(out)); });
  }

  void embedding_forward(Stream&, const int32_t* ids, Matrix table, int64_t vocab_begin,
                         Matrix out) override {
    run({{ids, size_t(out.rows) * 4}, table, out}, [&](const Mirror& on) {
      device_->embedding_forward(*stream_, on(ids), on(table), vocab_begin, on(out));
    });
  }
  void embedding_backward(Stream&, const int32_t* ids, Matrix dout, int64_t vocab_begin,
                          Matrix dtable) override {
    run({{ids, size_t(dout.rows) * 4}, dout, dtable}, [&](const Mirror& on) {
      device_->embedding_backward(*stream_, on(ids), on(dout), vocab_begin, on(dtable));
    });
  }
  void add_position(Stream&, Matrix table, int64_t first_row, int64_t seq_len, Matrix x) override {
    run({table, x},
        [&](const Mirror& on) { device_->add_position(*stream_, on(table), first_row, seq_len, on(x)); });
  }
  void add_position_backward(Stream&, Matrix dx, int64_t first_row, int64_t seq_len, Matrix dtable) override {
    run({dx, dtable}, [&](const Mirror& on) {
      device_->add_position_backward(*stream_, on(dx), first_row, seq_len, on(dtable));
    });
  }

  void norm_forward(Stream&, NormKind kind, Matrix x, Matrix delta, Matrix weight, Matrix bias, float eps,
                    Matrix sum, Matrix y, float* stats) override {
    run({x, delta, weight, bias, sum, y, {stats, size_t(x.rows) * 8}}, [&](const Mirror& on) {
      device_->norm_forward(*stream_, kind, on(x), on(delta), on(weight), on(bias), eps, on(sum), on(y),
                            on(stats));
    });
  }
  void norm_backward(Stream&, NormKind kind, Matrix dy, Matrix x, Matrix weight, const float* stats,
                     Matrix dresidual, Matrix dx, Matrix dweight, Matrix dbias, bool accumulate) override {
    run({dy, x, weight, {stats, size_t(x.rows) * 8}, dresidual, dx, dweight, dbias}, [&](const Mirror& on) {
      device_->norm_backward(*stream_, kind, on(dy), on(x), on(weight), on(stats), on(dresidual), on(dx),
                             on(dweight), on(dbias), accumulate);
    });
  }
  void norm_apply(Stream&, NormKind kind, Matrix x, const float* stats, Matrix weight, Matrix bias,
                  Matrix y) override {
    run({x, {stats, size_t(x.rows) * 8}, weight, bias, y}, [&](const Mirror& on) {
      device_->norm_apply(*stream_, kind, on(x), on(stats), on(weight), on(bias), on(y));
    });
  }

  std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    auto weight = std::make_unique<HostWeight>();
    weight->packed = device_->make_packed(n, k, dtype);
    return weight;
  }
  void pack(Stream&, Matrix w, PackedWeight& packed) override { static_cast<HostWeight&>(packed).w = w; }
  DType bias_dtype(DType activation) const override { return device_->bias_dtype(activation); }
  void linear_forward(Stream&, Matrix x, const PackedWeight& packed, Matrix bias, Matrix y) override {
    with_weight(packed, {x, bias, y}, [&](const Mirror& on, const PackedWeight& w) {
      device_->linear_forward(*stream_, on(x), w, on(bias), on(y));
    });
  }
  void linear_backward_input(Stream&, Matrix dy, const PackedWeight& packed, Matrix dx) override {
    with_weight(packed, {dy, dx}, [&](const Mirror& on, const PackedWeight& w) {
      device_->linear_backward_input(*stream_, on(dy), w, on(dx));
    });
  }
  void linear_gelu_forward(Stream&, Matrix x, const PackedWeight& packed, Matrix bias, Matrix pre,
                           Matrix y) override {
    with_weight(packed, {x, bias, pre, y}, [&](const Mirror& on, const PackedWeight& w) {
      device_->linear_gelu_forward(*stream_, on(x), w, on(bias), on(pre), on(y));
    });
  }
  void linear_gelu_backward_input(Stream&, Matrix dy, const PackedWeight& packed, Matrix pre,
                                  Matrix dx) override {
    with_weight(packed, {dy, pre, dx}, [&](const Mirror& on, const PackedWeight& w) {
      device_->linear_gelu_backward_input(*stream_, on(dy), w, on(pre), on(dx));
    });
  }
  void linear_backward_weight(Stream&, Matrix dy, Matrix x, Matrix dw, Matrix dbias,
                              bool accumulate) override {
    run({dy, x, dw, dbias}, [&](const Mirror& on) {
      device_->linear_backward_weight(*stream_, on(dy), on(x), on(dw), on(dbias), accumulate);
    });
  }

  void gelu_forward(Stream&, Matrix x, Matrix y) override {
    run({x, y}, [&](const Mirror& on) { device_->gelu_forward(*stream_, on(x), on(y)); });
  }
  void gelu_backward(Stream&, Matrix x, Matrix dy, Matrix dx) override {
    run({x, dy, dx}, [&](const Mirror& on) { device_->gelu_backward(*stream_, on(x), on(dy), on(dx)); });
  }
  void swiglu_forward(Stream&, Matrix gate, Matrix up, Matrix y) override {
    run({gate, up, y}, [&](const Mirror& on) { device_->swiglu_forward(*stream_, on(gate), on(up), on(y)); });
  }
  void swiglu_backward(Stream&, Matrix gate, Matrix up, Matrix dy, Matrix dgate, Matrix dup) override {
    run({gate, up, dy, dgate, dup}, [&](const Mirror& on) {
      device_->swiglu_backward(*stream_, on(gate), on(up), on(dy), on(dgate), on(dup));
    });
  }

  void rope(Stream&, Matrix x, int64_t head_dim, int64_t seq_len, const float* cos_sin,
            bool inverse) override {
    run({x, {cos_sin, size_t(seq_len * head_dim) * 4}},
        [&](const Mirror& on) { device_->rope(*stream_, on(x), head_dim, seq_len, on(cos_sin), inverse); });
  }
  void attention_forward(Stream&, const AttentionShape& s, Matrix q, Matrix k, Matrix v, Matrix out,
                         float* lse) override {
    run({q, k, v, out, {lse, size_t(q.rows * s.heads) * 4}}, [&](const Mirror& on) {
      device_->attention_forward(*stream_, s, on(q), on(k), on(v), on(out), on(lse));
    });
  }
  void attention_backward(Stream&, const AttentionShape& s, Matrix q, Matrix k, Matrix v, Matrix out,
                          const float* lse, Matrix dout, Matrix dq, Matrix dk, Matrix dv) override {
    run({q, k, v, out, {lse, size_t(q.rows * s.heads) * 4}, dout, dq, dk, dv}, [&](const Mirror& on) {
      device_->attention_backward(*stream_, s, on(q), on(k), on(v), on(out), on(lse), on(dout), on(dq),
                                  on(dk), on(dv));
    });
  }

  void cross_entropy_stats(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin,
                           float* stats) override {
    run({logits, {targets, size_t(logits.rows) * 4}, {stats, size_t(logits.rows) * 12}},
        [&](const Mirror& on) {
          device_->cross_entropy_stats(*stream_, on(logits), on(targets), vocab_begin, on(stats));
        });
  }
  void cross_entropy_combine(Stream&, const float* stats, int parts, int64_t m, float* lse,
                             float* loss) override {
    run({{stats, size_t(parts * m) * 12}, {lse, size_t(m) * 4}, {loss, size_t(m) * 4}},
        [&](const Mirror& on) {
          device_->cross_entropy_combine(*stream_, on(stats), parts, m, on(lse), on(loss));
        });
  }
  void cross_entropy_backward(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin,
                              const float* lse, float scale) override {
    run({logits, {targets, size_t(logits.rows) * 4}, {lse, size_t(logits.rows) * 4}}, [&](const Mirror& on) {
      device_->cross_entropy_backward(*stream_, on(logits), on(targets), vocab_begin, on(lse), scale);
    });
  }

  void adamw(Stream&, std::span<const AdamWBox> boxes, const AdamWStep& step) override {
    std::vector<Range> ranges;
    for (const AdamWBox& b : boxes) {
      const Matrix grad{const_cast<float*>(b.grad), DType::f32, b.param.rows, b.param.cols, b.grad_stride};
      for (float* state : {b.master, b.first_moment, b.second_moment})
        ranges.push_back({state, size_t(b.param.count()) * 4});
      ranges.push_back(grad);
      ranges.push_back(b.param);
    }
    run(ranges, [&](const Mirror& on) {
      std::vector<AdamWBox> there;
      for (const AdamWBox& b : boxes)
        there.push_back({on(b.master), on(b.first_moment), on(b.second_moment), on(b.grad), b.grad_stride,
                         on(b.param), b.weight_decay});
      device_->adamw(*stream_, there, step);
    });
  }
  void sum_squares(Stream&, std::span<const Matrix> boxes, double* out) override {
    run(std::vector<Range>(boxes.begin(), boxes.end()), [&](const Mirror& on) {
      std::vector<Matrix> there;
      for (const Matrix& b : boxes) there.push_back(on(b));
      device_->sum_squares(*stream_, there, out);
    });
  }
  void sum(Stream&, const float* x, int64_t n, double* out) override {
    run({{x, size_t(n) * 4}}, [&](const Mirror& on) { device_->sum(*stream_, on(x), n, out); });
  }

 private:
  template <typename Op>
  void run(std::vector<Range> ranges, Op op) {
    Mirror mirror(*device_, *stream_, memory_, std::move(ranges));
    op(mirror);
    mirror.bring_back();
  }
  /// op(mirror, the weight packed from its copy on the device)
  template <typename Op>
  void with_weight(const PackedWeight& packed, std::vector<Range> ranges, Op op) {
    const HostWeight& weight = host_weight(packed);
    ENSURE(weight.w, "multiplied by a weight that was never packed");
    ranges.push_back(weight.w);
    run(std::move(ranges), [&](const Mirror& on) {
      device_->pack(*stream_, on(weight.w), *weight.packed);
      op(on, *weight.packed);
    });
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
