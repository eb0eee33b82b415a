// The sublayers of each family's layers, and the layer that runs them.
#include <cmath>

#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

using kernels::Matrix;

// One for each file of runtime/model/sublayers.
extern const SublayerKind kAttentionSublayer, kMlpSublayer;

const LayerKind& layer_kind(const ModelSpec&) {
  static const LayerKind kAttentionThenMlp{&kAttentionSublayer, &kMlpSublayer};
  return kAttentionThenMlp;   // of GPT-2 and of Llama
}

kernels::AttentionShape LayerShape::attention() const {
  return {micro_sequences, seq_len, heads, kv_heads, head_dim, float(1.0 / std::sqrt(double(head_dim)))};
}

Precision precision_of(const JobSpec& job) { return {.activations = job.compute, .matrices = job.compute}; }

LayerShape layer_shape(const JobSpec& job) {
  LayerShape s;
  const int tp = job.parallelism.tensor;
  s.family = job.model.family;
  s.compute = precision_of(job).activations;
  s.micro_sequences = job.batch.micro_sequences;
  s.seq_len = job.data.seq_len;
  s.hidden = job.model.hidden_size;
  s.heads = job.model.num_heads / tp;
  s.kv_heads = job.model.num_kv_heads / tp;
  s.head_dim = job.model.head_dim();
  s.ffn = job.model.ffn_size / tp;
  s.rows = s.micro_sequences * s.seq_len;
  s.local_rows = job.parallelism.sequence_parallel && tp > 1 ? s.rows / tp : s.rows;
  s.norm_eps = float(job.model.norm_eps);
  return s;
}

void LayerScratch::take(Arena& arena, const LayerShape& s) {
  partial = arena.take(s.compute, s.rows, s.hidden);
  local = arena.take(s.compute, s.local_rows, s.hidden);
  normed = arena.take(s.compute, s.local_rows, s.hidden);
}

Layer::Layer(const LayerKind& kind, const std::vector<SublayerUses>& uses, const LayerContext& c,
             const std::vector<Tensors>& of_layer) {
  for (size_t i = 0; i < kind.size(); ++i) sublayers_.push_back(kind[i]->make(c, uses[i], of_layer[i]));
}

void Layer::pack(const LayerContext& c) {
  for (const auto& sublayer : sublayers_) sublayer->pack(c);
}

// Buckets of the data-parallel group go on after each sublayer: once a layer is too seldom to hide their
// rounds.

Matrix Layer::forward(const LayerContext& c, std::vector<Tensors>& t, Matrix previous, Matrix delta) {
  for (size_t i = 0; i < sublayers_.size(); ++i) {
    delta = sublayers_[i]->forward(c, t[i], previous, delta);
    previous = t[i][kInput];
    c.params.go_on();
  }
  return delta;
}

void Layer::recompute(const LayerContext& c, std::vector<Tensors>& t) {
  Matrix previous, delta;
  for (size_t i = 0; i + 1 < sublayers_.size(); ++i) {
    delta = sublayers_[i]->forward(c, t[i], previous, delta);
    previous = t[i][kInput];
  }
  sublayers_.back()->recompute(c, t.back(), previous, delta);
}

void Layer::recompute_cheap(const LayerContext& c, std::vector<Tensors>& t) {
  for (size_t i = 0; i < sublayers_.size(); ++i) sublayers_[i]->recompute_cheap(c, t[i]);
}

void Layer::backward_input(const LayerContext& c, std::vector<Tensors>& t, Matrix dout, Matrix din,
                           LanePlace at) {
  for (size_t i = sublayers_.size(); i-- > 0;) {
    // Between two sublayers the gradient lies where the weight half of the earlier one will read it; where
    // rows are cut that one reads the entered copy.
    const Matrix to = i == 0 || c.tp.cuts_rows() ? din : t[i - 1][kOutputGradient];
    sublayers_[i]->backward_input(c, t[i], dout, to, at);
    dout = to;
    c.params.go_on();
  }
}

void Layer::backward_weight(const LayerContext& c, std::vector<Tensors>& t, LanePlace at) {
  for (size_t i = sublayers_.size(); i-- > 0;) {
    sublayers_[i]->backward_weight(c, t[i], at);
    c.params.go_on();
  }
}

}  // namespace trainctl
