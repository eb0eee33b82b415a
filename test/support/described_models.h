// Models that are described field by field: each feature of a layer alone, and as many as fit together.
#pragma once
#include <string>
#include <vector>

#include "runtime/spec/fields/model_spec.h"

namespace trainctl::test {

struct DescribedModel {
  std::string name;
  void (*describe)(ModelSpec&);  ///< of a tiny Llama
};

/// Everything that may stand in one layer together: no family has it.
inline void describe_everything(ModelSpec& m) {
  m.layer.norm_place = NormPlace::sandwich;
  m.layer.norm_weight = NormWeight::one_plus;
  m.layer.qkv_bias = m.layer.out_bias = m.layer.mlp_bias = true;
  m.layer.qk_norm = QkNorm::head;
  m.layer.window = 5;
  m.layer.scalars[kernels::HeadScalar::sinks] = m.layer.output_gate = true;
  m.layer.score_cap = 20;
  m.layer.score_scale = 0.3;
  m.layer.activation = FfnActivation::swiglu_clamped;
  m.layers = {LayerKind::window, LayerKind::full, LayerKind::window_nope, LayerKind::full_nope};
  m.head_dim_given = 12;
  m.position.window_theta = 100;
  m.position.rotary_fraction = 0.5;
  m.position.interleaved = true;
  m.position.scaling = {.type = RopeScaling::yarn, .factor = 4, .original_max_seq_len = 8};
  m.embedding_scale = 3;
  m.logit_scale = 0.7;
  m.logit_cap = 9;
  m.z_loss = 1e-3;
}

/// Latent attention: values narrower than keys, of which part turns.
inline void describe_latent(ModelSpec& m) {
  m.num_kv_heads = m.num_heads;
  m.latent = {
      .kv_lora_rank = 12, .q_lora_rank = 20, .qk_nope_head_dim = 6, .qk_rope_head_dim = 4, .v_head_dim = 5};
  m.position.interleaved = true;
}
/// With the rest that fits to it: queries without a latent, values as wide as keys.
inline void describe_more_latent(ModelSpec& m) {
  describe_latent(m);
  m.latent.q_lora_rank = 0, m.latent.v_head_dim = 10;
  m.layer.window = 5;
  m.layer.score_cap = 20;
  m.layers = {LayerKind::window, LayerKind::full_nope};
  m.position.scaling = {.type = RopeScaling::yarn,
                        .factor = 4,
                        .original_max_seq_len = 8,
                        .mscale = 0.7,
                        .mscale_all_dim = 1.1};
}

/// Experts without losses of their own, which the reported loss does not have.
inline void describe_experts(ModelSpec& m) {
  m.moe = {.num_experts = 5, .top_k = 2, .expert_ffn_size = 24, .aux_loss_coefficient = 0};
}
/// The other router, some layers without experts, norms behind, and all losses.
inline void describe_balanced_experts(ModelSpec& m) {
  m.layer.norm_place = NormPlace::sandwich;
  m.layer.activation = FfnActivation::gelu;
  m.moe = {.num_experts = 6,
           .top_k = 3,
           .expert_ffn_size = 20,
           .router = RouterKind::sigmoid,
           .routed_scale = 2.5,
           .first_dense_layers = 1,
           .aux_loss_coefficient = 0.3,
           .z_loss_coefficient = 0.1};
}

/// Experts in groups, chosen by biased scores, which a bias balances without a loss.
inline void describe_grouped_experts(ModelSpec& m) {
  m.moe = {.num_experts = 8,
           .top_k = 3,
           .expert_ffn_size = 12,
           .router = RouterKind::sigmoid,
           .routed_scale = 1.5,
           .aux_loss_coefficient = 0,
           .selection_bias = true,
           .bias_update_rate = 0.01,
           .groups = 4,
           .top_groups = 2};
}

/// Experts whose biases are quantiles (Kimi K3).
inline void describe_quantile_experts(ModelSpec& m) {
  describe_grouped_experts(m);
  m.moe.groups = m.moe.top_groups = 1;
  m.moe.bias_update = BiasUpdate::quantile;
  m.moe.bias_update_rate = 0;
}

/// As in gpt-oss: biases of the router and of experts.
inline void describe_biased_products(ModelSpec& m) {
  describe_experts(m);
  m.layer.mlp_bias = true;
  m.layer.activation = FfnActivation::swiglu_clamped;
  m.moe.router_bias = true;
  m.moe.layer_step = 2;
}
/// Balanced experts without the losses that balance them.
inline void describe_lossless_experts(ModelSpec& m) {
  describe_balanced_experts(m);
  m.moe.aux_loss_coefficient = m.moe.z_loss_coefficient = 0;
}
/// An expert that every token meets, with a gate.
inline void describe_shared_expert(ModelSpec& m) {
  describe_experts(m);
  m.moe.renormalize = false;
  m.moe.shared_ffn_size = 28;
  m.moe.shared_gate = true;
}

/// Two modules of multi-token prediction, with a tied head.
inline void describe_mtp(ModelSpec& m) {
  m.tie_embeddings = true;
  m.mtp = {.num_layers = 2, .loss_weight = 0.5};
}
/// As in DeepSeek-V3: one, of a layer with latent attention and experts.
inline void describe_latent_mtp(ModelSpec& m) {
  describe_latent(m);
  describe_grouped_experts(m);
  m.moe.first_dense_layers = 1;
  m.mtp = {.num_layers = 1, .loss_weight = 0.3, .later_loss_weight = 0.1, .later_from_step = 2};
}

/// Experts that drop what is over their capacity, with biases, losses apart.
inline void describe_capped_experts(ModelSpec& m) {
  describe_lossless_experts(m);
  m.layer.mlp_bias = true;
  m.moe.capacity_factor = 0.8;
}
/// The first tokens stay; what they weigh is the root of a softplus.
inline void describe_capped_by_position(ModelSpec& m) {
  describe_grouped_experts(m);
  m.moe.router = RouterKind::sqrt_softplus;
  m.moe.capacity_factor = 0.5;
  m.moe.drop_policy = DropPolicy::position;
}
/// Experts in a width of their own, and a shared one in the model's.
inline void describe_narrow_experts(ModelSpec& m) {
  describe_shared_expert(m);
  m.layer.norm_place = NormPlace::sandwich;
  m.moe.latent_size = 12;
}
/// And with a capacity.
inline void describe_capped_narrow_experts(ModelSpec& m) {
  describe_biased_products(m);
  m.moe.latent_size = 20;
  m.moe.capacity_factor = 1;
}

/// Sizes in blocks of 128, for two tensor ranks.
inline void describe_blocks(ModelSpec& m) {
  m.hidden_size = 128, m.num_layers = 2;
  m.head_dim_given = 64, m.num_kv_heads = m.num_heads;
  m.ffn_size = 256;
}
inline void describe_blocks_of_experts(ModelSpec& m) {
  describe_shared_expert(m);
  describe_blocks(m);
  m.moe.num_experts = 4;
  m.moe.expert_ffn_size = m.moe.shared_ffn_size = 256;
}

/// Without modules of multi-token prediction.
inline const std::vector<DescribedModel>& described_layers() {
  static const std::vector<DescribedModel> all = {
      {"head_dim", [](ModelSpec& m) { m.head_dim_given = 6; }},
      {"qkv_bias", [](ModelSpec& m) { m.layer.qkv_bias = true; }},
      {"all biases", [](ModelSpec& m) { m.layer.qkv_bias = m.layer.out_bias = m.layer.mlp_bias = true; }},
      {"layernorm", [](ModelSpec& m) { m.layer.norm = LayerNormKind::layernorm, m.layer.norm_bias = true; }},
      {"layernorm without bias", [](ModelSpec& m) { m.layer.norm = LayerNormKind::layernorm; }},
      {"qk norm of heads", [](ModelSpec& m) { m.layer.qk_norm = QkNorm::head; }},
      {"qk norm of projections", [](ModelSpec& m) { m.layer.qk_norm = QkNorm::projection; }},
      {"post norm", [](ModelSpec& m) { m.layer.norm_place = NormPlace::post; }},
      {"sandwich norm, one plus weights",
       [](ModelSpec& m) {
         m.layer.norm_place = NormPlace::sandwich, m.layer.norm_weight = NormWeight::one_plus;
       }},
      {"windows",
       [](ModelSpec& m) {
         m.layer.window = 3, m.layers = {LayerKind::window, LayerKind::full};
       }},
      {"a window of one", [](ModelSpec& m) { m.layer.window = 1; }},
      {"sinks", [](ModelSpec& m) { m.layer.scalars[kernels::HeadScalar::sinks] = true; }},
      {"score cap and scale", [](ModelSpec& m) { m.layer.score_cap = 2, m.layer.score_scale = 1.5; }},
      {"output gate", [](ModelSpec& m) { m.layer.output_gate = true; }},
      {"no positions", [](ModelSpec& m) { m.position.type = PositionKind::none; }},
      {"learned positions", [](ModelSpec& m) { m.position.type = PositionKind::learned; }},
      {"some layers without positions",
       [](ModelSpec& m) {
         m.layers = {LayerKind::full, LayerKind::full_nope};
       }},
      {"part of a head turns", [](ModelSpec& m) { m.position.rotary_fraction = 0.5; }},
      {"neighbours turn", [](ModelSpec& m) { m.position.interleaved = true; }},
      {"linear scaling",
       [](ModelSpec& m) { m.position.scaling = {.type = RopeScaling::linear, .factor = 4}; }},
      {"scaling of Llama 3",
       [](ModelSpec& m) {
         m.position.scaling = {.type = RopeScaling::llama3, .factor = 4, .original_max_seq_len = 8};
       }},
      {"gelu", [](ModelSpec& m) { m.layer.activation = FfnActivation::gelu; }},
      {"gelu_erf", [](ModelSpec& m) { m.layer.activation = FfnActivation::gelu_erf; }},
      {"relu2", [](ModelSpec& m) { m.layer.activation = FfnActivation::relu2; }},
      {"silu", [](ModelSpec& m) { m.layer.activation = FfnActivation::silu; }},
      {"geglu", [](ModelSpec& m) { m.layer.activation = FfnActivation::geglu; }},
      {"geglu_erf", [](ModelSpec& m) { m.layer.activation = FfnActivation::geglu_erf; }},
      {"swiglu_clamped", [](ModelSpec& m) { m.layer.activation = FfnActivation::swiglu_clamped; }},
      {"scaled ends", [](ModelSpec& m) { m.embedding_scale = 4, m.logit_scale = 0.5; }},
      {"capped logits and z loss", [](ModelSpec& m) { m.logit_cap = 5, m.z_loss = 1e-3; }},
      {"latent attention", describe_latent},
      {"latent attention without a latent of queries, windows", describe_more_latent},
      {"latent attention and experts",
       [](ModelSpec& m) { describe_latent(m), describe_experts(m), m.moe.router = RouterKind::sigmoid; }},
      {"experts", describe_experts},
      {"experts of a sigmoid router, some layers dense", describe_lossless_experts},
      {"all experts for each token, scores as they are",
       [](ModelSpec& m) {
         describe_experts(m);
         m.moe.top_k = 5, m.moe.renormalize = false, m.moe.layer_step = 2;
       }},
      {"experts in groups, balanced by a bias", describe_grouped_experts},
      {"experts and routers with biases", describe_biased_products},
      {"a shared expert with a gate", describe_shared_expert},
      {"a shared expert without a gate",
       [](ModelSpec& m) { describe_lossless_experts(m), m.moe.shared_ffn_size = 16; }},
      {"experts with scores of the root of a softplus",
       [](ModelSpec& m) { describe_lossless_experts(m), m.moe.router = RouterKind::sqrt_softplus; }},
      {"experts with a capacity", describe_capped_experts},
      {"experts that take the first tokens", describe_capped_by_position},
      {"experts in a latent width", describe_narrow_experts},
      {"experts in a latent width with a capacity", describe_capped_narrow_experts},
      {"everything", describe_everything}};
  return all;
}

inline std::vector<DescribedModel> described_models() {
  std::vector<DescribedModel> all = {{"two modules of multi-token prediction", describe_mtp},
                                     {"a module of latent attention and experts", describe_latent_mtp},
                                     {"experts balanced by quantiles", describe_quantile_experts},
                                     {"everything and a module",
                                      [](ModelSpec& m) {
                                        describe_everything(m);
                                        m.mtp.num_layers = 1;
                                      }},
                                     {"layernorms of modules", [](ModelSpec& m) {
                                        m.layer.norm = LayerNormKind::layernorm, m.layer.norm_bias = true;
                                        m.mtp.num_layers = 2;
                                      }}};
  all.insert(all.begin(), described_layers().begin(), described_layers().end());
  return all;
}

}  // namespace trainctl::test
