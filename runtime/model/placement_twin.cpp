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

const char* end_of(const Matrix& m) {
  return bytes_at(m.data) + (size_t(m.rows - 1) * size_t(m.stride) + size_t(m.cols)) * size_of(m.dtype);
}

}  // namespace

Placement Placements::of(const Matrix& m) const {
  if (!m) return none;
  const auto view = views_.find(bytes_at(m.data));
  return view != views_.end() && view->second.end == end_of(m) ? view->second.placement : at(m.data);
}

void Placements::set_view(const Matrix& rows, Placement placement) {
  views_[bytes_at(rows.data)] = {end_of(rows), placement};
}

Placement Placements::at(const void* address) const {
  unread_.erase(address);
  auto region = regions_.upper_bound(bytes_at(address));
  // Views of columns of one matrix overlap: the nearest begin is the one that was set for this view. Where
  // nothing was set, there would be no end of going back.
  constexpr int kMostViews = 64;
  for (int i = 0; i < kMostViews && region != regions_.begin(); ++i) {
    --region;
    if (region->second.end > bytes_at(address)) return region->second.placement;
  }
  return none;
}

void Placements::set(const Matrix& m, Placement placement) {
  if (!m) return;
  const char* const begin = bytes_at(m.data);
  const size_t size = size_of(m.dtype);
  const char* const end = end_of(m);
  forget_views(begin, end);
  // What began within it is gone, but for other columns of the same matrix, which begin in the first row.
  const char* const first_row = begin + size_t(m.cols) * size;
  regions_.erase(regions_.lower_bound(begin), regions_.lower_bound(std::min(first_row, end)));
  const char* const second_row = begin + size_t(m.stride) * size;
  if (second_row < end) regions_.erase(regions_.lower_bound(second_row), regions_.lower_bound(end));
  regions_[begin] = {end, placement};
}

Placement Placements::of_columns(const Matrix& m) const {
  Placement all = of(m);
  const char* const begin = bytes_at(m.data);
  const char* const first_row = begin + size_t(m.cols) * size_of(m.dtype);
  for (auto region = regions_.upper_bound(begin); region != regions_.lower_bound(first_row); ++region)
    all = alike("the columns of one matrix", all, region->second.placement);
  return all;
}

void Placements::fill(const void* address, size_t n, Placement placement) {
  const char* const begin = bytes_at(address);
  forget_views(begin, begin + n);
  regions_.erase(regions_.lower_bound(begin), regions_.lower_bound(begin + n));
  regions_[begin] = {begin + n, placement};
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
  /// What the host knows of all ranks has no placement.
  void copy_to_device(kernels::Stream&, void* device, const void*, size_t bytes) override {
    p_.fill(device, bytes, none);
  }
  void copy_to_host(kernels::Stream&, void*, const void*, size_t) override {}
  void copy_on_device(kernels::Stream&, void*, const void*, size_t) override {}
  size_t allocated_bytes() const override { return memory_->allocated_bytes(); }
  size_t peak_allocated_bytes() const override { return memory_->peak_allocated_bytes(); }
  std::unique_ptr<kernels::PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return memory_->make_packed(n, k, dtype);
  }
  DType bias_dtype(DType activation) const override { return converts_biases_ ? activation : DType::f32; }
  void run(kernels::Stream& stream, const kernels::Op& op) override {
    std::visit(
        [&](const auto& one) {
          if constexpr (std::is_same_v<std::decay_t<decltype(one)>, kernels::Pack>)
            memory_->run(stream, one);
          else
            place(one);
        },
        op);
  }

 private:
  void place(const kernels::FillZero& op) { p_.fill(op.data, op.size, none); }
  void place(const kernels::Copy& op) { p_.set(op.dst, p_.of(op.src)); }
  void place(const kernels::Add& op) { p_.set(op.dst, alike("a sum", p_.of(op.src), p_.of(op.dst))); }
  void place(const kernels::TreeSum& op) {
    Placement sum = none;
    for (const void* input : op.inputs) sum = alike("a sum over lanes", p_.at(input), sum);
    p_.set(kernels::vector(op.out, op.dtype, op.count), sum);
  }
  void place(const kernels::AddRounded& op) {
    p_.set(op.out, alike("a sum", p_.of(op.left), p_.of(op.right)));
  }

  void place(const kernels::ScaledAdd& op) {
    p_.set(op.out, op.beta == 0 ? p_.of(op.x) : alike("a sum", p_.of(op.x), p_.of(op.out)));
  }

  void place(const kernels::EmbeddingForward& op) {
    p_.set(op.out, p_.of(op.table) == cut_rows ? partial : p_.at(op.ids));
  }
  void place(const kernels::EmbeddingBackward& op) {
    const Placement rows =
        alike("the rows of an embedding's gradient and its tokens", p_.of(op.dout), p_.at(op.ids));
    const Placement sum = row_sum(rows);
    accumulate(op.dtable, sum == replicated && p_.is_cut_table(op.dtable.data) ? cut_rows : sum, true);
  }
  void place(const kernels::AddPosition& op) {
    positioned(op.x, op.positions);
    added("the positions' table", p_.of(op.table), p_.of(op.x), 1);
  }
  void place(const kernels::AddPositionBackward& op) {
    positioned(op.dx, op.positions);
    accumulate(op.dtable, row_sum(p_.of(op.dx)), true);
  }

  void place(const kernels::NormForward& op) {
    const Placement in = alike("the stream and what is added to it", p_.of(op.x), p_.of(op.delta));
    if (op.delta) p_.set(op.sum, in);
    apply_norm(in, op.weight, op.bias, op.y);
    p_.set(kernels::matrix(op.stats, DType::f32, op.x.rows, 2), in);
  }
  void place(const kernels::NormBackward& op) {
    alike("a norm's input and its statistics", p_.of(op.x), p_.at(op.stats));
    // A norm's gradient is linear in that of its output: of a part of a sum it is a part of the result's sum.
    const bool is_part = p_.of(op.dy) == partial && p_.of(op.x) == replicated;
    const Placement through =
        is_part ? partial : alike("the gradient of a norm's output and its input", p_.of(op.dy), p_.of(op.x));
    const Placement in =
        op.dresidual ? alike("the gradients of the stream", through, p_.of(op.dresidual)) : through;
    accumulate(op.dweight, row_sum(through), op.accumulate);
    accumulate(op.dbias, row_sum(through), op.accumulate);
    p_.set(op.dx, in);
  }
  void place(const kernels::NormApply& op) {
    apply_norm(alike("a norm's input and its statistics", p_.of(op.x), p_.at(op.stats)), op.weight, op.bias,
               op.y);
  }

  void place(const kernels::GroupNormSums& op) {
    const Placement in = nonlinear("a norm", p_.of(op.x));
    p_.set(of_groups(op.sums, op), has_part_of_groups(op) ? partial : in);
  }
  void place(const kernels::GroupNormApply& op) {
    const Placement in = nonlinear("a norm", p_.of(op.x));
    group_statistics("a norm's sums", p_.at(op.sums), op.weight, in);
    p_.set(op.y, in);
  }
  void place(const kernels::GroupNormDots& op) {
    const Placement in = p_.of(op.x);
    const Placement d = gradient_through("the gradient of a norm's output and its input", p_.of(op.dy), in);
    group_weight(op.weight, in);
    p_.set(of_groups(op.dots, op), has_part_of_groups(op) ? partial : d);
  }
  void place(const kernels::GroupNormBackward& op) {
    const Placement in = p_.of(op.x);
    const Placement d = gradient_through("the gradient of a norm's output and its input", p_.of(op.dy), in);
    group_statistics("a norm's sums", p_.at(op.sums), op.weight, in);
    if (d == shared_part)
      alike("the dots of a norm's gradient", p_.at(op.dots), d);
    else
      group_statistics("the dots of a norm's gradient", p_.at(op.dots), op.weight, in);
    const bool is_cut = p_.of(op.weight) == cut_rows;
    accumulate(op.dweight, in == cut_cols && !is_cut ? partial : row_sum(d), op.accumulate);
    p_.set(op.dx, d);
  }

  void place(const kernels::LinearForward& op) {
    const Placement out = product(p_.of(op.x), weight(*op.w));
    added("a bias", p_.of(op.bias), out, p_.rank());
    p_.set(op.y, out);
  }
  void place(const kernels::LinearGeluForward& op) {
    place(kernels::LinearForward{.x = op.x, .w = op.w, .bias = op.bias, .y = op.pre});
    place(kernels::ActivationForward{.x = op.pre, .y = op.y});
  }
  void place(const kernels::LinearBackwardInput& op) {
    p_.set(op.dx, input_gradient(p_.of_columns(op.dy), weight(*op.w)));
  }
  void place(const kernels::LinearGeluBackwardInput& op) {
    place(kernels::LinearBackwardInput{.dy = op.dy, .w = op.w, .dx = op.dx});
    place(kernels::ActivationBackward{.x = op.pre, .dy = op.dx, .dx = op.dx});
  }
  void place(const kernels::LinearBackwardWeight& op) {
    const Placement dy = p_.of_columns(op.dy);
    accumulate(op.dw, weight_gradient(dy, p_.of(op.x)), op.accumulate);
    accumulate(op.dbias, row_sum(dy), op.accumulate);
  }

  void place(const kernels::ActivationForward& op) { p_.set(op.y, nonlinear("an activation", p_.of(op.x))); }
  void place(const kernels::ActivationBackward& op) {
    p_.set(op.dx, alike("an activation's input and the gradient of its output", p_.of(op.x), p_.of(op.dy)));
  }
  void place(const kernels::GatedForward& op) { p_.set(op.y, gate(op.gate, op.up)); }
  void place(const kernels::GatedBackward& op) {
    const Placement in = gate(op.gate, op.up);
    for (const Matrix& d : {op.dgate, op.dup})
      p_.set(d, alike("a gate's inputs and the gradient of its output", in, p_.of(op.dy)));
  }
  void place(const kernels::SigmoidGateForward& op) { p_.set(op.y, gate(op.gate, op.x)); }
  void place(const kernels::SigmoidGateBackward& op) {
    const Placement in = gate(op.gate, op.x);
    for (const Matrix& d : {op.dgate, op.dx})
      p_.set(d, alike("a gate's inputs and the gradient of its output", in, p_.of(op.dy)));
  }

  void place(const kernels::Route& op) {
    const Placement in = whole_rows("a router", op.logits);
    added("a router's bias", p_.of(op.bias), in, p_.rank());
    for (const Matrix& out : {op.ids, op.weights, op.counts}) p_.set(out, in);
  }
  void place(const kernels::AddCounts& op) { accumulate(op.sums, row_sum(p_.of(op.counts)), op.accumulate); }
  // What it counts is added over ranks in integers, outside of the step's program.
  void place(const kernels::CountMargins& op) const {
    whole_rows("a router's margins", op.logits);
    alike("margins and the experts of their tokens", p_.of(op.logits), p_.of(op.ids));
  }
  void place(const kernels::SortByExpert& op) {
    if (op.weights) alike("the experts of tokens and their weights", p_.of(op.ids), p_.of(op.weights));
    for (const Matrix& out : {op.offsets, op.slots, op.rows}) p_.set(out, p_.of(op.ids));
  }
  void place(const kernels::TokensOfRanks& op) {
    const Placement in = alike("rows of tokens and their order", p_.of(op.rows), p_.of(op.offsets));
    for (const Matrix& out : {op.firsts, op.tokens, op.places}) p_.set(out, in);
  }
  void place(const kernels::GatherRows& op) {
    routed("tokens and their experts", p_.of(op.x), p_.of(op.slots));
    p_.set(op.out, p_.of(op.x));
  }
  void place(const kernels::CombineRows& op) {
    routed("rows of experts and their tokens", p_.of(op.x), p_.of(op.rows));
    p_.set(op.out, p_.of(op.x));
  }
  void place(const kernels::ScaleRows& op) {
    if (p_.of(op.weights) == none)
      throw Misplaced{"rows of experts are multiplied by weights that did not come"};
    routed("rows of experts and their weights", p_.of(op.x), p_.of(op.weights));
    p_.set(op.y, p_.of(op.x));
  }
  void place(const kernels::ScaleRowsBackward& op) {
    const Placement both = alike("rows of experts and their gradient", p_.of(op.x), p_.of(op.dy));
    routed("rows of experts and their weights", both, p_.of(op.weights));
    p_.set(op.dx, both);
    p_.set(op.dweights, both == cut_cols ? partial : both);
  }
  void place(const kernels::GateRows& op) {
    routed("rows and their gates", p_.of(op.x), p_.of(op.logits));
    p_.set(op.y, p_.of(op.x));
  }
  void place(const kernels::GateRowsBackward& op) {
    const Placement both = alike("gated rows and their gradient", p_.of(op.x), p_.of(op.dy));
    routed("rows and their gates", both, p_.of(op.logits));
    p_.set(op.dx, both);
    p_.set(op.dlogits, both == cut_cols ? partial : both);
  }
  void place(const kernels::AddExpertBias& op) {
    routed("rows of experts and their order", p_.of(op.x), p_.of(op.offsets));
    added("a bias of experts", p_.of(op.bias), p_.of(op.x), p_.rank());
  }
  void place(const kernels::ExpertBiasBackward& op) {
    routed("rows of experts and their order", p_.of(op.dy), p_.of(op.offsets));
    accumulate(op.dbias, row_sum(p_.of(op.dy)), op.accumulate);
  }
  void place(const kernels::ExpertBiasWeights& op) {
    routed("rows of experts and their order", p_.of(op.dy), p_.of(op.offsets));
    added("the gradient of weights through a bias", p_.of(op.bias), p_.of(op.dweights), p_.rank());
  }
  void place(const kernels::RouteBackward& op) {
    const Placement in = whole_rows("a router", op.logits), weights = p_.of(op.dweights);
    if (weights != partial)
      alike("a router and the gradient of its weights", in, weights);
    else if (op.aux != 0 || op.z != 0)
      added("a router's own loss", in, partial, p_.rank());
    p_.set(op.dlogits, weights);
  }
  void place(const kernels::GroupedForward& op) {
    routed("rows of experts and their order", p_.of(op.x), p_.of(op.offsets));
    p_.set(op.y, product(p_.of(op.x), weight(*op.w)));
  }
  void place(const kernels::GroupedBackwardInput& op) {
    routed("rows of experts and their order", p_.of(op.dy), p_.of(op.offsets));
    p_.set(op.dx, input_gradient(p_.of(op.dy), weight(*op.w)));
  }
  void place(const kernels::GroupedBackwardWeight& op) {
    routed("rows of experts and their order", p_.of(op.x), p_.of(op.offsets));
    accumulate(op.dw, weight_gradient(p_.of(op.dy), p_.of(op.x)), op.accumulate);
  }

  void place(const kernels::Rope& op) const {
    const Placement in = p_.of(op.x);
    if (in == cut_rows && (!op.positions || p_.at(op.positions) != cut_rows))
      throw Misplaced{"positions are turned as if a rank had all rows"};
    // Turning is linear, too.
    if (op.positions && in != cut_cols && in != shared_cols && in != shared_part)
      alike("rows and their positions", in == partial ? replicated : in, p_.at(op.positions));
  }
  void place(const kernels::ExpandKeys& op) {
    const Placement heads = p_.of(op.kv);
    alike("what heads share and what they have of their own", p_.of(op.shared),
          heads == cut_cols ? replicated : heads);
    p_.set(op.k, heads), p_.set(op.v, heads);
  }
  void place(const kernels::ExpandKeysBackward& op) {
    const Placement heads = alike("the gradients of keys and values", p_.of(op.k), p_.of(op.v));
    p_.set(op.kv, heads);
    p_.set(op.shared, heads == cut_cols ? partial : heads);
  }
  void place(const kernels::AttentionForward& op) {
    const Placement heads = attention(op.shape, op.q, op.k, op.v);
    positioned(op.q, op.shape.mask.first_key);
    for (const kernels::HeadScalarRow& row : kernels::kHeadScalars)
      if (const float* const scalar = op.shape.mask.scalars[row.scalar])
        added(fmt::format("an attention's {}", row.word), p_.at(scalar), heads, p_.rank());
    p_.set(op.out, heads);
    p_.set(kernels::matrix(op.lse, DType::f32, op.out.rows, 1), heads);
  }
  void place(const kernels::AttentionBackward& op) {
    Placement heads = alike("attention's output and its sums", p_.of(op.out), p_.at(op.lse));
    heads = alike("attention's heads and the gradient of its output", attention(op.shape, op.q, op.k, op.v),
                  alike("attention", heads, p_.of(op.dout)));
    positioned(op.q, op.shape.mask.first_key);
    const bool has_all_keys = p_.of(op.k) == replicated && heads == cut_rows;
    const Placement keys = p_.of(op.k) == shared_cols ? shared_part : has_all_keys ? partial : heads;
    p_.set(op.dq, heads);
    for (const Matrix& d : {op.dk, op.dv}) p_.set(d, keys);
  }
  void place(const kernels::HeadScalarBackward& op) {
    const Placement heads = alike("attention's rows and its sums", p_.of(op.left()), p_.at(op.lse));
    const Placement both = alike("attention's rows and their gradient", heads, p_.of(op.right()));
    added(fmt::format("an attention's {}", row_of(op.scalar).word), p_.of(op.values), both, p_.rank());
    accumulate(op.dvalues, row_sum(both), op.accumulate);
  }

  void place(const kernels::FormLogits& op) const { nonlinear("the form of logits", p_.of(op.logits)); }
  void place(const kernels::CrossEntropyStats& op) {
    nonlinear("the loss", p_.of(op.logits));
    if (p_.of(op.logits) != cut_cols)
      alike("logits and their targets", p_.of(op.logits), p_.at(op.targets));
    p_.set(kernels::matrix(op.stats, DType::f32, op.logits.rows, 3), p_.of(op.logits));
  }
  void place(const kernels::CrossEntropyCombine& op) {
    if (p_.at(op.stats) == cut_cols)
      throw Misplaced{fmt::format(
          "the loss is made of the statistics of {} part of the vocabulary, and others are missing", op.parts)};
    if (op.targets) alike("the loss and its targets", p_.at(op.stats), p_.at(op.targets));
    if (op.weights) alike("the loss and its weights", p_.at(op.stats), p_.at(op.weights));
    for (float* out : {op.lse, op.loss}) p_.set(kernels::vector(out, DType::f32, op.m), p_.at(op.stats));
  }
  void place(const kernels::CrossEntropyBackward& op) const {
    if (p_.of(op.logits) != cut_cols) alike("logits and their sums", p_.of(op.logits), p_.at(op.lse));
    if (op.weights) alike("the weights of the loss and its sums", p_.at(op.weights), p_.at(op.lse));
  }

  /// Each value by itself, with a scale near it: a part of a sum stays one.
  void place(const kernels::Quantize& op) { p_.set(op.y, p_.of(op.x)); }
  void place(const kernels::QuantizeFp4& op) { p_.set(op.y, p_.of(op.x)); }
  void place(const kernels::QuantizeWeight& op) { p_.set(op.result(), p_.of(op.w)); }

  void place(const kernels::AdamW&) const {}
  void place(const kernels::Lion&) const {}
  void place(const kernels::Sgd&) const {}
  void place(const kernels::Balance&) const {}
  void place(const kernels::SumSquares&) const {}
  void place(const kernels::Digest&) const {}
  void place(const kernels::Sum& op) const { nonlinear("the sum of losses", p_.at(op.x)); }

  Placement weight(const kernels::PackedWeight& w) const { return p_.of(kernels::PlainWeight::of(&w)); }
  void apply_norm(Placement in, Matrix weight, Matrix bias, Matrix y) {
    nonlinear("a norm", in);
    if (in == cut_cols) throw Misplaced{"a norm reads some of the columns as if they were all"};
    added("a norm's weight", p_.of(weight), in, p_.rank());
    added("a norm's bias", p_.of(bias), in, p_.rank());
    p_.set(y, in);
  }
  Placement whole_rows(std::string_view what, Matrix m) const {
    const Placement in = nonlinear(what, p_.of(m));
    if (in == cut_cols)
      throw Misplaced{fmt::format("{} reads some of the columns as if they were all", what)};
    return in;
  }
  /// Rows meet what a router said of them: of all tokens on each rank that shares them, or of its own.
  static void routed(std::string_view what, Placement rows, Placement router) {
    if (rows != cut_cols && rows != partial) alike(what, rows, router);
    if (rows == cut_cols || rows == partial) alike(what, replicated, router);
  }
  /// Rows of a rank's own have positions of its own; some of the rows may have some of all positions.
  void positioned(Matrix rows, const int32_t* positions) const {
    if (positions && p_.of(rows) == varying) alike("rows and their positions", varying, p_.at(positions));
  }
  /// A rank has some of the columns of each group.
  bool has_part_of_groups(const auto& op) const { return op.count > op.group && p_.of(op.x) == cut_cols; }
  static Matrix of_groups(float* values, const auto& op) {
    return kernels::matrix(values, DType::f32, op.x.rows, op.x.cols / op.group);
  }
  /// A weight of which a rank has some meets the same columns of one group; another one meets whole groups,
  /// whichever of them a rank has.
  void group_weight(Matrix weight, Placement in) const {
    const bool meets_whole_groups = (in == cut_cols || in == shared_cols) && p_.of(weight) != cut_rows;
    added("a norm's weight", p_.of(weight), meets_whole_groups ? replicated : in, p_.rank());
  }
  /// Sums over the columns of groups, before they meet the columns.
  void group_statistics(std::string_view what, Placement sums, Matrix weight, Placement in) const {
    nonlinear(what, sums);
    group_weight(weight, in);
    alike(what, sums, p_.of(weight) == cut_rows ? replicated : in);
  }
  Placement gate(Matrix gate, Matrix up) const {
    return nonlinear("a gate", alike("a gate and what it is multiplied with", p_.of(gate), p_.of(up)));
  }
  Placement attention(const kernels::AttentionShape& shape, Matrix q, Matrix k, Matrix v) const {
    const Placement keys = nonlinear("attention", alike("keys and values", p_.of(k), p_.of(v)));
    // A rank's queries are of the head that it shares.
    if (keys == shared_cols && p_.of(q) == cut_cols) return cut_cols;
    // Some of the queries, of whole sequences.
    if (keys == replicated && p_.of(q) == cut_rows && shape.keys > 0) return cut_rows;
    const Placement heads = alike("queries and keys", p_.of(q), keys);
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

}  // namespace trainctl
