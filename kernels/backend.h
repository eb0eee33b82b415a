// Backend: all ops of one device. One object per rank. Every op is enqueued on a stream; a CPU stream runs it
// at once. The formula in an op's docstring defines the op; kernels/reference computes that formula in plain
// loops.
//
// Letters: M rows = tokens of a micro-batch (b * T + t), C/K input channels, N output channels, T sequence
// length, H query heads, G key/value heads (H is a multiple of G), D head dimension, V vocabulary rows held
// by this rank.
//
// Rules for every op, on every device:
//  - "activation" dtype is f32 or bf16 (all activations of one call agree); sums inside an op are at least f32.
//  - Weight gradients, bias gradients, norm parameters and biases are f32.
//  - `accumulate = true` adds to the destination; false overwrites it, also where it held NaN.
//  - Deterministic: for one shape the same bits with any thread count and any alignment.
//  - Pointers are device memory, 64-byte aligned at the start of an allocation. Shapes that disagree are an
//    ENSURE failure. A failure of the device is Error(kHardware).
//  - Only the first call of an op with some shapes may allocate.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/tensor.h"

namespace trainctl::kernels {

/// A position in a stream. The event is reached when all work enqueued before the last Stream::record is
/// done. An event that was never recorded is reached.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool reached() = 0;        ///< never blocks
  virtual void synchronize() = 0;    ///< blocks the host until the event is reached
};

/// An in-order queue of work on a device. Streams of one device run concurrently unless an event orders them.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Blocks the host until all work enqueued so far is done. Error(kHardware) if some of it failed.
  virtual void synchronize() = 0;
  /// Moves the event to the end of the work enqueued so far.
  virtual void record(Event& event) = 0;
  /// Work enqueued from now on starts after the event, as recorded now, is reached.
  virtual void wait(Event& event) = 0;
};

/// Memory with one owner; freed by the destructor. Zero-filled when allocated.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual size_t bytes() const = 0;
};

/// A [N, K] weight in the form that this device multiplies fastest. Backend::pack fills it.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  virtual size_t bytes() const = 0;  ///< device memory in addition to the plain weight
};

enum class NormKind { rmsnorm, layernorm };

/// Which keys a query sees, and what becomes of its scores. The query at row t of its sequence has position
/// t + query_offset and sees the keys from first_key to its own position.
struct AttentionMask {
  int64_t query_offset = 0;            ///< of the first query among the keys of its sequence
  const int32_t* first_key = nullptr;  ///< [B*T] of each query: a document's begin, a window's; null: 0
  float cap = 0;                       ///< a score s becomes cap * tanh(s / cap); 0: it stays
  const float* sinks = nullptr;        ///< [H] a score of each head that takes its share and gives no value
  bool is_causal() const { return query_offset == 0 && !first_key && cap == 0 && !sinks; }
};

struct AttentionShape {
  int64_t batch = 0, seq_len = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0f;  ///< usually 1 / sqrt(head_dim)
  int64_t keys = 0;    ///< of a sequence; 0: as many as queries
  /// The reference computes every mask, the other backends so far the causal one: they refuse others.
  AttentionMask mask = {};
  int64_t keys_of_sequence() const { return keys > 0 ? keys : seq_len; }
  bool is_causal() const { return keys_of_sequence() == seq_len && mask.is_causal(); }
};

/// One box of a parameter with its optimizer state. master, first_moment, second_moment: [rows * cols]
/// contiguous f32. grad: f32, param: f32 or bf16 (the compute copy), both with their own row stride.
struct AdamWBox {
  float *master = nullptr, *first_moment = nullptr, *second_moment = nullptr;
  const float* grad = nullptr;
  int64_t grad_stride = 0;
  Matrix param;  ///< its shape is the shape of the box
  float weight_decay = 0;
};

/// Factors of one AdamW step. bias_correction1 = 1 - beta1^t, bias_correction2 = 1 - beta2^t (t from 1).
struct AdamWStep {
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, grad_scale = 1, bias_correction1 = 1, bias_correction2 = 1;
};

/// The largest shapes of a run's ops; they determine the scratch memory of the ops. 0: the run does not use
/// the op.
struct ScratchShape {
  int64_t rows = 0;            ///< M
  int64_t widest = 0;          ///< largest number of columns of a norm or of a product's bias
  AttentionShape attention;
  int64_t embedding_rows = 0, embedding_cols = 0;   ///< of the local table
  int64_t optimizer_elements = 0, optimizer_boxes = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  ///< "cpu", "cuda", "reference", ...
  /// All that affects the bits of ops besides their arguments: kind of device, architecture or instruction
  /// set, versions of the libraries for products. "cpu v4 oneDNN 2.6.3 avx512_core_amx", "cuda sm_90 132 SMs
  /// cuBLASLt 13.1.0". Backends with equal texts give equal bits.
  virtual std::string numerics() const = 0;
  /// True if the host may read and write this device's memory and every op is done when its call returns.
  virtual bool is_host() const { return false; }
  /// False for the tally twin, whose memory has no contents, so that callers need not fill it.
  virtual bool computes() const { return true; }
  virtual std::unique_ptr<Stream> create_stream() = 0;
  virtual std::unique_ptr<Event> create_event() = 0;
  /// Device memory. Error(kHardware) if there is not enough.
  virtual std::unique_ptr<Buffer> allocate(size_t bytes) = 0;
  /// Host memory that the device can copy from and to directly (pinned).
  virtual std::unique_ptr<Buffer> allocate_host(size_t bytes) = 0;
  // Copies are enqueued. The host memory must stay valid, and the source unchanged, until they are done. A
  // copy is asynchronous to the host only if the host memory is from allocate_host.
  virtual void copy_to_device(Stream&, void* device, const void* host, size_t bytes) = 0;
  virtual void copy_to_host(Stream&, void* host, const void* device, size_t bytes) = 0;
  virtual void copy_on_device(Stream&, void* dst, const void* src, size_t bytes) = 0;
  /// Names the work enqueued until the matching end_range, for a profiler of the device. Does nothing on
  /// devices without one.
  virtual void begin_range(const char* name) { (void)name; }
  virtual void end_range() {}
  /// Allocates the scratch memory for ops of these shapes. Without this call the ops allocate it when first
  /// called.
  virtual void reserve_scratch(const ScratchShape&) {}
  /// Device memory allocated through this backend now, and the largest amount so far, in bytes.
  virtual size_t allocated_bytes() const = 0;
  virtual size_t peak_allocated_bytes() const = 0;

  // ---- elementwise and copies -------------------------------------------------------------------------
  virtual void fill_zero(Stream&, void* data, size_t bytes) = 0;
  /// dst = src, converted to dst's dtype (round to nearest even); f32 and bf16; strides may differ.
  virtual void copy(Stream&, Matrix src, Matrix dst) = 0;
  /// dst = dst + src; both of one dtype, sum in f32, rounded once.
  virtual void add(Stream&, Matrix src, Matrix dst) = 0;
  /// out[i] = balanced tree sum over inputs[0..n)[i]: neighbours are added pairwise, an odd last one is
  /// carried to the next level; each addition in f32. dtype f32 or bf16 (bf16: f32 inside, rounded at the
  /// end). `out` may be one of the inputs. All contiguous, `count` elements.
  virtual void tree_sum(Stream&, std::span<const void* const> inputs, void* out, DType dtype, int64_t count) = 0;
  /// out = bf16(left) + bf16(right): operands in f32 are rounded to bf16 first (to nearest even), the sum is
  /// made in f32 and rounded once, to out's dtype. left and right have one dtype; each of the dtypes is f32
  /// or bf16. `out` may be an operand of its dtype.
  virtual void add_rounded(Stream&, Matrix left, Matrix right, Matrix out) = 0;

  // ---- embedding --------------------------------------------------------------------------------------
  /// out[m] = table[ids[m] - vocab_begin] where that row exists here, else 0.
  /// ids i32 [M], table [V, C], out [M, C]
  virtual void embedding_forward(Stream&, const int32_t* ids, Matrix table, int64_t vocab_begin, Matrix out) = 0;
  /// dtable[ids[m] - vocab_begin] += dout[m], rows in order of m.   dtable f32 [V, C], always accumulates
  virtual void embedding_backward(Stream&, const int32_t* ids, Matrix dout, int64_t vocab_begin, Matrix dtable) = 0;
  /// x[m] += table[(first_row + m) mod T].
  /// table f32 [T, C]; x [M, C] holds rows first_row.. of the micro-batch
  virtual void add_position(Stream&, Matrix table, int64_t first_row, int64_t seq_len, Matrix x) = 0;
  /// dtable[(first_row + m) mod T] += dx[m], in order of m.   dtable f32, at least T rows
  virtual void add_position_backward(Stream&, Matrix dx, int64_t first_row, int64_t seq_len, Matrix dtable) = 0;

  // ---- norms ------------------------------------------------------------------------------------------
  /// sum = x + delta (delta may be empty: sum = x and `sum` is not written);
  /// layernorm: y = (sum - mean) * rstd * weight + bias;   rmsnorm: y = sum * rstd * weight (bias empty)
  /// stats f32 [M, 2] = (mean, rstd); mean = 0 for rmsnorm. x, delta, sum, y: activations [M, C]; `sum` may
  /// be x. The sum is rounded to the activation dtype before it is normalised.
  virtual void norm_forward(Stream&, NormKind, Matrix x, Matrix delta, Matrix weight, Matrix bias, float eps, Matrix sum,
                            Matrix y, float* stats) = 0;
  /// Gradient of the above at x (= the stored sum): dx = d(norm)/dx . dy + dresidual (may be empty);
  /// dweight, dbias (dbias may be empty) f32 [1, C] (+)= their sums over the rows, each sum rounded before it
  /// is added. dx may be dresidual.
  virtual void norm_backward(Stream&, NormKind, Matrix dy, Matrix x, Matrix weight, const float* stats, Matrix dresidual,
                             Matrix dx, Matrix dweight, Matrix dbias, bool accumulate) = 0;
  /// y from the stored sum and stats, bit-identical to norm_forward's y (for recomputation).
  virtual void norm_apply(Stream&, NormKind, Matrix x, const float* stats, Matrix weight, Matrix bias, Matrix y) = 0;

  // ---- matrix products --------------------------------------------------------------------------------
  /// An empty PackedWeight for a [N, K] weight, to use with activations of `dtype`.
  virtual std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) = 0;
  /// Fills `packed` from w [N, K] (f32 or bf16: the compute copy). Call it after every change of w. `w` must
  /// stay alive and unchanged while `packed` is used, because a device may read it directly.
  virtual void pack(Stream&, Matrix w, PackedWeight& packed) = 0;
  /// The dtype in which products of `activation` use a bias without conversion. A bias in f32 also works, but
  /// a device may convert it in each call.
  virtual DType bias_dtype(DType activation) const { return (void)activation, DType::f32; }
  /// y = x w^T + bias.
  /// x [M, K], y [M, N] activations (y may also be f32); bias [1, N] f32 or of bias_dtype(), or empty
  virtual void linear_forward(Stream&, Matrix x, const PackedWeight& w, Matrix bias, Matrix y) = 0;
  /// dx = dy w.   dy [M, N], dx [M, K]
  virtual void linear_backward_input(Stream&, Matrix dy, const PackedWeight& w, Matrix dx) = 0;
  /// pre = x w^T + bias, y = gelu(pre). A device may fuse linear_forward and gelu_forward. Every call on a
  /// device gives the same bits, which may differ from those of the two separate ops.
  virtual void linear_gelu_forward(Stream& stream, Matrix x, const PackedWeight& w, Matrix bias, Matrix pre, Matrix y) {
    linear_forward(stream, x, w, bias, pre);
    gelu_forward(stream, pre, y);
  }
  /// dx = (dy w) * gelu'(pre).   dy [M, N], pre and dx [M, K]
  virtual void linear_gelu_backward_input(Stream& stream, Matrix dy, const PackedWeight& w, Matrix pre, Matrix dx) {
    linear_backward_input(stream, dy, w, dx);
    gelu_backward(stream, pre, dx, dx);
  }
  /// dw (+)= dy^T x ; dbias (+)= sum over m of dy[m].
  /// dw f32 [N, K] (stride allowed), dbias f32 [1, N] or empty
  virtual void linear_backward_weight(Stream&, Matrix dy, Matrix x, Matrix dw, Matrix dbias, bool accumulate) = 0;

  // ---- activations ------------------------------------------------------------------------------------
  /// y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  virtual void gelu_forward(Stream&, Matrix x, Matrix y) = 0;
  /// dx = dy * gelu'(x); dx may be dy
  virtual void gelu_backward(Stream&, Matrix x, Matrix dy, Matrix dx) = 0;
  /// y = silu(gate) * up, silu(z) = z / (1 + exp(-z)); gate and up may be columns of one matrix
  virtual void swiglu_forward(Stream&, Matrix gate, Matrix up, Matrix y) = 0;
  /// dgate = dy * up * silu'(gate), dup = dy * silu(gate)
  virtual void swiglu_backward(Stream&, Matrix gate, Matrix up, Matrix dy, Matrix dgate, Matrix dup) = 0;

  // ---- attention --------------------------------------------------------------------------------------
  /// In place on x [M, heads * D], half-split (Hugging Face): with a = x[.., :D/2], b = x[.., D/2:] per head,
  /// (a, b) -> (a cos - b sin, b cos + a sin); inverse = true rotates back (the gradient).
  /// cos_sin f32 [T, D]: row t holds D/2 cosines, then D/2 sines. Row m has position m mod T.
  virtual void rope(Stream&, Matrix x, int64_t head_dim, int64_t seq_len, const float* cos_sin, bool inverse) = 0;
  /// out = softmax(capped(scale q k^T) of the keys that the mask lets a query see) v per head; query head
  /// h reads key/value head h / (H / G). q, out [B*T, H*D], k, v [B*keys, G*D] (columns of one matrix
  /// allowed); lse f32 [B*T, H]: natural log of each row's sum of exponentials, with the maximum, and with
  /// that of its sink. A query that sees no key has out = 0. Never stores T x T.
  virtual void attention_forward(Stream&, const AttentionShape&, Matrix q, Matrix k, Matrix v, Matrix out, float* lse) = 0;
  /// dq, dk, dv of the above from dout; overwrites. P = exp(capped(scale q k^T) - lse), delta = sum_d out
  /// * dout.
  virtual void attention_backward(Stream&, const AttentionShape&, Matrix q, Matrix k, Matrix v, Matrix out, const float* lse,
                                  Matrix dout, Matrix dq, Matrix dk, Matrix dv) = 0;

  // ---- loss -------------------------------------------------------------------------------------------
  /// stats f32 [M, 3]: max over this rank's columns, sum of exp(logit - max), and the target's logit, or 0
  /// when the target is not in [vocab_begin, vocab_begin + V).   logits [M, V] (f32 or bf16), targets i32 [M]
  virtual void cross_entropy_stats(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin, float* stats) = 0;
  /// Combines the stats of `parts` vocabulary slices, in order: lse[m] and loss[m] = lse[m] - target logit.
  /// stats f32 [parts, M, 3]; lse, loss f32 [M]
  virtual void cross_entropy_combine(Stream&, const float* stats, int parts, int64_t m, float* lse, float* loss) = 0;
  /// logits -> dlogits in place: (exp(logit - lse[m]) - [target == column]) * scale
  virtual void cross_entropy_backward(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin, const float* lse,
                                      float scale) = 0;

  // ---- optimizer --------------------------------------------------------------------------------------
  /// For every box, with g = grad * grad_scale (f32, each operation rounded once, in this order):
  ///   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
  ///   w = w - lr * weight_decay * w;   w = w - lr * (m / bc1) / (sqrt(v / bc2) + eps);   param = w in param's dtype
  virtual void adamw(Stream&, std::span<const AdamWBox> boxes, const AdamWStep& step) = 0;
  /// out[i] = sum over box i of x^2, in double, in an order fixed by the box's shape alone.
  ///   boxes   f32 matrices
  ///   out     host memory, valid after stream.synchronize(); if it is not from allocate_host, the call blocks
  virtual void sum_squares(Stream&, std::span<const Matrix> boxes, double* out) = 0;
  /// *out = sum of x[0..n) in double, in an order fixed by n and the device. out: host memory, as above.
  virtual void sum(Stream&, const float* x, int64_t n, double* out) = 0;
};

/// Names the work that is enqueued while this object lives (Backend::begin_range):
/// "F mb 3 virtual stage 0".
class Range {
 public:
  Range(Backend& backend, const char* what, int64_t micro_batch, int virtual_stage);
  ~Range() { backend_.end_range(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  Backend& backend_;
};

/// The reference backend: single-threaded loops that compute the formulas with double accumulation. Slow.
std::unique_ptr<Backend> make_reference_backend();

/// The backend for CPU cores: products by oneDNN, other ops by our vectorised kernels, on `threads` threads
/// (the caller is one of them). Results do not depend on `threads`. Error(kPreflight) if the CPU is too old.
std::unique_ptr<Backend> make_cpu_backend(int threads);
/// numerics() of that backend, without making one.
std::string cpu_numerics();

/// Measures the peak for MFU: FLOP/s of `dtype` matrix products with packed weights, the best of several
/// tries within about 0.2 s. The products are 1024 x 1024 x 1024 on a CPU and 8192 x 8192 x 8192 with random
/// numbers on other devices.
double measure_matmul_flops_per_s(Backend& backend, DType dtype);

}  // namespace trainctl::kernels
