// ModelPlan is a model as a value: the embedding, a list of layers, the head. It is made from the description of
// a layer in the job (ModelSpec); nobody else asks for a family. Parameters, stages, memory, tally, checkpoints
// and generation are made by going over it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/model/sublayers/layer.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

struct EmbeddingPlan {
  ParamDeclaration tokens;
  std::optional<ParamDeclaration> positions;  ///< learned ones, added to the tokens'
};

struct HeadPlan {
  NormPlan norm;
  std::vector<ParamDeclaration> norm_parameters;  ///< weight and, where there is one, bias
  std::optional<ParamDeclaration> weight;         ///< absent: the head multiplies by the embedding
};

/// What the ends of a model do besides.
struct EndsPlan {
  float embedding_scale = 1;
  kernels::LogitForm logits;
  float z_loss = 0;  ///< of each token, times the square of its lse, in training
};

/// A module of multi-token prediction, d = 1..:
///
///   h' = W [norm_e(Emb(t[i + d])); norm_h(h)],  y = norm(layer(h'))
///
/// with h what the head reads (d = 1), or the y of module d - 1. The head on y predicts t[i + d + 1].
/// Source: arXiv:2412.19437, section 2.2. The order of the two halves, and that h comes from behind the final
/// norm, are those of the published weights (inference code of DeepSeek-V3) and of Megatron-LM.
struct MtpPlan {
  static constexpr int hidden_weight = 0, hidden_bias = 1, embedding_weight = 2, embedding_bias = 3,
                       join_weight = 4, out_weight = 5, out_bias = 6, kPlaces = 7;
  std::vector<ParamDeclaration> before, after;  ///< the layer's parameters: norms and W; the norm behind
  LayerRef layer;                               ///< of the model's last layer's kind
};

struct ModelPlan {
  Family family = Family::gpt2;
  int64_t hidden = 0, vocabulary = 0;
  InitSpec init;
  double mup_ratio = 1;  ///< base width over width
  Precision precision;  ///< of the stream between layers, the embedding and the head
  EmbeddingPlan embedding;
  std::string layer_prefix;      ///< of a layer's names, in front of its number: "h."
  std::vector<LayerRef> layers;  ///< equal ones share one value
  HeadPlan head;
  std::vector<MtpPlan> mtp;
  EndsPlan ends;

  bool tied() const { return !head.weight; }
  /// Whether the last virtual stage uses the embedding, too.
  bool shares_embedding() const { return tied() || !mtp.empty(); }
  /// Each different layer once, in the order of the model.
  std::vector<LayerRef> unlike_layers() const;
  /// The different rotary positions of all layers.
  std::vector<Rotary> rotaries() const;
};

/// compute: the dtype of activations and of matrices' compute copies.
ModelPlan model_plan(const ModelSpec& model, DType compute = DType::f32, const Fp8Spec& fp8 = {});

/// Whether both have the same parameters and compute the same logits from them; modules of multi-token
/// prediction, which are of training alone, do not matter.
bool compute_the_same(const ModelPlan& a, const ModelPlan& b);

/// The sizes of a micro-batch on a rank.
LayerShape layer_shape(const ModelPlan& model, const BatchSpec& batch, int64_t seq_len,
                       const ParallelSpec& parallelism);

/// The largest sizes of the ops of any layer.
Widest widest_of(const ModelPlan& model, const LayerShape& shape);

}  // namespace trainctl
