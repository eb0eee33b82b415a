#include "runtime/model/model_plan.h"

#include <algorithm>

namespace trainctl {
namespace {

using kernels::NormKind;
using parallel::Cut;

ParamDeclaration vocabulary(const ModelSpec& m, const char* name, ParamRole role) {
  return {.name = name, .role = role, .rows = m.vocab_size, .cols = m.hidden_size, .cut = Cut::rows};
}

std::vector<ParamDeclaration> norm_of(const ModelSpec& m, const char* name, ParamList::Places places) {
  ParamList list(m.hidden_size);
  list.norm(name, places);
  return list.take();
}

void add_layers(ModelPlan& plan, int64_t count, LayerPlan layer) {
  plan.layers.assign(size_t(count), std::make_shared<const LayerPlan>(std::move(layer)));
}

/// Names and shapes: GPT2LMHeadModel of Hugging Face's transformers; linear weights are [out, in] here.
void gpt2(const ModelSpec& m, ModelPlan& plan) {
  const int64_t h = m.hidden_size, f = m.ffn_size;
  const NormPlan norm{NormKind::layernorm, float(m.norm_eps)};
  plan.embedding.tokens = vocabulary(m, "wte.weight", ParamRole::embedding);
  plan.embedding.positions = {
      .name = "wpe.weight", .role = ParamRole::position, .rows = m.max_seq_len, .cols = h};
  using A = AttentionPlan;
  ParamList attention(h);
  attention.norm("ln_1", {A::norm_weight, A::norm_bias});
  attention.linear({.name = "attn.c_attn", .out = 3 * h, .in = h, .cut = Cut::rows, .sections = {h, h, h}},
                   {A::qkv_weight, A::qkv_bias});
  attention.linear({.name = "attn.c_proj", .out = h, .in = h, .cut = Cut::cols, .residual = true},
                   {A::proj_weight, A::proj_bias});
  using M = MlpPlan;
  ParamList mlp(h);
  mlp.norm("ln_2", {M::norm_weight, M::norm_bias});
  mlp.linear({.name = "mlp.c_fc", .out = f, .in = h, .cut = Cut::rows}, {M::up_weight, M::up_bias});
  mlp.linear({.name = "mlp.c_proj", .out = h, .in = f, .cut = Cut::cols, .residual = true},
             {M::down_weight, M::down_bias});
  plan.layer_prefix = "h.";
  add_layers(plan, m.num_layers,
             {{AttentionPlan{m.num_heads, m.num_kv_heads, m.head_dim(), std::nullopt, norm, attention.take()},
               MlpPlan{f, false, norm, mlp.take()}},
              plan.precision});
  plan.head = {norm, norm_of(m, "ln_f", {0, 1}), std::nullopt};
}

/// Names and shapes: LlamaForCausalLM of Hugging Face's transformers.
void llama(const ModelSpec& m, ModelPlan& plan) {
  const int64_t h = m.hidden_size, f = m.ffn_size;
  const int64_t q = m.num_heads * m.head_dim(), kv = m.num_kv_heads * m.head_dim();
  const NormPlan norm{NormKind::rmsnorm, float(m.norm_eps)};
  plan.embedding.tokens = vocabulary(m, "model.embed_tokens.weight", ParamRole::embedding);
  using A = AttentionPlan;
  ParamList attention(h);
  attention.norm("input_layernorm", {A::norm_weight});
  attention.linear({.name = "self_attn.q_proj", .out = q, .in = h, .cut = Cut::rows}, {A::qkv_weight});
  for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"})
    attention.linear({.name = name, .out = kv, .in = h, .cut = Cut::rows, .joined = true}, {A::qkv_weight});
  attention.linear({.name = "self_attn.o_proj", .out = h, .in = q, .cut = Cut::cols, .residual = true},
                   {A::proj_weight});
  using M = MlpPlan;
  ParamList mlp(h);
  mlp.norm("post_attention_layernorm", {M::norm_weight});
  mlp.linear({.name = "mlp.gate_proj", .out = f, .in = h, .cut = Cut::rows}, {M::up_weight});
  mlp.linear({.name = "mlp.up_proj", .out = f, .in = h, .cut = Cut::rows, .joined = true}, {M::up_weight});
  mlp.linear({.name = "mlp.down_proj", .out = h, .in = f, .cut = Cut::cols, .residual = true},
             {M::down_weight});
  plan.layer_prefix = "model.layers.";
  const Rotary rotary{m.rope_theta, m.head_dim()};
  add_layers(plan, m.num_layers,
             {{AttentionPlan{m.num_heads, m.num_kv_heads, m.head_dim(), rotary, norm, attention.take()},
               MlpPlan{f, true, norm, mlp.take()}},
              plan.precision});
  plan.head = {norm, norm_of(m, "model.norm", {0}), std::nullopt};
}

}  // namespace

ModelPlan model_plan(const ModelSpec& m, DType compute) {
  ModelPlan plan{.family = m.family,
                 .hidden = m.hidden_size,
                 .vocabulary = m.vocab_size,
                 .init_std = m.init_std,
                 .precision = precision_of(compute)};
  switch (m.family) {
    case Family::gpt2: gpt2(m, plan); break;
    case Family::llama: llama(m, plan); break;
  }
  if (!m.tie_embeddings) plan.head.weight = vocabulary(m, "lm_head.weight", ParamRole::head);
  return plan;
}

std::vector<LayerRef> ModelPlan::unlike_layers() const {
  std::vector<LayerRef> unlike;
  for (const LayerRef& layer : layers)
    if (std::find(unlike.begin(), unlike.end(), layer) == unlike.end()) unlike.push_back(layer);
  return unlike;
}

std::vector<Rotary> ModelPlan::rotaries() const {
  std::vector<Rotary> rotaries;
  for (const LayerRef& layer : unlike_layers())
    for (const SublayerPlan& sublayer : layer->sublayers)
      if (const auto* attention = std::get_if<AttentionPlan>(&sublayer); attention && attention->rotary)
        if (std::find(rotaries.begin(), rotaries.end(), *attention->rotary) == rotaries.end())
          rotaries.push_back(*attention->rotary);
  return rotaries;
}

LayerShape layer_shape(const ModelPlan& model, const BatchSpec& batch, int64_t seq_len,
                       const ParallelSpec& parallelism) {
  const int tensor = parallelism.tensor;
  const int64_t rows = batch.micro_sequences * seq_len;
  return {.compute = model.precision.activations,
          .micro_sequences = batch.micro_sequences,
          .seq_len = seq_len,
          .hidden = model.hidden,
          .tensor = tensor,
          .rows = rows,
          .local_rows = parallelism.sequence_parallel && tensor > 1 ? rows / tensor : rows};
}

Widest widest_of(const ModelPlan& model, const LayerShape& shape) {
  Widest widest;
  for (const LayerRef& layer : model.unlike_layers()) widen(widest, *layer, shape);
  return widest;
}

}  // namespace trainctl
