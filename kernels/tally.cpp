#include "kernels/tally.h"

#include <algorithm>

#include "kernels/host_memory.h"
#include "kernels/plain_weight.h"

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

  void fill_zero(Stream&, void*, size_t) override {}
  void copy(Stream&, Matrix, Matrix) override {}
  void add(Stream&, Matrix, Matrix) override {}
  void tree_sum(Stream&, std::span<const void* const>, void*, DType, int64_t) override {}
  void add_rounded(Stream&, Matrix, Matrix, Matrix) override {}
  void embedding_forward(Stream&, const int32_t*, Matrix, int64_t, Matrix) override {}
  void embedding_backward(Stream&, const int32_t*, Matrix, int64_t, Matrix) override {}
  void add_position(Stream&, Matrix, int64_t, int64_t, Matrix) override {}
  void add_position_backward(Stream&, Matrix, int64_t, int64_t, Matrix) override {}
  void norm_forward(Stream&, NormKind, Matrix, Matrix, Matrix, Matrix, float, Matrix, Matrix,
                    float*) override {}
  void norm_backward(Stream&, NormKind, Matrix, Matrix, Matrix, const float*, Matrix, Matrix, Matrix, Matrix,
                     bool) override {}
  void norm_apply(Stream&, NormKind, Matrix, const float*, Matrix, Matrix, Matrix) override {}
  void pack(Stream&, Matrix w, PackedWeight& packed) override { PlainWeight::pack(w, packed); }
  void linear_forward(Stream&, Matrix, const PackedWeight&, Matrix, Matrix) override {}
  void linear_backward_input(Stream&, Matrix, const PackedWeight&, Matrix) override {}
  void linear_backward_weight(Stream&, Matrix, Matrix, Matrix, Matrix, bool) override {}
  void gelu_forward(Stream&, Matrix, Matrix) override {}
  void gelu_backward(Stream&, Matrix, Matrix, Matrix) override {}
  void swiglu_forward(Stream&, Matrix, Matrix, Matrix) override {}
  void swiglu_backward(Stream&, Matrix, Matrix, Matrix, Matrix, Matrix) override {}
  void rope(Stream&, Matrix, int64_t, int64_t, const float*, bool) override {}
  void attention_forward(Stream&, const AttentionShape&, Matrix, Matrix, Matrix, Matrix, float*) override {}
  void attention_backward(Stream&, const AttentionShape&, Matrix, Matrix, Matrix, Matrix, const float*,
                          Matrix, Matrix, Matrix, Matrix) override {}
  void cross_entropy_stats(Stream&, Matrix, const int32_t*, int64_t, float*) override {}
  void cross_entropy_combine(Stream&, const float*, int, int64_t, float*, float*) override {}
  void cross_entropy_backward(Stream&, Matrix, const int32_t*, int64_t, const float*, float) override {}
  void adamw(Stream&, std::span<const AdamWBox>, const AdamWStep&) override {}
  void sum_squares(Stream&, std::span<const Matrix>, double*) override {}
  void sum(Stream&, const float*, int64_t, double*) override {}

 private:
  bool bias_in_activation_dtype_;
  size_t next_ = size_t{1} << 32;   // never null
  std::shared_ptr<size_t> allocated_ = std::make_shared<size_t>(0);
  size_t peak_ = 0;
};

double bytes_of_matrix(const Matrix& m) {
  return m ? double(m.count()) * double(size_of(m.dtype)) : 0;
}

class CountingBackend final : public Backend {
 public:
  CountingBackend(std::unique_ptr<Backend> real, WorkTally& tally) : real_(std::move(real)), tally_(tally) {}

  std::string name() const override { return real_->name(); }
  std::string numerics() const override { return real_->numerics(); }
  bool is_host() const override { return real_->is_host(); }
  bool computes() const override { return real_->computes(); }
  std::unique_ptr<Stream> create_stream() override { return real_->create_stream(); }
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

  void fill_zero(Stream& s, void* data, size_t bytes) override {
    add({"fill_zero", 1, int64_t(bytes)}, double(bytes));
    real_->fill_zero(s, data, bytes);
  }
  void copy(Stream& s, Matrix src, Matrix dst) override {
    elements("copy", dst, {src, dst});
    real_->copy(s, src, dst);
  }
  void add(Stream& s, Matrix src, Matrix dst) override {
    elements("add", dst, {src, dst});
    real_->add(s, src, dst);
  }
  void tree_sum(Stream& s, std::span<const void* const> inputs, void* out, DType dtype,
                int64_t count) override {
    add({"tree_sum", int64_t(inputs.size()), count},
        double(inputs.size() + 1) * double(count) * double(size_of(dtype)));
    real_->tree_sum(s, inputs, out, dtype, count);
  }
  void add_rounded(Stream& s, Matrix left, Matrix right, Matrix out) override {
    elements("add_rounded", out, {left, right, out});
    real_->add_rounded(s, left, right, out);
  }
  void embedding_forward(Stream& s, const int32_t* ids, Matrix table, int64_t begin, Matrix out) override {
    elements("embedding_forward", out, {out, out});
    real_->embedding_forward(s, ids, table, begin, out);
  }
  void embedding_backward(Stream& s, const int32_t* ids, Matrix dout, int64_t begin, Matrix dtable) override {
    elements("embedding_backward", dout, {dout, dout});
    real_->embedding_backward(s, ids, dout, begin, dtable);
  }
  void add_position(Stream& s, Matrix table, int64_t first_row, int64_t seq_len, Matrix x) override {
    elements("add_position", x, {x, x});
    real_->add_position(s, table, first_row, seq_len, x);
  }
  void add_position_backward(Stream& s, Matrix dx, int64_t first_row, int64_t seq_len,
                             Matrix dtable) override {
    elements("add_position_backward", dx, {dx, dx});
    real_->add_position_backward(s, dx, first_row, seq_len, dtable);
  }
  void norm_forward(Stream& s, NormKind kind, Matrix x, Matrix delta, Matrix weight, Matrix bias, float eps,
                    Matrix sum, Matrix y, float* stats) override {
    elements("norm_forward", y, {x, delta, weight, bias, delta ? sum : Matrix{}, y});
    real_->norm_forward(s, kind, x, delta, weight, bias, eps, sum, y, stats);
  }
  void norm_backward(Stream& s, NormKind kind, Matrix dy, Matrix x, Matrix weight, const float* stats,
                     Matrix dresidual, Matrix dx, Matrix dweight, Matrix dbias, bool accumulate) override {
    elements("norm_backward", dx, {dy, x, weight, dresidual, dx, dweight, dbias});
    real_->norm_backward(s, kind, dy, x, weight, stats, dresidual, dx, dweight, dbias, accumulate);
  }
  void norm_apply(Stream& s, NormKind kind, Matrix x, const float* stats, Matrix weight, Matrix bias,
                  Matrix y) override {
    elements("norm_apply", y, {x, weight, bias, y});
    real_->norm_apply(s, kind, x, stats, weight, bias, y);
  }

  void pack(Stream& s, Matrix w, PackedWeight& packed) override {
    elements("pack", w, {w});
    real_->pack(s, w, packed);
  }
  void linear_forward(Stream& s, Matrix x, const PackedWeight& w, Matrix bias, Matrix y) override {
    product_with_weight("linear_forward", x.rows, y.cols, x.cols, {x, bias, y});
    real_->linear_forward(s, x, w, bias, y);
  }
  void linear_backward_input(Stream& s, Matrix dy, const PackedWeight& w, Matrix dx) override {
    product_with_weight("linear_backward_input", dy.rows, dx.cols, dy.cols, {dy, dx});
    real_->linear_backward_input(s, dy, w, dx);
  }
  void linear_gelu_forward(Stream& s, Matrix x, const PackedWeight& w, Matrix bias, Matrix pre,
                           Matrix y) override {
    product_with_weight("linear_gelu_forward", x.rows, y.cols, x.cols, {x, bias, pre, y});
    real_->linear_gelu_forward(s, x, w, bias, pre, y);
  }
  void linear_gelu_backward_input(Stream& s, Matrix dy, const PackedWeight& w, Matrix pre,
                                  Matrix dx) override {
    product_with_weight("linear_gelu_backward_input", dy.rows, dx.cols, dy.cols, {dy, pre, dx});
    real_->linear_gelu_backward_input(s, dy, w, pre, dx);
  }
  void linear_backward_weight(Stream& s, Matrix dy, Matrix x, Matrix dw, Matrix dbias,
                              bool accumulate) override {
    product("linear_backward_weight", dy.cols, x.cols, dy.rows, {dy, x, dw, dbias});
    real_->linear_backward_weight(s, dy, x, dw, dbias, accumulate);
  }

  void gelu_forward(Stream& s, Matrix x, Matrix y) override {
    elements("gelu_forward", y, {x, y});
    real_->gelu_forward(s, x, y);
  }
  void gelu_backward(Stream& s, Matrix x, Matrix dy, Matrix dx) override {
    elements("gelu_backward", dx, {x, dy, dx});
    real_->gelu_backward(s, x, dy, dx);
  }
  void swiglu_forward(Stream& s, Matrix gate, Matrix up, Matrix y) override {
    elements("swiglu_forward", y, {gate, up, y});
    real_->swiglu_forward(s, gate, up, y);
  }
  void swiglu_backward(Stream& s, Matrix gate, Matrix up, Matrix dy, Matrix dgate, Matrix dup) override {
    elements("swiglu_backward", dy, {gate, up, dy, dgate, dup});
    real_->swiglu_backward(s, gate, up, dy, dgate, dup);
  }

  void rope(Stream& s, Matrix x, int64_t head_dim, int64_t seq_len, const float* cos_sin,
            bool inverse) override {
    elements("rope", x, {x, x});
    real_->rope(s, x, head_dim, seq_len, cos_sin, inverse);
  }
  void attention_forward(Stream& s, const AttentionShape& shape, Matrix q, Matrix k, Matrix v, Matrix out,
                         float* lse) override {
    attention("attention_forward", shape, 4, {q, k, v, out});
    real_->attention_forward(s, shape, q, k, v, out, lse);
  }
  void attention_backward(Stream& s, const AttentionShape& shape, Matrix q, Matrix k, Matrix v, Matrix out,
                          const float* lse, Matrix dout, Matrix dq, Matrix dk, Matrix dv) override {
    attention("attention_backward", shape, 8, {q, k, v, out, dout, dq, dk, dv});
    real_->attention_backward(s, shape, q, k, v, out, lse, dout, dq, dk, dv);
  }

  void cross_entropy_stats(Stream& s, Matrix logits, const int32_t* targets, int64_t begin,
                           float* stats) override {
    elements("cross_entropy_stats", logits, {logits});
    real_->cross_entropy_stats(s, logits, targets, begin, stats);
  }
  void cross_entropy_combine(Stream& s, const float* stats, int parts, int64_t m, float* lse,
                             float* loss) override {
    add({"cross_entropy_combine", m, parts}, double(m) * (12.0 * parts + 8));
    real_->cross_entropy_combine(s, stats, parts, m, lse, loss);
  }
  void cross_entropy_backward(Stream& s, Matrix logits, const int32_t* targets, int64_t begin,
                              const float* lse, float scale) override {
    elements("cross_entropy_backward", logits, {logits, logits});
    real_->cross_entropy_backward(s, logits, targets, begin, lse, scale);
  }

  void adamw(Stream& s, std::span<const AdamWBox> boxes, const AdamWStep& step) override {
    double bytes = 0;
    int64_t elements = 0;
    for (const AdamWBox& box : boxes) {
      elements += box.param.count();
      bytes += double(box.param.count()) * 28 +
               bytes_of_matrix(box.param);   // three reads and writes of f32, the gradient; the compute copy
    }
    add({"adamw", int64_t(boxes.size()), elements}, bytes);
    real_->adamw(s, boxes, step);
  }
  void sum_squares(Stream& s, std::span<const Matrix> boxes, double* out) override {
    double bytes = 0;
    int64_t elements = 0;
    for (const Matrix& box : boxes) elements += box.count(), bytes += bytes_of_matrix(box);
    add({"sum_squares", int64_t(boxes.size()), elements}, bytes);
    real_->sum_squares(s, boxes, out);
  }
  void sum(Stream& s, const float* x, int64_t n, double* out) override {
    add({"sum", 1, n}, 4.0 * double(n));
    real_->sum(s, x, n, out);
  }

 private:
  OpCount& add(const OpShape& shape, double bytes, double flops = 0) {
    OpCount& count = tally_.ops[shape];
    ++count.calls;
    count.flops += flops;
    count.bytes += bytes;
    return count;
  }
  static double bytes_of_all(std::initializer_list<Matrix> arguments) {
    double bytes = 0;
    for (const Matrix& m : arguments) bytes += bytes_of_matrix(m);
    return bytes;
  }
  void elements(std::string_view op, const Matrix& result, std::initializer_list<Matrix> arguments) {
    add({op, result.rows, result.cols}, bytes_of_all(arguments));
  }
  void product(std::string_view op, int64_t m, int64_t n, int64_t k,
               std::initializer_list<Matrix> arguments, double further_bytes = 0) {
    add({op, m, n, k}, bytes_of_all(arguments) + further_bytes, 2.0 * double(m) * double(n) * double(k));
  }
  /// The packed weight is an argument, too: [n, k] or [k, n] in the dtype of the activations.
  void product_with_weight(std::string_view op, int64_t m, int64_t n, int64_t k,
                           std::initializer_list<Matrix> arguments) {
    product(op, m, n, k, arguments, double(n) * double(k) * double(size_of(arguments.begin()->dtype)));
  }
  /// full: FLOPs of the full matrix of seq_len x seq_len for each of its elements and channel.
  void attention(std::string_view op, const AttentionShape& s, double full,
                 std::initializer_list<Matrix> arguments) {
    const double rows = double(s.batch * s.seq_len), cols = double(s.heads * s.head_dim);
    const double flops = full / 2 * rows * cols * double(s.seq_len);
    add({op, s.batch * s.seq_len, s.heads * s.head_dim, s.seq_len}, bytes_of_all(arguments), flops)
        .attention_flops += flops;
  }

  const std::unique_ptr<Backend> real_;
  WorkTally& tally_;
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
  return std::make_unique<CountingBackend>(std::move(real), tally);
}

std::unique_ptr<Backend> make_tally_backend(WorkTally& tally, bool bias_in_activation_dtype) {
  return make_counting_backend(std::make_unique<NoDevice>(bias_in_activation_dtype), tally);
}

}  // namespace trainctl::kernels
