#include "runtime/model/placement_twin.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/plain_weight.h"
#include "kernels/tally.h"

namespace trainctl {

using kernels::Matrix;
using parallel::Placement;
using namespace parallel::placements;
using enum parallel::Placement;

namespace {

const char* bytes_at(const void* address) { return static_cast<const char*>(address); }

}  // namespace

Placement Placements::at(const void* address) const {
  unread_.erase(address);
  auto region = regions_.upper_bound(bytes_at(address));
  // Views of columns of one matrix overlap: the nearest begin is the one that was set for this view.
  while (region != regions_.begin()) {
    --region;
    if (region->second.end > bytes_at(address)) return region->second.placement;
  }
  return none;
}

void Placements::set(const Matrix& m, Placement placement) {
  if (!m) return;
  const char* const begin = bytes_at(m.data);
  const size_t size = size_of(m.dtype);
  const char* const end = begin + (size_t(m.rows - 1) * size_t(m.stride) + size_t(m.cols)) * size;
  // What began within it is gone, but for other columns of the same matrix, which begin in the first row.
  const char* const first_row = begin + size_t(m.cols) * size;
  regions_.erase(regions_.lower_bound(begin), regions_.lower_bound(std::min(first_row, end)));
  const char* const second_row = begin + size_t(m.stride) * size;
  if (second_row < end) regions_.erase(regions_.lower_bound(second_row), regions_.lower_bound(end));
  regions_[begin] = {end, placement};
}

void Placements::clear(const void* address, size_t n) {
  const char* const begin = bytes_at(address);
  regions_.erase(regions_.lower_bound(begin), regions_.lower_bound(begin + n));
  regions_[begin] = {begin + n, none};
}

namespace {

class PlacementBackend final : public kernels::Backend {
 public:
  PlacementBackend(Placements& placements, bool converts_biases)
      : p_(placements), converts_biases_(converts_biases) {}

  std::string name() const override { return "placements"; }
  std::string numerics() const override { return "placements"; }
  bool computes() const override { return false; }
  std::unique_ptr<kernels::Stream> create_stream() override { return memory_->create_stream(); }
  std::unique_ptr<kernels::Event> create_event() override { return memory_->create_event(); }
  std::unique_ptr<kernels::Buffer> allocate(size_t bytes) override { return memory_->allocate(bytes); }
  std::unique_ptr<kernels::Buffer> allocate_host(size_t bytes) override {
    return memory_->allocate_host(bytes);
  }
  void copy_to_device(kernels::Stream&, void*, const void*, size_t) override {}
  void copy_to_host(kernels::Stream&, void*, const void*, size_t) override {}
  void copy_on_device(kernels::Stream&, void*, const void*, size_t) override {}
  size_t allocated_bytes() const override { return memory_->allocated_bytes(); }
  size_t peak_allocated_bytes() const override { return memory_->peak_allocated_bytes(); }
  std::unique_ptr<kernels::PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return memory_->make_packed(n, k, dtype);
  }
  DType bias_dtype(DType activation) const override { return converts_biases_ ? activation : DType::f32; }
  void pack(kernels::Stream& stream, Matrix w, kernels::PackedWeight& packed) override {
    memory_->pack(stream, w, packed);
  }

  void fill_zero(kernels::Stream&, void* data, size_t bytes) override { p_.clear(data, bytes); }
  void copy(kernels::Stream&, Matrix src, Matrix dst) override { p_.set(dst, p_.of(src)); }
  void add(kernels::Stream&, Matrix src, Matrix dst) override {
    p_.set(dst, alike("a sum", p_.of(src), p_.of(dst)));
  }
  void tree_sum(kernels::Stream&, std::span<const void* const> inputs, void* out, DType dtype,
                int64_t n) override {
    Placement sum = none;
    for (const void* input : inputs) sum = alike("a sum over lanes", p_.at(input), sum);
    p_.set(kernels::vector(out, dtype, n), sum);
  }
  void add_rounded(kernels::Stream&, Matrix left, Matrix right, Matrix out) override {
    p_.set(out, alike("a sum", p_.of(left), p_.of(right)));
  }

  void embedding_forward(kernels::Stream&, const int32_t* ids, Matrix table, int64_t, Matrix out) override {
    p_.set(out, p_.of(table) == cut_rows ? partial : p_.at(ids));
  }
  void embedding_backward(kernels::Stream&, const int32_t* ids, Matrix dout, int64_t,
                          Matrix dtable) override {
    const Placement rows =
        alike("the rows of an embedding's gradient and its tokens", p_.of(dout), p_.at(ids));
    const Placement sum = row_sum(rows);
    accumulate(dtable, sum == replicated && p_.is_cut_table(dtable.data) ? cut_rows : sum, true);
  }
  void add_position(kernels::Stream&, Matrix table, int64_t, int64_t, Matrix x) override {
    added("the positions' table", p_.of(table), p_.of(x), 1);
  }
  void add_position_backward(kernels::Stream&, Matrix dx, int64_t, int64_t, Matrix dtable) override {
    accumulate(dtable, row_sum(p_.of(dx)), true);
  }

  void norm_forward(kernels::Stream&, kernels::NormKind, Matrix x, Matrix delta, Matrix weight, Matrix bias,
                    float, Matrix sum, Matrix y, float* stats) override {
    const Placement in = alike("the stream and what is added to it", p_.of(x), p_.of(delta));
    if (delta) p_.set(sum, in);
    apply_norm(in, weight, bias, y);
    p_.set(kernels::matrix(stats, DType::f32, x.rows, 2), in);
  }
  void norm_backward(kernels::Stream&, kernels::NormKind, Matrix dy, Matrix x, Matrix, const float* stats,
                     Matrix dresidual, Matrix dx, Matrix dweight, Matrix dbias, bool accumulates) override {
    alike("a norm's input and its statistics", p_.of(x), p_.at(stats));
    const Placement through = alike("the gradient of a norm's output and its input", p_.of(dy), p_.of(x));
    const Placement in =
        dresidual ? alike("the gradients of the stream", through, p_.of(dresidual)) : through;
    accumulate(dweight, row_sum(through), accumulates);
    accumulate(dbias, row_sum(through), accumulates);
    p_.set(dx, in);
  }
  void norm_apply(kernels::Stream&, kernels::NormKind, Matrix x, const float* stats, Matrix weight,
                  Matrix bias, Matrix y) override {
    apply_norm(alike("a norm's input and its statistics", p_.of(x), p_.at(stats)), weight, bias, y);
  }

  void linear_forward(kernels::Stream&, Matrix x, const kernels::PackedWeight& w, Matrix bias,
                      Matrix y) override {
    const Placement out = product(p_.of(x), weight(w));
    added("a bias", p_.of(bias), out, p_.rank());
    p_.set(y, out);
  }
  void linear_backward_input(kernels::Stream&, Matrix dy, const kernels::PackedWeight& w,
                             Matrix dx) override {
    p_.set(dx, input_gradient(p_.of(dy), weight(w)));
  }
  void linear_backward_weight(kernels::Stream&, Matrix dy, Matrix x, Matrix dw, Matrix dbias,
                              bool accumulates) override {
    accumulate(dw, weight_gradient(p_.of(dy), p_.of(x)), accumulates);
    accumulate(dbias, row_sum(p_.of(dy)), accumulates);
  }

  void gelu_forward(kernels::Stream&, Matrix x, Matrix y) override { p_.set(y, nonlinear("gelu", p_.of(x))); }
  void gelu_backward(kernels::Stream&, Matrix x, Matrix dy, Matrix dx) override {
    p_.set(dx, alike("gelu's input and the gradient of its output", p_.of(x), p_.of(dy)));
  }
  void swiglu_forward(kernels::Stream&, Matrix gate, Matrix up, Matrix y) override {
    p_.set(y, nonlinear("swiglu", alike("gate and up", p_.of(gate), p_.of(up))));
  }
  void swiglu_backward(kernels::Stream&, Matrix gate, Matrix up, Matrix dy, Matrix dgate,
                       Matrix dup) override {
    const Placement in = alike("gate and up", p_.of(gate), p_.of(up));
    for (const Matrix& d : {dgate, dup})
      p_.set(d, alike("swiglu's inputs and the gradient of its output", in, p_.of(dy)));
  }

  void rope(kernels::Stream&, Matrix x, int64_t, int64_t, const float*, bool) override {
    if (p_.of(x) == cut_rows) throw Misplaced{"positions are turned as if a rank had all rows"};
  }
  void attention_forward(kernels::Stream&, const kernels::AttentionShape&, Matrix q, Matrix k, Matrix v,
                         Matrix out, float* lse) override {
    const Placement heads = attention(q, k, v);
    p_.set(out, heads);
    p_.set(kernels::matrix(lse, DType::f32, out.rows, 1), heads);
  }
  void attention_backward(kernels::Stream&, const kernels::AttentionShape&, Matrix q, Matrix k, Matrix v,
                          Matrix out, const float* lse, Matrix dout, Matrix dq, Matrix dk,
                          Matrix dv) override {
    Placement heads = alike("attention's output and its sums", p_.of(out), p_.at(lse));
    heads = alike("attention's heads and the gradient of its output", attention(q, k, v),
                  alike("attention", heads, p_.of(dout)));
    for (const Matrix& d : {dq, dk, dv}) p_.set(d, heads);
  }

  void cross_entropy_stats(kernels::Stream&, Matrix logits, const int32_t* targets, int64_t,
                           float* stats) override {
    nonlinear("the loss", p_.of(logits));
    if (p_.of(logits) != cut_cols) alike("logits and their targets", p_.of(logits), p_.at(targets));
    p_.set(kernels::matrix(stats, DType::f32, logits.rows, 3), p_.of(logits));
  }
  void cross_entropy_combine(kernels::Stream&, const float* stats, int parts, int64_t m, float* lse,
                             float* loss) override {
    if (p_.at(stats) == cut_cols)
      throw Misplaced{fmt::format(
          "the loss is made of the statistics of {} part of the vocabulary, and others are missing", parts)};
    for (float* out : {lse, loss}) p_.set(kernels::vector(out, DType::f32, m), p_.at(stats));
  }
  void cross_entropy_backward(kernels::Stream&, Matrix logits, const int32_t*, int64_t, const float* lse,
                              float) override {
    if (p_.of(logits) != cut_cols) alike("logits and their sums", p_.of(logits), p_.at(lse));
  }

  void adamw(kernels::Stream&, std::span<const kernels::AdamWBox>, const kernels::AdamWStep&) override {}
  void sum_squares(kernels::Stream&, std::span<const Matrix>, double*) override {}
  void sum(kernels::Stream&, const float* x, int64_t, double*) override {
    nonlinear("the sum of losses", p_.at(x));
  }

 private:
  Placement weight(const kernels::PackedWeight& w) const { return p_.of(kernels::PlainWeight::of(w)); }
  void apply_norm(Placement in, Matrix weight, Matrix bias, Matrix y) {
    nonlinear("a norm", in);
    if (in == cut_cols) throw Misplaced{"a norm reads some of the columns as if they were all"};
    added("a norm's weight", p_.of(weight), in, p_.rank());
    added("a norm's bias", p_.of(bias), in, p_.rank());
    p_.set(y, in);
  }
  Placement attention(Matrix q, Matrix k, Matrix v) const {
    const Placement heads = alike("queries and keys", p_.of(q), alike("keys and values", p_.of(k), p_.of(v)));
    nonlinear("attention", heads);
    if (heads == cut_rows) throw Misplaced{"attention reads some of the rows as if they were all"};
    return heads;
  }
  void accumulate(Matrix gradient, Placement of_micro_batch, bool accumulates) {
    if (!gradient) return;
    const Placement before = accumulates ? p_.of(gradient) : none;
    p_.set(gradient, alike("the gradients of two micro-batches", before, of_micro_batch));
  }

  Placements& p_;
  const bool converts_biases_;
  kernels::WorkTally work_;
  const std::unique_ptr<kernels::Backend> memory_ = kernels::make_tally_backend(work_);
};

}  // namespace

std::unique_ptr<kernels::Backend> make_placement_backend(Placements& placements, bool converts_biases) {
  return std::make_unique<PlacementBackend>(placements, converts_biases);
}

Matrix PlacementTensorParallel::enter(Matrix local, Matrix full) {
  if (!cuts_rows()) return local;
  gather(local, full);
  return full;
}

void PlacementTensorParallel::gather(Matrix own, Matrix all) {
  const Placement in = placements_.of(own);
  if (!is_tensor_axis_) return placements_.set(all, in);
  if (in != cut_rows && in != cut_cols)
    throw Misplaced{fmt::format("the tensor group gathers what is {}", word_of(in))};
  placements_.set(all, replicated);
}

Matrix PlacementTensorParallel::leave(Matrix part, Matrix local) {
  const Placement in = placements_.of(part);
  const Matrix out = size() > 1 && cuts_rows() ? local : part;
  if (!is_tensor_axis_ || size() == 1) {
    placements_.set(out, in);
    return out;
  }
  if (in != partial) throw Misplaced{fmt::format("the tensor group adds what is {}", word_of(in))};
  placements_.set(out, cuts_rows() ? cut_rows : replicated);
  return out;
}

}  // namespace trainctl
