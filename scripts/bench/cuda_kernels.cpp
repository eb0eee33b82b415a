// Times every op of the CUDA backend and prints one JSON line per op and shape: microseconds per call, the host's share of it, and GB/s
// with the share of the copy bandwidth, or TFLOP/s with the share of the product rate. Both units are measured first, in the same run.
// Shapes: one GPT-2 124M micro-batch of 32768 tokens, and one Llama 8B layer on 8192 tokens; attention of Llama 3.2 1B on 2 x 8192 as well.
//
//   bench_cuda_kernels [--tiny] [part of an op's name]     --tiny: shapes for a GPU that is emulated; its times mean nothing
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "runtime/base/error.h"

namespace trainctl::kernels {
namespace {

struct Model {
  std::string name;
  int64_t batch, seq_len, channels, heads, kv_heads, head_dim, hidden, vocab;
  bool gated;            ///< RMSNorm, SwiGLU and rotary positions; else LayerNorm, GELU and learned ones
  int64_t layers_held;   ///< whose optimizer state is updated at once

  int64_t rows() const { return batch * seq_len; }
  /// Between two rows of logits, as in runtime/model/stage_model.cpp: rows begin on 128 bytes.
  int64_t logits_stride() const { return (vocab + 63) / 64 * 64; }
  int64_t qkv() const { return (heads + 2 * kv_heads) * head_dim; }
};

const Model kGpt2{"gpt2-124m", 32, 1024, 768, 12, 12, 64, 3072, 50257, false, 12};
const Model kLlama{"llama-8b-layer", 1, 8192, 4096, 32, 8, 128, 14336, 128256, true, 1};
/// Of this one attention alone: small heads and long sequences.
const Model kLlama1B{"llama-1b-layer", 2, 8192, 2048, 32, 8, 64, 8192, 128256, true, 0};
const Model kTinyGpt{"tiny-gpt", 2, 24, 64, 4, 4, 16, 96, 131, false, 2};
const Model kTinyLlama{"tiny-llama", 1, 48, 64, 4, 2, 16, 96, 131, true, 1};

struct Options {
  bool tiny = false;
  std::string part;
};

struct Units {
  double copy_bytes_per_s = 0, product_flops_per_s = 0;
};

/// Device memory filled with normal numbers: zeros would cost a GPU less power, and so be faster.
class Memory {
 public:
  Memory(Backend& backend, Stream& stream) : backend_(backend), stream_(stream) {}

  Matrix operator()(DType dtype, int64_t rows, int64_t cols) {
    const size_t bytes = size_t(rows * cols) * size_of(dtype);
    held_.push_back(backend_.allocate(bytes));
    char* const data = static_cast<char*>(held_.back()->data());
    const std::vector<char> pattern = pattern_of(dtype, std::min(bytes, kPatternBytes));
    backend_.copy_to_device(stream_, data, pattern.data(), pattern.size());
    stream_.synchronize();
    for (size_t filled = pattern.size(); filled < bytes; filled *= 2) {
      backend_.copy_on_device(stream_, data + filled, data, std::min(filled, bytes - filled));
    }
    return matrix(data, dtype, rows, cols);
  }
  float* floats(int64_t n) { return (*this)(DType::f32, 1, n).as<float>(); }
  int32_t* ids(int64_t n, int64_t vocab) {
    std::mt19937 random(1);
    std::vector<int32_t> host;
    for (int64_t i = 0; i < n; ++i) host.push_back(int32_t(random() % uint32_t(vocab)));
    held_.push_back(backend_.allocate(host.size() * sizeof(int32_t)));
    backend_.copy_to_device(stream_, held_.back()->data(), host.data(), host.size() * sizeof(int32_t));
    stream_.synchronize();
    return static_cast<int32_t*>(held_.back()->data());
  }
  double* host_doubles(size_t n) {
    held_.push_back(backend_.allocate_host(n * sizeof(double)));
    return static_cast<double*>(held_.back()->data());
  }

 private:
  static constexpr size_t kPatternBytes = size_t{1} << 20;

  static std::vector<char> pattern_of(DType dtype, size_t bytes) {
    std::mt19937 random(7);
    std::normal_distribution<float> draw(0.0f, 0.5f);
    std::vector<char> pattern(bytes);
    for (size_t at = 0; at < bytes; at += size_of(dtype)) {
      const float x = draw(random);
      const uint16_t half = bf16(x).bits;
      std::memcpy(pattern.data() + at, dtype == DType::f32 ? static_cast<const void*>(&x) : &half, size_of(dtype));
    }
    return pattern;
  }

  Backend& backend_;
  Stream& stream_;
  std::vector<std::unique_ptr<Buffer>> held_;
};

struct Timing {
  double seconds = 0, enqueue_seconds = 0;   ///< per call
};

/// Batches long enough that their end is not seen; of several, the one in the middle.
Timing time_calls(Stream& stream, bool tiny, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  const auto batch = [&](int calls) {
    stream.synchronize();
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    const auto given = Clock::now();
    stream.synchronize();
    const auto per_call = [&](auto duration) { return std::chrono::duration<double>(duration).count() / calls; };
    return Timing{per_call(Clock::now() - begin), per_call(given - begin)};
  };
  const Timing first = batch(1);
  if (tiny) return first;
  const int calls = std::clamp(int(0.02 / batch(3).seconds), 3, 1000);
  std::vector<Timing> batches;
  for (int i = 0; i < 5; ++i) batches.push_back(batch(calls));
  std::sort(batches.begin(), batches.end(), [](const Timing& a, const Timing& b) { return a.seconds < b.seconds; });
  return batches[2];
}

class Bench {
 public:
  /// by_product: the same GPU with CudaOptions::bias_gradients_by_product.
  Bench(Backend& backend, Backend& by_product, const Options& options)
      : backend_(backend), by_product_(by_product), options_(options), stream_(backend.create_stream()),
        by_product_stream_(by_product.create_stream()) {}

  void measure_units() {
    const size_t bytes = options_.tiny ? 4096 : size_t{1} << 30;
    Memory memory(backend_, *stream_);
    const Matrix from = memory(DType::f32, 1, int64_t(bytes / 4)), to = memory(DType::f32, 1, int64_t(bytes / 4));
    const Timing timing = time_calls(*stream_, options_.tiny, [&] { backend_.copy_on_device(*stream_, to.data, from.data, bytes); });
    units_.copy_bytes_per_s = 2 * double(bytes) / timing.seconds;
    units_.product_flops_per_s = options_.tiny ? 1e9 : measure_matmul_flops_per_s(backend_, DType::bf16);
    fmt::print("{{\"device\":\"{}\",\"copy_gb_per_s\":{:.0f},\"bf16_tflops\":{:.1f}}}\n", gpu_facts(0).name, units_.copy_bytes_per_s * 1e-9,
               units_.product_flops_per_s * 1e-12);
  }

  /// Causal: half of the T x T products count.
  void attention(const Model& model) {
    Memory memory(backend_, *stream_);
    const AttentionShape shape{model.batch, model.seq_len, model.heads, model.kv_heads, model.head_dim, 0.125f};
    const int64_t rows = model.rows(), q_cols = model.heads * model.head_dim, k_cols = model.kv_heads * model.head_dim;
    const Matrix qkv = memory(kType, rows, model.qkv()), dqkv = memory(kType, rows, model.qkv());
    const Matrix out = memory(kType, rows, q_cols), dout = memory(kType, rows, q_cols);
    float* const lse = memory.floats(rows * model.heads);
    const auto q = [&](const Matrix& m) { return m.columns(0, q_cols); };
    const auto k = [&](const Matrix& m) { return m.columns(q_cols, k_cols); };
    const auto v = [&](const Matrix& m) { return m.columns(q_cols + k_cols, k_cols); };
    const double flops = 2.0 * double(rows) * double(model.seq_len) * double(q_cols);
    time(model, "attention_forward", out, 0, flops,
         AttentionForward{.shape = shape, .q = q(qkv), .k = k(qkv), .v = v(qkv), .out = out, .lse = lse});
    time(model, "attention_backward", out, 0, 2.5 * flops,
         AttentionBackward{.shape = shape, .q = q(qkv), .k = k(qkv), .v = v(qkv), .out = out, .lse = lse,
                           .dout = dout, .dq = q(dqkv), .dk = k(dqkv), .dv = v(dqkv)});
  }

  void run(const Model& model) {
    moves(model);
    tree_sums(model);
    embeddings(model);
    norms(model);
    products(model);
    activations(model);
    attention(model);
    loss(model);
    optimizer(model);
  }

 private:
  static constexpr DType kType = DType::bf16;
  static double bytes_of(const Matrix& m) { return double(m.count()) * double(size_of(m.dtype)); }

  /// `bytes`: read and written, at least once each. `flops` > 0 makes it a product.
  void time(const Model& model, const std::string& op, const Matrix& shape, double bytes, double flops, const std::function<void()>& call) {
    time(model, op, shape, bytes, flops, call, *stream_);
  }
  void time(const Model& model, const std::string& name, const Matrix& shape, double bytes, double flops, const Op& op) {
    time(model, name, shape, bytes, flops, [&] { backend_.run(*stream_, op); });
  }
  void time(const Model& model, const std::string& op, const Matrix& shape, double bytes, double flops, const std::function<void()>& call,
            Stream& stream) {
    if (op.find(options_.part) == std::string::npos) return;
    const Timing timing = time_calls(stream, options_.tiny, call);
    fmt::print("{{\"model\":\"{}\",\"op\":\"{}\",\"shape\":[{},{}],\"us\":{:.2f},\"enqueue_us\":{:.2f}", model.name, op, shape.rows,
               shape.cols, timing.seconds * 1e6, timing.enqueue_seconds * 1e6);
    if (flops > 0) {
      fmt::print(",\"tflops\":{:.2f},\"of_product\":{:.3f}}}\n", flops / timing.seconds * 1e-12,
                 flops / timing.seconds / units_.product_flops_per_s);
    } else {
      fmt::print(",\"gb_per_s\":{:.1f},\"of_copy\":{:.3f}}}\n", bytes / timing.seconds * 1e-9,
                 bytes / timing.seconds / units_.copy_bytes_per_s);
    }
    std::fflush(stdout);
  }

  void moves(const Model& model) {
    Memory memory(backend_, *stream_);
    const int64_t rows = model.rows(), cols = model.hidden;
    const Matrix a = memory(DType::f32, rows, cols), b = memory(DType::f32, rows, cols), half = memory(kType, rows, cols);
    const Matrix wide = memory(kType, rows, 2 * cols), odd = wide.columns(1, cols), even = wide.columns(0, cols);
    time(model, "fill_zero", a, bytes_of(a), 0, FillZero{.data = a.data, .size = size_t(bytes_of(a))});
    const auto copy = [&](const char* name, const Matrix& from, const Matrix& to) {
      time(model, name, from, bytes_of(from) + bytes_of(to), 0, Copy{.src = from, .dst = to});
    };
    copy("copy_f32_f32", a, b);
    copy("copy_f32_bf16", a, half);
    copy("copy_bf16_f32", half, a);
    copy("copy_bf16_columns", half, even);
    copy("copy_bf16_odd_columns", half, odd);
    time(model, "add_f32", a, 3 * bytes_of(a), 0, Add{.src = b, .dst = a});
    time(model, "add_bf16", half, 3 * bytes_of(half), 0, Add{.src = even, .dst = half});
  }

  void tree_sums(const Model& model) {
    const int64_t count = options_.tiny ? 100 : int64_t{1} << 24;
    for (const int n : {2, 4, 8, 16, 64}) {
      Memory memory(backend_, *stream_);
      std::vector<const void*> inputs;
      for (int i = 0; i < n; ++i) inputs.push_back(memory(DType::f32, 1, count).data);
      const Matrix out = memory(DType::f32, 1, count);
      time(model, fmt::format("tree_sum_{}", n), out, (n + 1) * bytes_of(out), 0,
           TreeSum{.inputs = inputs, .out = out.data, .dtype = DType::f32, .count = count});
    }
  }

  void embeddings(const Model& model) {
    Memory memory(backend_, *stream_);
    const Matrix x = memory(kType, model.rows(), model.channels), table = memory(kType, model.vocab, model.channels);
    const Matrix dtable = memory(DType::f32, model.vocab, model.channels);
    const int32_t* ids = memory.ids(model.rows(), model.vocab);
    time(model, "embedding_forward", x, 2 * bytes_of(x), 0,
         EmbeddingForward{.ids = ids, .table = table, .out = x});
    time(model, "embedding_backward", x, 5 * bytes_of(x), 0,
         EmbeddingBackward{.ids = ids, .dout = x, .dtable = dtable});
    if (model.gated) return;
    const Matrix positions = memory(DType::f32, model.seq_len, model.channels);
    time(model, "add_position", x, 2 * bytes_of(x), 0,
         AddPosition{.table = positions, .seq_len = model.seq_len, .x = x});
    time(model, "add_position_backward", x, bytes_of(x), 0,
         AddPositionBackward{.dx = x, .seq_len = model.seq_len, .dtable = positions});
  }

  void norms(const Model& model) {
    Memory memory(backend_, *stream_);
    const NormKind kind = model.gated ? NormKind::rmsnorm : NormKind::layernorm;
    const int64_t rows = model.rows(), cols = model.channels;
    const auto activation = [&] { return memory(kType, rows, cols); };
    const Matrix x = activation(), delta = activation(), y = activation(), sum = activation();
    const Matrix weight = memory(DType::f32, 1, cols), dweight = memory(DType::f32, 1, cols);
    const Matrix bias = model.gated ? Matrix{} : memory(DType::f32, 1, cols), dbias = model.gated ? Matrix{} : memory(DType::f32, 1, cols);
    float* const stats = memory.floats(2 * rows);
    const double bytes = bytes_of(x);
    time(model, "norm_forward_add", x, 4 * bytes, 0,
         NormForward{.kind = kind, .x = x, .delta = delta, .weight = weight, .bias = bias, .eps = 1e-5f,
                     .sum = sum, .y = y, .stats = stats});
    time(model, "norm_forward", x, 2 * bytes, 0,
         NormForward{.kind = kind, .x = x, .weight = weight, .bias = bias, .eps = 1e-5f, .y = y,
                     .stats = stats});
    time(model, "norm_apply", x, 2 * bytes, 0,
         NormApply{.kind = kind, .x = x, .stats = stats, .weight = weight, .bias = bias, .y = y});
    time(model, "norm_backward_add", x, 4 * bytes, 0,
         NormBackward{.kind = kind, .dy = y, .x = x, .weight = weight, .stats = stats, .dresidual = delta,
                      .dx = sum, .dweight = dweight, .dbias = dbias, .accumulate = true});
    time(model, "norm_backward", x, 3 * bytes, 0,
         NormBackward{.kind = kind, .dy = y, .x = x, .weight = weight, .stats = stats, .dx = sum,
                      .dweight = dweight, .dbias = dbias, .accumulate = true});
  }

  void products(const Model& model) {
    product(model, "qkv", model.qkv(), model.channels, !model.gated);
    product(model, "attention_out", model.channels, model.heads * model.head_dim, !model.gated);
    product(model, "mlp_up", model.gated ? 2 * model.hidden : model.hidden, model.channels, !model.gated);
    product(model, "mlp_down", model.channels, model.hidden, !model.gated);
    product(model, "head", model.vocab, model.channels, false);
  }

  void product(const Model& model, const std::string& name, int64_t n, int64_t k, bool with_bias) {
    Memory memory(backend_, *stream_);
    const int64_t stride = n == model.vocab ? model.logits_stride() : n;
    const Matrix x = memory(kType, model.rows(), k), w = memory(kType, n, k), y = memory(kType, model.rows(), stride).columns(0, n);
    const Matrix bias = with_bias ? memory(backend_.bias_dtype(kType), 1, n) : Matrix{};
    const Matrix dw = memory(DType::f32, n, k), dbias = with_bias ? memory(DType::f32, 1, n) : Matrix{};
    const auto packed = backend_.make_packed(n, k, kType);
    backend_.run(*stream_, Pack{.w = w, .packed = packed.get()});
    const double flops = 2.0 * double(model.rows()) * double(n) * double(k);
    time(model, name + "_forward", y, 0, flops,
         LinearForward{.x = x, .w = packed.get(), .bias = bias, .y = y});
    time(model, name + "_backward_input", x, 0, flops,
         LinearBackwardInput{.dy = y, .w = packed.get(), .dx = x});
    time(model, name + "_backward_weight", dw, 0, flops,
         LinearBackwardWeight{.dy = y, .x = x, .dw = dw, .dbias = dbias, .accumulate = true});
    if (with_bias) {
      time(model, name + "_backward_weight_by_product", dw, 0, flops,
           [&] {
             by_product_.run(*by_product_stream_, LinearBackwardWeight{.dy = y, .x = x, .dw = dw, .dbias = dbias,
                                                                       .accumulate = true});
           }, *by_product_stream_);
    }
    if (with_bias && name == "mlp_up") {
      const Matrix pre = memory(kType, model.rows(), n);
      time(model, name + "_gelu_forward", y, 0, flops,
           LinearGeluForward{.x = x, .w = packed.get(), .bias = bias, .pre = pre, .y = y});
    }
    if (with_bias && name == "mlp_down") {
      const Matrix pre = memory(kType, model.rows(), k);
      time(model, name + "_gelu_backward_input", x, 0, flops,
           LinearGeluBackwardInput{.dy = y, .w = packed.get(), .pre = pre, .dx = x});
    }
  }

  void activations(const Model& model) {
    Memory memory(backend_, *stream_);
    const int64_t rows = model.rows(), cols = model.hidden;
    const Matrix y = memory(kType, rows, cols), dy = memory(kType, rows, cols);
    const double bytes = bytes_of(y);
    if (!model.gated) {
      time(model, "gelu_forward", y, 2 * bytes, 0, ActivationForward{.x = y, .y = dy});
      time(model, "gelu_backward", y, 3 * bytes, 0, ActivationBackward{.x = y, .dy = dy, .dx = dy});
      return;
    }
    const Matrix both = memory(kType, rows, 2 * cols), dboth = memory(kType, rows, 2 * cols);
    const Matrix gate = both.columns(0, cols), up = both.columns(cols, cols);
    time(model, "swiglu_forward", y, 3 * bytes, 0, GatedForward{.gate = gate, .up = up, .y = y});
    time(model, "swiglu_backward", y, 5 * bytes, 0,
         GatedBackward{.gate = gate,
                       .up = up,
                       .dy = dy,
                       .dgate = dboth.columns(0, cols),
                       .dup = dboth.columns(cols, cols)});
    time(model, "geglu_erf_forward", y, 3 * bytes, 0,
         GatedForward{.kind = Gate::geglu_erf, .gate = gate, .up = up, .y = y});
    const Matrix q = memory(kType, rows, model.qkv()).columns(0, model.heads * model.head_dim);
    const float* cos_sin = memory.floats(model.seq_len * model.head_dim);
    time(model, "rope", q, 2 * bytes_of(q), 0,
         Rope{.x = q, .head_dim = model.head_dim, .seq_len = model.seq_len, .cos_sin = cos_sin});
    head_norms(model, memory, q);
  }

  /// Norms of the heads of queries.
  void head_norms(const Model& model, Memory& memory, const Matrix& q) {
    const int64_t group = model.head_dim;
    const Matrix dq = memory(kType, q.rows, q.cols), weight = memory(DType::f32, 1, group),
                 dweight = memory(DType::f32, 1, group);
    float *const sums = memory.floats(q.rows * model.heads), *const dots =
                                                                 memory.floats(q.rows * model.heads);
    const double bytes = bytes_of(q);
    time(model, "group_norm_sums", q, bytes, 0,
         GroupNormSums{.x = q, .group = group, .count = group, .sums = sums});
    time(model, "group_norm_apply", q, 2 * bytes, 0,
         GroupNormApply{
             .x = q, .group = group, .count = group, .sums = sums, .weight = weight, .eps = 1e-6f, .y = dq});
    time(model, "group_norm_dots", q, 2 * bytes, 0,
         GroupNormDots{.dy = dq, .x = q, .group = group, .count = group, .weight = weight, .dots = dots});
    time(model, "group_norm_backward", q, 3 * bytes, 0,
         GroupNormBackward{.dy = dq,
                           .x = q,
                           .group = group,
                           .count = group,
                           .sums = sums,
                           .dots = dots,
                           .weight = weight,
                           .eps = 1e-6f,
                           .dx = dq,
                           .dweight = dweight});
  }

  void loss(const Model& model) {
    Memory memory(backend_, *stream_);
    const int64_t rows = model.rows();
    const Matrix logits = memory(kType, rows, model.logits_stride()).columns(0, model.vocab);
    const int32_t* targets = memory.ids(rows, model.vocab);
    float *const stats = memory.floats(3 * rows), *const lse = memory.floats(rows), *const losses = memory.floats(rows);
    time(model, "cross_entropy_stats", logits, bytes_of(logits), 0,
         CrossEntropyStats{.logits = logits, .targets = targets, .stats = stats});
    time(model, "cross_entropy_combine", matrix(stats, DType::f32, rows, 3), 20.0 * double(rows), 0,
         CrossEntropyCombine{.stats = stats, .parts = 1, .m = rows, .lse = lse, .loss = losses});
    time(model, "cross_entropy_backward", logits, 2 * bytes_of(logits), 0,
         CrossEntropyBackward{.logits = logits, .targets = targets, .lse = lse, .scale = 1e-6f});
    const Matrix flat = matrix(losses, DType::f32, 1, rows);
    double* const total = memory.host_doubles(1);
    time(model, "sum", flat, bytes_of(flat), 0, Sum{.x = losses, .n = rows, .out = total});
  }

  void optimizer(const Model& model) {
    Memory memory(backend_, *stream_);
    std::vector<UpdateBox> boxes;
    std::vector<Matrix> gradients;
    double count = 0;
    const auto parameter = [&](int64_t rows, int64_t cols) {
      const auto state = [&] { return memory(DType::f32, rows, cols); };
      const Matrix grad = state(), master = state(), first = state(), second = state();
      backend_.run(*stream_, FillZero{.data = second.data, .size = size_t(bytes_of(second))});   // a second moment is not negative
      boxes.push_back({master.as<float>(), first.as<float>(), second.as<float>(), grad.as<float>(), cols, memory(kType, rows, cols), 0.1f});
      gradients.push_back(grad);
      count += double(rows * cols);
    };
    for (int64_t layer = 0; layer < model.layers_held; ++layer) {
      for (int i = 0; i < 2; ++i) parameter(1, model.channels);
      parameter(model.qkv(), model.channels);
      parameter(model.channels, model.heads * model.head_dim);
      parameter(model.gated ? 2 * model.hidden : model.hidden, model.channels);
      parameter(model.channels, model.hidden);
    }
    if (!model.gated) parameter(model.vocab, model.channels);
    const Matrix shape = matrix(nullptr, DType::f32, int64_t(boxes.size()), int64_t(count));
    const AdamWStep step{.lr = 1e-6f, .bias_correction1 = 0.1f, .bias_correction2 = 0.05f};
    time(model, "adamw", shape, count * (28 + double(size_of(kType))), 0,
         AdamW{.boxes = boxes, .step = step});
    double* const squares = memory.host_doubles(gradients.size());
    time(model, "sum_squares", shape, count * 4, 0, SumSquares{.boxes = gradients, .out = squares});
  }

  Backend &backend_, &by_product_;
  const Options options_;
  std::unique_ptr<Stream> stream_, by_product_stream_;
  Units units_;
};

}  // namespace
}  // namespace trainctl::kernels

int main(int argc, char** argv) {
  using namespace trainctl;
  kernels::Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tiny") == 0) options.tiny = true;
    else options.part = argv[i];
  }
  try {
    const auto backend = kernels::make_cuda_backend({}), by_product = kernels::make_cuda_backend({.bias_gradients_by_product = true});
    kernels::Bench bench(*backend, *by_product, options);
    bench.measure_units();
    bench.run(options.tiny ? kernels::kTinyGpt : kernels::kGpt2);
    bench.run(options.tiny ? kernels::kTinyLlama : kernels::kLlama);
    if (!options.tiny) bench.attention(kernels::kLlama1B);
  } catch (const Error& error) {
    fmt::print(stderr, "bench_cuda_kernels: {}\n", error.what());
    return 1;
  }
}
