// Times every op of a GPT-2 124M training step on the CPU backend and prints one JSON line per op:
// milliseconds per call, calls per step, GFLOP/s or GB/s, and the ratio to the unit (the f32 1024^3 product
// rate of the same run). The last line of each configuration adds the step up: model FLOP/s over the unit.
//
//   bench_kernels [threads [masks | digest]]
//
// masks: only attention of one sequence of 4096 tokens by its mask, each in turns with the causal one, over
// whose time its own is the ratio; the best of all turns counts.
// digest: only the digest of the state, with each instruction set of the machine. core_ms is the time of all
// threads together, which other processes change little.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "runtime/model/sublayers/arena.h"

namespace trainctl::kernels {
namespace {

constexpr int64_t kLayers = 12, kC = 768, kHeads = 12, kVocab = 50257, kHidden = 4 * kC;
constexpr double kParameters = 124.4e6;

/// Buffers by name, filled with small numbers, and the ops of one configuration.
class Bench {
 public:
  Bench(Backend& backend, DType dtype, int64_t batch, int64_t seq_len, double unit)
      : backend_(backend), stream_(backend.create_stream()), dtype_(dtype), batch_(batch), seq_len_(seq_len),
        rows_(batch * seq_len), unit_(unit) {}

  void run() {
    linear("qkv", 3 * kC, kC, kLayers);
    linear("attn_out", kC, kC, kLayers);
    linear("mlp_up", kHidden, kC, kLayers);
    linear("mlp_down", kC, kHidden, kLayers);
    linear("head", kVocab, kC, 1);
    attention();
    norms();
    elementwise();
    loss();
    optimizer();
    const double tokens = double(rows_);
    const double flops = 6 * kParameters * tokens + 6.0 * double(kLayers * seq_len_ * kC) * tokens;
    fmt::print("{{\"step\":\"gpt2-124m\",\"dtype\":\"{}\",\"batch\":{},\"seq_len\":{},\"ms\":{:.1f},\"ratio\":{:.3f}}}\n",
               name_of(dtype_), batch_, seq_len_, step_ms_, flops / (step_ms_ * 1e-3) / unit_);
  }

  /// Of the state after a step, of which not every one has a digest.
  void digest() {
    const int64_t n = int64_t(kParameters) / kC;
    std::vector<DigestBox> state;
    for (const char* name : {"master", "first", "second"})
      state.push_back({matrix(buffer(name, DType::f32, n, kC).data, DType::f32, 1, n * kC), state.size()});
    std::vector<uint64_t> digests(state.size());
    std::clock_t best = 0;
    const double bytes = double(n * kC) * 12;
    time("state_digest", 0, 0, bytes, [&] {
      const std::clock_t begin = std::clock();
      backend_.run(*stream_, Digest{.boxes = state, .out = digests.data()});
      const std::clock_t taken = std::clock() - begin;
      best = best == 0 ? taken : std::min(best, taken);
    });
    fmt::print("{{\"op\":\"state_digest\",\"core_ms\":{},\"gb_per_core_s\":{:.1f}}}\n",
               best * 1000 / CLOCKS_PER_SEC, bytes * 1e-9 / (double(best) / CLOCKS_PER_SEC));
  }

  /// `ratio`: of the causal mask's time to its own.
  void masks() {
    constexpr int kTurns = 7;
    std::vector<int32_t> first_key;
    for (int64_t m = 0; m < rows_; ++m)
      first_key.push_back(int32_t(m % seq_len_ / (seq_len_ / 8) * (seq_len_ / 8)));
    const std::vector<float> sinks(kHeads, 0.5f);
    const std::pair<const char*, AttentionMask> all[] = {{"causal", {}},
                                                         {"documents_t8", {.first_key = first_key.data()}},
                                                         {"window_t8", {.window = seq_len_ / 8}},
                                                         {"cap", {.cap = 30}},
                                                         {"sinks", {.scalars = {sinks.data()}}}};
    std::map<std::string, double> best_s;
    for (int turn = 0; turn < kTurns; ++turn)
      for (const auto& [name, mask] : all) {
        const auto [forward, backward] = attention_ops(mask);
        for (const auto& [pass, op] : {std::pair<std::string, Op>{"_fwd", forward}, {"_bwd", backward}}) {
          double& best = best_s.try_emplace(name + pass, 1e30).first->second;
          best = std::min(best, seconds_of([&] { backend_.run(*stream_, op); }));
        }
      }
    for (const auto& [name, mask] : all) {
      const double forward = best_s[std::string(name) + "_fwd"],
                   backward = best_s[std::string(name) + "_bwd"];
      fmt::print(
          "{{\"mask\":\"{}\",\"dtype\":\"{}\",\"tokens\":{},\"fwd_ms\":{:.1f},\"bwd_ms\":{:.1f},"
          "\"fwd_ratio\":{:.2f},\"bwd_ratio\":{:.2f},\"ratio\":{:.2f}}}\n",
          name, name_of(dtype_), rows_, forward * 1e3, backward * 1e3, best_s["causal_fwd"] / forward,
          best_s["causal_bwd"] / backward,
          (best_s["causal_fwd"] + best_s["causal_bwd"]) / (forward + backward));
    }
  }

 private:
  Matrix buffer(const std::string& name, DType dtype, int64_t rows, int64_t cols) {
    auto& b = buffers_[name + std::to_string(cols)];
    if (!b) {
      b = backend_.allocate(size_t(rows * cols) * size_of(dtype));
      const Matrix m = matrix(b->data(), dtype, rows, cols);
      for (int64_t i = 0; i < m.count(); ++i) {
        const float value = float((i * 2654435761u) % 2000) * 1e-3f - 1.0f;
        if (dtype == DType::f32) {
          m.as<float>()[i] = value;
        } else {
          m.as<bf16>()[i] = bf16(value);
        }
      }
    }
    return matrix(b->data(), dtype, rows, cols);
  }
  /// Lies as a layer's tensors do in a model's memory.
  Matrix activation(const std::string& name, int64_t cols) {
    Arena measure;
    measure.take_alone(dtype_, rows_, cols);
    Arena place(buffer(name, dtype_, 1, int64_t(measure.used() / size_of(dtype_))).data);
    return place.take_alone(dtype_, rows_, cols);
  }
  Matrix row(const std::string& name, int64_t cols) { return buffer(name, DType::f32, 1, cols); }

  using Clock = std::chrono::steady_clock;
  static double seconds_of(const std::function<void()>& call) {
    const auto start = Clock::now();
    call();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  void time(const std::string& name, int64_t calls, double flops, double bytes, const Op& op) {
    time(name, calls, flops, bytes, [&] { backend_.run(*stream_, op); });
  }
  void time(const std::string& op, int64_t calls, double flops, double bytes,
            const std::function<void()>& call) {
    call();
    double best_s = 1e30;
    const auto begin = Clock::now();
    for (int i = 0; i < 3 || (Clock::now() - begin < std::chrono::milliseconds(150) && i < 50); ++i)
      best_s = std::min(best_s, seconds_of(call));
    step_ms_ += best_s * 1e3 * double(calls);
    fmt::print("{{\"op\":\"{}\",\"dtype\":\"{}\",\"rows\":{},\"ms\":{:.3f},\"calls\":{},\"step_ms\":{:.2f}", op,
               name_of(dtype_), rows_, best_s * 1e3, calls, best_s * 1e3 * double(calls));
    if (flops > 0) {
      fmt::print(",\"gflops\":{:.1f},\"ratio\":{:.3f}}}\n", flops / best_s * 1e-9, flops / best_s / unit_);
    } else {
      fmt::print(",\"gb_per_s\":{:.1f}}}\n", bytes / best_s * 1e-9);
    }
  }

  void linear(const std::string& name, int64_t n, int64_t k, int64_t calls) {
    const Matrix x = activation("x", k), y = activation("y", n), w = buffer(name, dtype_, n, k);
    const Matrix dw = buffer(name + "_dw", DType::f32, n, k), bias = row("bias", n);
    const auto packed = backend_.make_packed(n, k, dtype_);
    const double flops = 2.0 * double(rows_ * n * k);
    if (packed->bytes() > 0) {
      time(name + "_pack", calls, 0, double(n * k) * double(size_of(dtype_)),
           Pack{.w = w, .packed = packed.get()});
    } else {
      backend_.run(*stream_, Pack{.w = w, .packed = packed.get()});
    }
    time(name + "_fwd", calls, flops, 0, LinearForward{.x = x, .w = packed.get(), .bias = bias, .y = y});
    time(name + "_dx", calls, flops, 0, LinearBackwardInput{.dy = y, .w = packed.get(), .dx = x});
    time(name + "_dw", calls, flops, 0,
         LinearBackwardWeight{.dy = y, .x = x, .dw = dw, .dbias = bias, .accumulate = true});
    buffers_.erase(name + std::to_string(k));
    buffers_.erase(name + "_dw" + std::to_string(k));
  }

  std::pair<AttentionForward, AttentionBackward> attention_ops(const AttentionMask& mask = {}) {
    const AttentionShape shape{batch_, seq_len_, kHeads, kHeads, kC / kHeads, 0.125f, 0, mask};
    const Matrix qkv = activation("qkv", 3 * kC), dqkv = activation("dqkv", 3 * kC);
    const Matrix out = activation("attn", kC), dout = activation("dattn", kC);
    float* lse = buffer("lse", DType::f32, rows_, kHeads).as<float>();
    const auto column = [](const Matrix& m, int64_t i) { return m.columns(i * kC, kC); };
    return {AttentionForward{.shape = shape,
                             .q = column(qkv, 0),
                             .k = column(qkv, 1),
                             .v = column(qkv, 2),
                             .out = out,
                             .lse = lse},
            AttentionBackward{.shape = shape,
                              .q = column(qkv, 0),
                              .k = column(qkv, 1),
                              .v = column(qkv, 2),
                              .out = out,
                              .lse = lse,
                              .dout = dout,
                              .dq = column(dqkv, 0),
                              .dk = column(dqkv, 1),
                              .dv = column(dqkv, 2)}};
  }
  void attention() {
    const double flops = 2.0 * double(rows_ * seq_len_ * kC);  // causal: half of two T x T products
    const auto [forward, backward] = attention_ops();
    time("attention_fwd", kLayers, flops, 0, forward);
    time("attention_bwd", kLayers, 2.5 * flops, 0, backward);
  }

  void norms() {
    const Matrix x = activation("x", kC), delta = activation("attn", kC), y = activation("y", kC);
    const Matrix weight = row("weight", kC), bias = row("bias", kC);
    const Matrix dweight = row("dweight", kC), dbias = row("dbias", kC);
    float* stats = buffer("stats", DType::f32, rows_, 2).as<float>();
    const double bytes = double(x.count()) * double(size_of(dtype_));
    time("norm_fwd", 2 * kLayers + 1, 0, 4 * bytes,
         NormForward{.kind = NormKind::layernorm, .x = x, .delta = delta, .weight = weight, .bias = bias,
                     .eps = 1e-5f, .sum = x, .y = y, .stats = stats});
    time("norm_bwd", 2 * kLayers + 1, 0, 4 * bytes,
         NormBackward{.kind = NormKind::layernorm, .dy = y, .x = x, .weight = weight, .stats = stats,
                      .dresidual = delta, .dx = delta, .dweight = dweight, .dbias = dbias,
                      .accumulate = true});
  }

  void elementwise() {
    const Matrix x = activation("x", kHidden), y = activation("y", kHidden);
    const double bytes = double(x.count()) * double(size_of(dtype_));
    time("gelu_fwd", kLayers, 0, 2 * bytes, ActivationForward{.x = x, .y = y});
    time("gelu_bwd", kLayers, 0, 3 * bytes, ActivationBackward{.x = x, .dy = y, .dx = y});
  }

  void loss() {
    const Matrix logits = activation("y", kVocab), table = buffer("table", dtype_, kVocab, kC);
    const Matrix dtable = buffer("dtable", DType::f32, kVocab, kC), x = activation("x", kC);
    std::vector<int32_t> ids;
    for (int64_t m = 0; m < rows_; ++m) {
      ids.push_back(int32_t(m * 7919 % kVocab));
    }
    float* stats = buffer("ce", DType::f32, rows_, 5).as<float>();
    float *lse = stats + 3 * rows_, *losses = stats + 4 * rows_;
    const double bytes = double(logits.count()) * double(size_of(dtype_));
    time("cross_entropy_fwd", 1, 0, bytes, [&] {
      backend_.run(*stream_, CrossEntropyStats{.logits = logits, .targets = ids.data(), .stats = stats});
      backend_.run(*stream_, CrossEntropyCombine{.stats = stats, .parts = 1, .m = rows_, .lse = lse,
                                                 .loss = losses});
    });
    time("cross_entropy_bwd", 1, 0, 2 * bytes,
         CrossEntropyBackward{.logits = logits, .targets = ids.data(), .lse = lse, .scale = 1e-3f});
    time("embedding_fwd", 1, 0, 2 * double(x.count()) * double(size_of(dtype_)),
         EmbeddingForward{.ids = ids.data(), .table = table, .out = x});
    time("embedding_bwd", 1, 0, 3 * double(x.count()) * double(size_of(dtype_)),
         EmbeddingBackward{.ids = ids.data(), .dout = x, .dtable = dtable});
    buffers_.clear();
  }

  void optimizer() {
    const int64_t n = int64_t(kParameters) / kC;
    const Matrix master = buffer("master", DType::f32, n, kC), first = buffer("first", DType::f32, n, kC);
    const Matrix second = buffer("second", DType::f32, n, kC), grad = buffer("grad", DType::f32, n, kC);
    const Matrix param = buffer("param", dtype_, n, kC);
    const UpdateBox box[] = {
        {master.as<float>(), first.as<float>(), second.as<float>(), grad.as<float>(), kC, param, 0.1f}};
    const double count = double(n * kC);
    time("adamw", 1, 0, count * (28 + double(size_of(dtype_))), AdamW{.boxes = box, .step = {.lr = 1e-4f}});
    double squares = 0;
    time("grad_norm", 1, 0, count * 4, SumSquares{.boxes = {&grad, 1}, .out = &squares});
    digest();
    time("zero_grad", 1, 0, count * 4, FillZero{.data = grad.data, .size = size_t(grad.count()) * 4});
  }

  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  DType dtype_;
  int64_t batch_, seq_len_, rows_;
  double unit_, step_ms_ = 0;
  std::map<std::string, std::unique_ptr<Buffer>> buffers_;
};

}  // namespace
}  // namespace trainctl::kernels

int main(int argc, char** argv) {
  using namespace trainctl;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  if (argc > 2 && std::strcmp(argv[2], "digest") == 0) {
    using kernels::cpu::InstructionSet;
    for (const InstructionSet isa : {InstructionSet::v2, InstructionSet::v3, InstructionSet::v4}) {
      if (!kernels::cpu::supports(isa)) continue;
      const auto backend = kernels::cpu::make_cpu_backend(threads, isa);
      fmt::print("{{\"device\":\"{}\",\"threads\":{}}}\n", backend->numerics(), threads);
      kernels::Bench(*backend, DType::f32, 1, 1, 1).digest();
    }
    return 0;
  }
  const auto backend = kernels::make_cpu_backend(threads);
  const double unit = kernels::measure_matmul_flops_per_s(*backend, DType::f32);
  fmt::print("{{\"unit_gflops\":{:.1f},\"bf16_gflops\":{:.1f}}}\n", unit * 1e-9,
             kernels::measure_matmul_flops_per_s(*backend, DType::bf16) * 1e-9);
  const bool only_masks = argc > 2 && std::strcmp(argv[2], "masks") == 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t seq_len : {256, 64})
      if (!only_masks) kernels::Bench(*backend, dtype, 4, seq_len, unit).run();
    kernels::Bench(*backend, dtype, 1, 4096, unit).masks();
  }
}
