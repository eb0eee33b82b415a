// Building blocks of sublayers: the norm that reads the residual stream, and a linear product with its packed
// weight and bias.
#pragma once
#include <optional>

#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

/// A vector parameter's compute copy or gradient as [1, n]; empty when use < 0.
kernels::Matrix vector_weight(const parallel::ShardedParams&, int use);
kernels::Matrix vector_gradient(const parallel::ShardedParams&, int use, int lane);
/// The lane has its whole gradient of so many elements, of a use and those joined to it: it is merged where
/// lanes come one after another (ShardedParams::merges_each).
void complete_gradient(const LayerContext& c, int use, int64_t elements, int lane);
/// dst += src, or dst = src when `overwrite`; nothing when either is empty.
void accumulate(const LayerContext&, kernels::Matrix src, kernels::Matrix dst, bool overwrite);

/// Both fit into scratch memory for the result.
kernels::AttentionShape widest_of(const kernels::AttentionShape& a, const kernels::AttentionShape& b);

/// Whether a sublayer has a parameter at this place.
bool declares(const std::vector<ParamDeclaration>& parameters, int place);

/// The gradient of a vector parameter while it waits for a weight half that runs apart.
void declare_waiting(std::vector<TensorDeclaration>& list, int number, int64_t size);
/// Where the input half puts a vector's gradient: into its lane, or into tensor `waiting` until the weight half
/// runs, because the lane may still hold the gradients of an earlier one.
kernels::Matrix early_gradient(const LayerContext& c, const Tensors& t, int use, int waiting, LanePlace at);
inline bool accumulates_early(const LayerContext& c, LanePlace at) {
  return c.weight_half_follows && !at.first;
}
/// The weight half: adds what has waited.
void add_waiting(const LayerContext& c, const Tensors& t, int use, int waiting, LanePlace at);

/// The places of a sublayer's norm at its entrance: the first ones.
enum EntryNormPlace { kNormWeight, kNormBias };

/// The entrance of a sublayer: x = previous + delta, and y = norm(x), or y = x without a norm, entered into the
/// part that is cut.
class EntryNorm {
 public:
  /// Numbers of its tensors: y [M, C], statistics [Ml, 2], and its gradients while they wait for the weight
  /// half.
  struct Numbers {
    int out, stats, weight_gradient, bias_gradient;
  };
  static void declare(std::vector<TensorDeclaration>& list, const LayerShape& s, const Numbers& n,
                      const std::optional<NormPlan>& plan);

  EntryNorm(const std::optional<NormPlan>& plan, const SublayerUses& uses, const Numbers& n)
      : plan_(plan), weight_(uses.use(kNormWeight)), bias_(uses.use(kNormBias)), n_(n) {}
  void forward(const LayerContext& c, Tensors& t, kernels::Matrix previous, kernels::Matrix delta) const;
  /// y again, from x and the statistics.
  void apply(const LayerContext& c, Tensors& t) const;
  /// din = dresidual + the gradient of y through the norm.
  void backward_input(const LayerContext& c, Tensors& t, kernels::Matrix dy, kernels::Matrix dresidual,
                      kernels::Matrix din, LanePlace at) const;
  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) const;

 private:
  void pass_on(const LayerContext& c, Tensors& t) const;

  std::optional<NormPlan> plan_;
  int weight_, bias_;
  Numbers n_;
};

/// The end of a sublayer: the sum of the tensor ranks' parts, and a norm of it where there is one.
class Exit {
 public:
  /// Numbers of its tensors with a norm: what it reads [Ml, C], statistics [Ml, 2], the gradient of what it reads
  /// [M, C], and its own gradients while they wait.
  struct Numbers {
    int in, stats, gradient, weight_gradient, bias_gradient;
  };
  /// Places of the norm's parameters.
  struct Places {
    int weight, bias;
  };
  static void declare(std::vector<TensorDeclaration>& list, const LayerShape& s, const Numbers& n,
                      const std::optional<NormPlan>& plan);

  Exit(const std::optional<NormPlan>& plan, const SublayerUses& uses, const Numbers& n, Places places)
      : plan_(plan), weight_(uses.use(places.weight)), bias_(uses.use(places.bias)), n_(n) {}
  /// The sublayer's last product writes its part of the sum here [M, C].
  kernels::Matrix part(const LayerContext& c, const Tensors& t) const;
  /// What is added to the stream [Ml, C].
  kernels::Matrix forward(const LayerContext& c, Tensors& t) const;
  /// Whether backward reads what `forward` leaves, so that a recomputation runs it.
  bool keeps() const { return plan_.has_value(); }
  /// Number of the gradient of the last product's output [M, C], filled by `backward_input` from dout.
  int gradient() const { return plan_ ? n_.gradient : kOutputGradient; }
  void backward_input(const LayerContext& c, Tensors& t, kernels::Matrix dout, LanePlace at) const;
  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) const;

 private:
  std::optional<NormPlan> plan_;
  int weight_, bias_;
  Numbers n_;
};

/// What the places and numbers of a sublayer with both begin with.
enum EntryNormNumber {
  kNorm = kFirstOwn,
  kStats,
  kNormWeightGradient,
  kNormBiasGradient,
  kBranch,
  kBranchStats,
  kBranchGradient,
  kAfterWeightGradient,
  kAfterBiasGradient,
  kFirstAfterNorm
};
constexpr EntryNorm::Numbers kNormNumbers{kNorm, kStats, kNormWeightGradient, kNormBiasGradient};
constexpr Exit::Numbers kExitNumbers{kBranch, kBranchStats, kBranchGradient, kAfterWeightGradient,
                                     kAfterBiasGradient};

/// The number formats of one product.
struct ProductFormat {
  ProductFormat() = default;
  /// keeps: it stays in the format of activations. parts: weights of experts, one above another.
  ProductFormat(const Fp8Plan& plan, bool keeps, int64_t of_parts = 1)
      : recipe(keeps ? Fp8Recipe::none : plan.recipe), gradients(plan.gradients), parts(of_parts) {}
  Fp8Recipe recipe = Fp8Recipe::none;
  Fp8Gradients gradients = Fp8Gradients::e4m3;
  int64_t parts = 1;
};

/// Room for what the products of a sublayer see of their operands, of at most so many rows. weight: the numbers
/// of its largest one.
template <typename Plan>
void declare_fp8(std::vector<TensorDeclaration>& list, const LayerShape& s, const Plan& plan, int64_t rows,
                 int64_t weight) {
  if (plan.fp8.recipe == Fp8Recipe::none) return;
  Widest widest;
  plan.widen(widest, s);
  const auto room = [&](int number, int64_t height, int64_t cols) {
    list.push_back({.number = number,
                    .life = Life::scratch,
                    .dtype = s.compute,
                    .rows = height,
                    .cols = cols,
                    .whole = true});
  };
  room(kFp8Left, rows, std::max(widest.columns, widest.depth) + kernels::kGapOfRows);
  room(kFp8Right, rows, widest.depth + kernels::kGapOfRows);
  if (scaling_of(plan.fp8.recipe).keeps_weights()) room(kFp8Weight, 1, weight);
}

/// Rows that come to experts here from one source: where each expert's begin, the number of the first
/// expert, and which rows of a step they are (RowsPlace::of_source). No offsets: rows of tokens.
struct RowsOfExperts {
  kernels::Matrix offsets = {};
  int64_t first_expert = 0;
  uint32_t place = 0;
};

/// y = x W^T + b of one weight, or of several that lie one after another as one taller matrix.
class Linear {
 public:
  /// The bias in the dtype of activations, for devices whose products take it so: number `bias` [1, rows], of
  /// Life::layer.
  static void declare_bias(std::vector<TensorDeclaration>& list, const LayerShape& s, int bias, int64_t rows);

  Linear(const LayerContext& c, int weight, int bias, int64_t rows, int64_t cols,
         const kernels::Matrix& bias_memory, const ProductFormat& format = {});
  /// In FP8 the compute copy becomes what products see of it, where all see the same.
  void pack(const LayerContext& c);
  /// What the product y = x W^T sees of W, and what dx = dy W does: until another product's is asked for.
  const kernels::PackedWeight& weight(const LayerContext& c, const Tensors& t) const;
  const kernels::PackedWeight& weight_of_gradient(const LayerContext& c, const Tensors& t) const;
  kernels::Matrix bias(const LayerContext& c) const;
  /// The bias of a product whose partial sums are joined afterwards: tp rank 0 alone adds it.
  kernels::Matrix bias_once(const LayerContext& c) const;
  /// What the products y = x W^T and dx = dy W see of x and dy: these, or in FP8 what lies in t until another
  /// product.
  kernels::Matrix seen(const LayerContext& c, const Tensors& t, kernels::Matrix x,
                       const RowsOfExperts& experts = {}) const;
  kernels::Matrix seen_gradient(const LayerContext& c, const Tensors& t, kernels::Matrix dy,
                                const RowsOfExperts& experts = {}) const;
  /// And what dw = dy^T x sees of both.
  std::pair<kernels::Matrix, kernels::Matrix> seen_by_weight(const LayerContext& c, const Tensors& t,
                                                             kernels::Matrix dy, kernels::Matrix x,
                                                             const RowsOfExperts& experts = {}) const;
  void backward_weight(const LayerContext& c, const Tensors& t, kernels::Matrix dy, kernels::Matrix x,
                       LanePlace at) const;
  /// The gradient of all its weights [rows, cols].
  kernels::Matrix gradient(const LayerContext& c, LanePlace at) const;
  void complete_gradient(const LayerContext& c, int lane) const;

 private:
  kernels::Matrix joined_bias(const LayerContext& c) const;
  const kernels::PackedWeight& made_for_product(const LayerContext& c, const Tensors& t,
                                                kernels::Fp8Groups groups) const;
  /// An operand of a product whose sum is over columns, or over rows.
  struct Operand {
    kernels::Matrix x;
    kernels::Fp8Groups groups;
    bool is_gradient = false;
  };
  kernels::Matrix quantized(const LayerContext& c, const Operand& operand, const RowsOfExperts& experts,
                            kernels::Matrix room) const;
  kernels::Fp4Noise noise(const LayerContext& c, const Operand& operand, const RowsOfExperts& experts) const;

  int weight_, bias_;
  int64_t rows_;
  ProductFormat format_;
  kernels::Matrix converted_;
  std::unique_ptr<kernels::PackedWeight> packed_;
};

}  // namespace trainctl
