// Building blocks of sublayers: the norm that reads the residual stream, and a linear product with its packed
// weight and bias.
#pragma once
#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

/// A vector parameter's compute copy or gradient as [1, n]; empty when use < 0.
kernels::Matrix vector_weight(const parallel::ShardedParams&, int use);
kernels::Matrix vector_gradient(const parallel::ShardedParams&, int use, int lane);
/// dst += src, or dst = src when `overwrite`; nothing when either is empty.
void accumulate(const LayerContext&, kernels::Matrix src, kernels::Matrix dst, bool overwrite);

/// Whether a sublayer has a parameter at this place.
bool declares(const std::vector<ParamDeclaration>& parameters, int place);

/// The places of a sublayer's norm: the first ones.
enum EntryNormPlace { kNormWeight, kNormBias };

/// The norm at the entrance of a sublayer: y = norm(previous + delta), entered into the part that is cut.
class EntryNorm {
 public:
  /// Numbers of its tensors: y [M, C], statistics [Ml, 2], and its gradients while they wait for the weight
  /// half.
  struct Numbers {
    int out, stats, weight_gradient, bias_gradient;
  };
  static void declare(std::vector<TensorDeclaration>& list, const LayerShape& s, const Numbers& n);

  EntryNorm(const NormPlan& plan, const SublayerUses& uses, const Numbers& n)
      : plan_(plan), weight_(uses.use(kNormWeight)), bias_(uses.use(kNormBias)), n_(n) {}
  void forward(const LayerContext& c, Tensors& t, kernels::Matrix previous, kernels::Matrix delta) const;
  /// y again, from x and the statistics.
  void apply(const LayerContext& c, Tensors& t) const;
  /// din = dresidual + the gradient of y through the norm.
  void backward_input(const LayerContext& c, Tensors& t, kernels::Matrix dy, kernels::Matrix dresidual,
                      kernels::Matrix din, LanePlace at) const;
  void backward_weight(const LayerContext& c, Tensors& t, LanePlace at) const;

 private:
  NormPlan plan_;
  int weight_, bias_;
  Numbers n_;
};

/// What the places and numbers of a sublayer with one such norm begin with.
enum EntryNormNumber { kNorm = kFirstOwn, kStats, kNormWeightGradient, kNormBiasGradient, kFirstAfterNorm };
constexpr EntryNorm::Numbers kNormNumbers{kNorm, kStats, kNormWeightGradient, kNormBiasGradient};

/// y = x W^T + b of one weight, or of several that lie one after another as one taller matrix.
class Linear {
 public:
  /// The bias in the dtype of activations, for devices whose products take it so: number `bias` [1, rows], of
  /// Life::layer.
  static void declare_bias(std::vector<TensorDeclaration>& list, const LayerShape& s, int bias, int64_t rows);

  Linear(const LayerContext& c, int weight, int bias, int64_t rows, int64_t cols,
         const kernels::Matrix& bias_memory);
  void pack(const LayerContext& c);
  const kernels::PackedWeight& packed() const { return *packed_; }
  kernels::Matrix bias(const LayerContext& c) const;
  /// The bias of a product whose partial sums are joined afterwards: tp rank 0 alone adds it.
  kernels::Matrix bias_once(const LayerContext& c) const;
  void backward_weight(const LayerContext& c, kernels::Matrix dy, kernels::Matrix x, LanePlace at) const;

 private:
  int weight_, bias_;
  int64_t rows_;
  kernels::Matrix converted_;
  std::unique_ptr<kernels::PackedWeight> packed_;
};

/// dout as the weight half will read it: entered into the cut part, or copied where something overwrites it
/// before.
void keep_output_gradient(const LayerContext& c, Tensors& t, kernels::Matrix dout);

}  // namespace trainctl
