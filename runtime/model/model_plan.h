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
  EndsPlan ends;

  bool tied() const { return !head.weight; }
  /// Each different layer once, in the order of the model.
  std::vector<LayerRef> unlike_layers() const;
  /// The different rotary positions of all layers.
  std::vector<Rotary> rotaries() const;
};

/// compute: the dtype of activations and of matrices' compute copies.
ModelPlan model_plan(const ModelSpec& model, DType compute = DType::f32);

/// Parameters of experts that a token does not meet.
int64_t idle_parameters(const ModelPlan& model);

/// Whether both have the same parameters and compute the same logits from them.
bool compute_the_same(const ModelPlan& a, const ModelPlan& b);

/// The sizes of a micro-batch on a rank.
LayerShape layer_shape(const ModelPlan& model, const BatchSpec& batch, int64_t seq_len,
                       const ParallelSpec& parallelism);

/// The largest sizes of the ops of any layer.
Widest widest_of(const ModelPlan& model, const LayerShape& shape);

}  // namespace trainctl
