// Times a feed-forward sublayer of experts against a dense one whose tokens have as many products, forward
// and backward, in turn, on one core, and prints one JSON line for each number of rows an expert. Rates count
// the FLOPs of those products alone, so that the router, the order of rows and their way cost the experts
// rate. Times are those of the thread, of which the best turn counts: other programs of the machine take
// none.
//
//   bench_experts [turns]
#include <fmt/format.h>

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace trainctl::kernels {
namespace {

struct Sizes {
  int64_t hidden = 1024, expert_ffn = 768, experts = 16, top_k = 2;
  int64_t rows = 64;  ///< of an expert, in the mean
  int64_t tokens() const { return rows * experts / top_k; }
  int64_t slots() const { return rows * experts; }
  /// Of the six products of each pass, in a token's experts.
  double flops() const { return 18.0 * double(slots() * expert_ffn * hidden); }
};

class Layers {
 public:
  Layers(Backend& backend, DType dtype, const Sizes& s)
      : backend_(backend), stream_(backend.create_stream()), dtype_(dtype), s_(s) {
    const int64_t m = s.tokens(), c = s.hidden, f = s.expert_ffn, wide = f * s.top_k, e = s.experts;
    x_ = random(dtype, m, c), dout_ = random(dtype, m, c), out_ = random(dtype, m, c),
    dx_ = random(dtype, m, c);
    dense_ = {weight(2 * wide, c), weight(c, wide)};
    grouped_ = {weight(e * 2 * f, c), weight(e * c, f)};
    router_ = weight(e, c, DType::f32);
    up_ = random(dtype, s.slots(), 2 * f), dup_ = random(dtype, s.slots(), 2 * f);
    act_ = random(dtype, s.slots(), f), dact_ = random(dtype, s.slots(), f),
    scaled_ = random(dtype, s.slots(), f);
    rows_of_tokens_ = random(dtype, s.slots(), c);
    logits_ = random(DType::f32, m, e), dlogits_ = random(DType::f32, m, e), x32_ = random(DType::f32, m, c);
    dx32_ = random(DType::f32, m, c), weights_ = random(DType::f32, m, s.top_k);
    dweights_ = random(DType::f32, m, s.top_k);
    ids_ = ints(m, s.top_k), counts_ = ints(1, e), offsets_ = ints(1, e + 1), slots_ = ints(1, s.slots()),
    rows_ = ints(1, s.slots());
  }

  void dense() {
    const int64_t m = s_.tokens(), wide = s_.expert_ffn * s_.top_k;
    const Matrix up = view(up_, m, 2 * wide), dup = view(dup_, m, 2 * wide), act = view(act_, m, wide),
                 dact = view(dact_, m, wide), gate = up.columns(0, wide), value = up.columns(wide, wide);
    run(LinearForward{.x = x_, .w = dense_.up.packed.get(), .y = up});
    run(GatedForward{.gate = gate, .up = value, .y = act});
    run(LinearForward{.x = act, .w = dense_.down.packed.get(), .y = out_});
    run(LinearBackwardInput{.dy = dout_, .w = dense_.down.packed.get(), .dx = dact});
    run(GatedBackward{.gate = gate,
                      .up = value,
                      .dy = dact,
                      .dgate = dup.columns(0, wide),
                      .dup = dup.columns(wide, wide)});
    run(LinearBackwardInput{.dy = dup, .w = dense_.up.packed.get(), .dx = dx_});
    run(LinearBackwardWeight{.dy = dout_, .x = act, .dw = dense_.down.gradient, .accumulate = true});
    run(LinearBackwardWeight{.dy = dup, .x = x_, .dw = dense_.up.gradient, .accumulate = true});
  }

  /// The ops of the sublayer of experts (runtime/model/sublayers/moe.cpp) on a rank that has all of them.
  void experts() {
    const int64_t f = s_.expert_ffn, k = s_.top_k;
    const Matrix gate = up_.columns(0, f), value = up_.columns(f, f);
    const Matrix input = dtype_ == DType::f32 ? x_ : x32_;
    if (dtype_ != DType::f32) run(Copy{.src = x_, .dst = x32_});
    run(LinearForward{.x = input, .w = router_.packed.get(), .y = logits_});
    run(Route{
        .seq_len = s_.tokens(), .logits = logits_, .ids = ids_, .weights = weights_, .counts = counts_});
    run(SortByExpert{.ids = ids_, .offsets = offsets_, .slots = slots_, .rows = rows_});
    const GatherRows gather{.x = x_, .slots = slots_, .out = rows_of_tokens_, .top_k = k};
    const GatherRows gather_gradient{.x = dout_, .slots = slots_, .out = rows_of_tokens_, .top_k = k};
    run(gather);
    run(GroupedForward{.x = rows_of_tokens_, .offsets = offsets_, .w = grouped_.up.packed.get(), .y = up_});
    run(GatedForward{.gate = gate, .up = value, .y = act_});
    run(ScaleRows{.x = act_, .weights = weights_, .slots = slots_, .y = scaled_});
    run(GroupedForward{
        .x = scaled_, .offsets = offsets_, .w = grouped_.down.packed.get(), .y = rows_of_tokens_});
    run(CombineRows{.x = rows_of_tokens_, .rows = rows_, .out = out_});
    run(gather_gradient);
    run(GroupedBackwardInput{
        .dy = rows_of_tokens_, .offsets = offsets_, .w = grouped_.down.packed.get(), .dx = dact_});
    run(GatedForward{.gate = gate, .up = value, .y = act_});
    run(ScaleRowsBackward{
        .x = act_, .weights = weights_, .slots = slots_, .dy = dact_, .dweights = dweights_, .dx = dact_});
    run(GatedBackward{
        .gate = gate, .up = value, .dy = dact_, .dgate = dup_.columns(0, f), .dup = dup_.columns(f, f)});
    run(GroupedBackwardInput{
        .dy = dup_, .offsets = offsets_, .w = grouped_.up.packed.get(), .dx = rows_of_tokens_});
    run(CombineRows{.x = rows_of_tokens_, .rows = rows_, .out = dx_});
    run(RouteBackward{.seq_len = s_.tokens(),
                      .aux = 0.01f,
                      .logits = logits_,
                      .ids = ids_,
                      .counts = counts_,
                      .dweights = dweights_,
                      .dlogits = dlogits_});
    run(LinearBackwardInput{.dy = dlogits_, .w = router_.packed.get(), .dx = dx32_});
    if (dtype_ == DType::f32)
      run(Add{.src = dx32_, .dst = dx_});
    else
      run(Copy{.src = dx32_, .dst = dx_});
    run(gather_gradient);
    run(GroupedBackwardWeight{.dy = rows_of_tokens_,
                              .x = scaled_,
                              .offsets = offsets_,
                              .dw = grouped_.down.gradient,
                              .accumulate = true});
    run(gather);
    run(GroupedBackwardWeight{.dy = dup_,
                              .x = rows_of_tokens_,
                              .offsets = offsets_,
                              .dw = grouped_.up.gradient,
                              .accumulate = true});
    run(LinearBackwardWeight{.dy = dlogits_, .x = input, .dw = router_.gradient, .accumulate = true});
  }

  void measure(int turns) {
    dense(), experts();
    double best_dense_s = 1e30, best_experts_s = 1e30;
    for (int turn = 0; turn < turns; ++turn) {
      best_dense_s = std::min(best_dense_s, seconds([&] { dense(); }));
      op_s_.clear();
      const double s = seconds([&] { experts(); });
      if (s < best_experts_s) best_experts_s = s, best_op_s_ = op_s_;
    }
    const auto* counts = counts_.as<int32_t>();
    const auto [least, most] = std::minmax_element(counts, counts + s_.experts);
    fmt::print(
        "{{\"dtype\":\"{}\",\"rows\":{},\"least_rows\":{},\"most_rows\":{},\"dense_gflops\":{:.1f},"
        "\"experts_gflops\":{:.1f},\"ratio\":{:.3f},\"ms\":{{",
        name_of(dtype_), s_.rows, *least, *most, s_.flops() / best_dense_s * 1e-9,
        s_.flops() / best_experts_s * 1e-9, best_dense_s / best_experts_s);
    const char* comma = "";
    for (const auto& [name, s] : best_op_s_)
      fmt::print("{}\"{}\":{:.2f}", std::exchange(comma, ","), name, s * 1e3);
    fmt::print("}}}}\n");
    std::fflush(stdout);
  }

 private:
  struct Weight {
    std::unique_ptr<PackedWeight> packed;
    Matrix gradient;
  };
  struct UpAndDown {
    Weight up, down;
  };

  static double thread_s() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
  }
  template <typename Body>
  static double seconds(Body body) {
    const double begin = thread_s();
    body();
    return thread_s() - begin;
  }
  template <typename Operation>
  void run(const Operation& op) {
    op_s_[Operation::kName] += seconds([&] { backend_.run(*stream_, op); });
  }
  Matrix take(DType dtype, int64_t rows, int64_t cols) {
    buffers_.push_back(backend_.allocate(size_t(rows * cols) * size_of(dtype)));
    return matrix(buffers_.back()->data(), dtype, rows, cols);
  }
  Matrix random(DType dtype, int64_t rows, int64_t cols) {
    const Matrix m = take(dtype, rows, cols);
    std::normal_distribution<float> normal(0, 0.1f);
    for (int64_t i = 0; i < m.count(); ++i)
      if (dtype == DType::f32)
        m.as<float>()[i] = normal(random_);
      else
        m.as<bf16>()[i] = bf16(normal(random_));
    return m;
  }
  Matrix ints(int64_t rows, int64_t cols) { return take(DType::i32, rows, cols); }
  Weight weight(int64_t n, int64_t k) { return weight(n, k, dtype_); }
  Weight weight(int64_t n, int64_t k, DType dtype) {
    Weight w{backend_.make_packed(n, k, dtype), random(DType::f32, n, k)};
    backend_.run(*stream_, Pack{.w = random(dtype, n, k), .packed = w.packed.get()});
    return w;
  }
  static Matrix view(const Matrix& m, int64_t rows, int64_t cols) {
    return matrix(m.data, m.dtype, rows, cols);
  }

  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  const DType dtype_;
  const Sizes s_;
  std::mt19937 random_{1};
  std::vector<std::unique_ptr<Buffer>> buffers_;
  UpAndDown dense_, grouped_;
  Weight router_;
  Matrix x_, dout_, out_, dx_, up_, dup_, act_, dact_, scaled_, rows_of_tokens_;
  Matrix logits_, dlogits_, x32_, dx32_, weights_, dweights_, ids_, counts_, offsets_, slots_, rows_;
  std::map<std::string, double> op_s_, best_op_s_;
};

}  // namespace
}  // namespace trainctl::kernels

int main(int argc, char** argv) {
  using namespace trainctl;
  const auto backend = kernels::make_cpu_backend(1);
  const int turns = argc > 1 ? std::atoi(argv[1]) : 20;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t rows : {16, 64, 128, 256})
      kernels::Layers(*backend, dtype, {.rows = rows}).measure(turns);
}
