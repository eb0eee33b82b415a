// The expert of a mixture that every token meets: a feed-forward part beside the routed ones, which reads
// what they read and adds to their sum. A gate of each token may scale it: sigmoid(x w_g) f(x). Source of the
// gate: Qwen2-MoE, arXiv:2407.10671, section 2.2.
#pragma once
#include <optional>

#include "runtime/model/sublayers/ffn_activation.h"
#include "runtime/model/sublayers/router_product.h"
#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {

/// Sizes of the whole model; its parameters are those of the mixture.
struct SharedExpertPlan {
  int64_t ffn = 0;  ///< 0: there is none
  bool gated = false;
  bool operator==(const SharedExpertPlan&) const = default;
};

class SharedExpert {
 public:
  /// Numbers of its tensors: the first of kTensors that follow one another.
  static constexpr int kTensors = 9;
  static void declare(std::vector<TensorDeclaration>& list, const LayerShape& s, int first,
                      const SharedExpertPlan& plan, FfnActivation activation);
  static void widen(Widest& widest, const LayerShape& s, const SharedExpertPlan& plan,
                    FfnActivation activation);

  /// Uses of the weights; gate: -1 without.
  struct Weights {
    int up, down, gate;
  };
  SharedExpert(const LayerContext& c, int first, const SharedExpertPlan& plan, const FfnStep& activation,
               bool has_two_inputs, Weights weights, const Fp8Plan& fp8);

  void pack(const LayerContext& c);
  // Its products read nothing of the other experts: they may run while tokens are on their way to those.
  // Their result waits in scratch, and is added where the others' is.

  /// x [M, C], and the same in f32. makes_output: else only the tensors of Life::activation and Life::cheap.
  void forward(const LayerContext& c, Tensors& t, kernels::Matrix x, kernels::Matrix x_f32,
               bool makes_output) const;
  /// sum [M, C] += its part of the output.
  void add_output(const LayerContext& c, Tensors& t, kernels::Matrix sum) const;
  void recompute_cheap(const LayerContext& c, Tensors& t) const;
  /// dy [M, C]
  void backward_input(const LayerContext& c, Tensors& t, kernels::Matrix dy) const;
  /// dx [M, C] += its gradient. own, copy: as of RouterProduct.
  void add_gradient(const LayerContext& c, Tensors& t, kernels::Matrix own, kernels::Matrix copy,
                    kernels::Matrix dx) const;
  void backward_weight(const LayerContext& c, Tensors& t, kernels::Matrix dy, kernels::Matrix x,
                       kernels::Matrix x_f32, LanePlace at) const;

 private:
  enum Number { kUp, kAct, kGate, kUpGradient, kGateGradient, kOut, kPlainAct, kActGradient };
  kernels::Matrix& at(Tensors& t, Number number) const { return t[size_t(first_ + number)]; }

  const int first_;
  const FfnStep& activation_;
  Linear up_, down_;
  std::optional<RouterProduct> gate_;
};

}  // namespace trainctl
