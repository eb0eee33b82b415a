// ModelSpec: the section `model` of a job after parsing. A layer is described by data; a family is a named
// preset of that description, with the names that its parameters have in files.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/activation_kinds.h"
#include "kernels/head_scalars.h"
#include "runtime/base/words.h"

namespace trainctl {

enum class LayerNormKind { layernorm, rmsnorm };
template <>
struct Words<LayerNormKind> {
  static constexpr std::string_view list[] = {"layernorm", "rmsnorm"};
};
/// Where a sublayer f has its norms:  pre  x + f(norm(x))   post  x + norm(f(x))   sandwich  x + norm(f(norm(x)))
enum class NormPlace { pre, post, sandwich };
template <>
struct Words<NormPlace> {
  static constexpr std::string_view list[] = {"pre", "post", "sandwich"};
};
/// What a norm multiplies by:  plain  its weight   one_plus  1 + its weight
enum class NormWeight { plain, one_plus };
template <>
struct Words<NormWeight> {
  static constexpr std::string_view list[] = {"plain", "one_plus"};
};
/// RMSNorm of queries and keys before they are turned: of each head, or over all heads.
enum class QkNorm { none, head, projection };
template <>
struct Words<QkNorm> {
  static constexpr std::string_view list[] = {"none", "head", "projection"};
};
using kernels::FfnActivation;  // of the feed-forward part

/// A layer. Formulas: runtime/model/sublayers.
struct LayerSpec {
  LayerNormKind norm = LayerNormKind::rmsnorm;
  NormPlace norm_place = NormPlace::pre;
  NormWeight norm_weight = NormWeight::plain;
  bool norm_bias = false, qkv_bias = false, out_bias = false, mlp_bias = false;
  QkNorm qk_norm = QkNorm::none;
  int64_t window = 0;  // of the layers that are windowed: a query sees itself and window - 1 before
  bool output_gate = false;
  kernels::OfHeadScalars<bool> scalars;  // learned ones of each head
  double score_cap = 0;    // 0: none
  double score_scale = 0;  // 0: 1 / sqrt(head_dim)
  FfnActivation activation = FfnActivation::swiglu;
  double activation_limit = 7;  // of swiglu_clamped
};

/// A kind of layer in the pattern `model.layers`.
enum class LayerKind { full, window, full_nope, window_nope };
template <>
struct Words<LayerKind> {
  static constexpr std::string_view list[] = {"full", "window", "full_nope", "window_nope"};
};
constexpr bool has_window(LayerKind k) { return k == LayerKind::window || k == LayerKind::window_nope; }
constexpr bool has_positions(LayerKind k) { return k == LayerKind::full || k == LayerKind::window; }

enum class PositionKind { learned, rope, none };
template <>
struct Words<PositionKind> {
  static constexpr std::string_view list[] = {"learned", "rope", "none"};
};
enum class RopeScaling { none, linear, llama3, yarn };
template <>
struct Words<RopeScaling> {
  static constexpr std::string_view list[] = {"none", "linear", "llama3", "yarn"};
};
/// How rotary positions reach beyond the lengths that a model was first trained with.
struct RopeScalingSpec {
  RopeScaling type = RopeScaling::none;
  double factor = 1;
  int64_t original_max_seq_len = 0;                  // 0: max_seq_len / factor
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double attention_factor = 0;                       // yarn; 0: by the two below, or growth(1)
  double mscale = 0, mscale_all_dim = 0;             // yarn; both: growth(mscale) / growth(mscale_all_dim)
  bool truncate = true;                              // yarn: whole channels begin and end the ramp
  bool operator==(const RopeScalingSpec&) const = default;
  /// YaRN's factor of scores, arXiv:2309.00071, section 3.4.
  double growth(double strength) const { return factor > 1 ? 0.1 * strength * std::log(factor) + 1 : 1; }
};
struct PositionSpec {
  PositionKind type = PositionKind::rope;
  double theta = 10000;
  double window_theta = 0;     // windowed layers turn by this base, without scaling; 0: as the others do
  double rotary_fraction = 1;  // of a head's channels, the first ones
  bool interleaved = false;    // channels 2i and 2i + 1 turn together; else i and i + half
  RopeScalingSpec scaling;
};

/// Multi-head latent attention (DeepSeek-V2) in place of keys and values of each head. Formulas:
/// runtime/model/sublayers/latent_attention.h.
struct LatentSpec {
  int64_t kv_lora_rank = 0;  // 0: none
  int64_t q_lora_rank = 0;   // 0: queries are one product
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  int64_t head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  /// Tensor ranks over which heads may be cut: the divisors of this. Checkpoints are cut wherever ranks may
  /// be, so that each head would be a piece of each expert.
  static int64_t tensor_parts(int64_t heads) { return std::gcd(heads, int64_t{16}); }
  bool operator==(const LatentSpec&) const = default;
};

/// How a router scores experts: their share of a softmax over all, a sigmoid of each (DeepSeek-V3), or the
/// root of its softplus (DeepSeek-V4).
enum class RouterKind { softmax, sigmoid, sqrt_softplus };
template <>
struct Words<RouterKind> {
  static constexpr std::string_view list[] = {"softmax", "sigmoid", "sqrt_softplus"};
};
/// Which tokens an expert takes of more than it can: those of the largest weights, or the first.
enum class DropPolicy { weight, position };
template <>
struct Words<DropPolicy> {
  static constexpr std::string_view list[] = {"weight", "position"};
};
/// How the biases of the choice of experts follow from a step: by the sign of what an expert has too few, or
/// as the quantile of what they would have had to be (kernels::CountMargins).
enum class BiasUpdate { sign, quantile };
template <>
struct Words<BiasUpdate> {
  static constexpr std::string_view list[] = {"sign", "quantile"};
};
/// Mixture of experts in place of the feed-forward part of some layers. Formulas: kernels/moe_ops.h.
struct MoeSpec {
  int64_t num_experts = 0;  // 0: none
  int64_t top_k = 2, expert_ffn_size = 0;
  RouterKind router = RouterKind::softmax;
  bool renormalize = true;
  double routed_scale = 1;
  int64_t first_dense_layers = 0;  // that have no experts
  int64_t layer_step = 1;          // of the layers from 1 on, each so many-th has experts
  double aux_loss_coefficient = 0.01, z_loss_coefficient = 0;
  bool selection_bias = false;
  BiasUpdate bias_update = BiasUpdate::sign;
  double bias_update_rate = 0;  // of `sign`
  int64_t groups = 1, top_groups = 1;
  int64_t shared_ffn_size = 0;  // 0: no expert that every token meets
  bool shared_gate = false, router_bias = false;
  double capacity_factor = 0;  // 0: experts take all tokens
  DropPolicy drop_policy = DropPolicy::weight;
  int64_t latent_size = 0;  // 0: experts work in the model's width
  bool operator==(const MoeSpec&) const = default;
  /// What an expert reads and writes.
  int64_t width(int64_t hidden) const { return latent_size > 0 ? latent_size : hidden; }
  /// Tokens of an expert in a step, if all have as many.
  double mean_count(int64_t tokens) const { return double(tokens) * double(top_k) / double(num_experts); }
};

/// How parameters are named.
enum class ParamNames { gpt2, hub };
enum class ExpertNames { mlp, mixtral, deepseek, gpt_oss };

/// An architecture: its word and its row of kFamilies are all that the spec and the plan know of it.
enum class Family {
  gpt2,
  llama,
  qwen2,
  qwen3,
  olmo2,
  olmo3,
  gemma2,
  gemma3,
  mistral,
  smollm3,
  mixtral,
  qwen3_moe,
  qwen2_moe,
  glm4_moe,
  gpt_oss,
  deepseek_v3
};
template <>
struct Words<Family> {
  static constexpr std::string_view list[] = {
      "gpt2",    "llama",   "qwen2",   "qwen3",     "olmo2",     "olmo3",    "gemma2",  "gemma3",
      "mistral", "smollm3", "mixtral", "qwen3_moe", "qwen2_moe", "glm4_moe", "gpt_oss", "deepseek_v3"};
};
/// What a family presets.
struct FamilyKind {
  LayerSpec layer;
  PositionKind position = PositionKind::rope;
  bool tied = false;
  bool scaled_embedding = false;  ///< by sqrt(hidden_size)
  bool interleaved = false;       ///< as of PositionSpec
  ParamNames names = ParamNames::hub;
  ExpertNames expert_names = ExpertNames::mlp;
};
inline constexpr LayerSpec kGemmaLayer{.norm_place = NormPlace::sandwich,
                                       .norm_weight = NormWeight::one_plus,
                                       .activation = FfnActivation::geglu};
inline constexpr FamilyKind kFamilies[] = {
    {.layer = {.norm = LayerNormKind::layernorm,
               .norm_bias = true,
               .qkv_bias = true,
               .out_bias = true,
               .mlp_bias = true,
               .activation = FfnActivation::gelu},
     .position = PositionKind::learned,
     .tied = true,
     .names = ParamNames::gpt2},
    {},
    {.layer = {.qkv_bias = true}},
    {.layer = {.qk_norm = QkNorm::head}},
    {.layer = {.norm_place = NormPlace::post, .qk_norm = QkNorm::projection}},
    {.layer = {.norm_place = NormPlace::post, .qk_norm = QkNorm::projection}},
    {.layer = kGemmaLayer, .tied = true, .scaled_embedding = true},
    {.layer = {.norm_place = NormPlace::sandwich,
               .norm_weight = NormWeight::one_plus,
               .qk_norm = QkNorm::head,
               .activation = FfnActivation::geglu},
     .tied = true,
     .scaled_embedding = true},
    {},
    {.tied = true},
    {.expert_names = ExpertNames::mixtral},
    {.layer = {.qk_norm = QkNorm::head}},
    {.layer = {.qkv_bias = true}},
    {.layer = {.qkv_bias = true}, .expert_names = ExpertNames::deepseek},
    {.layer = {.qkv_bias = true,
               .out_bias = true,
               .mlp_bias = true,
               .scalars = {true},  // sinks
               .activation = FfnActivation::swiglu_clamped},
     .expert_names = ExpertNames::gpt_oss},
    {.interleaved = true, .expert_names = ExpertNames::deepseek},
};
static_assert(std::size(kFamilies) == std::size(Words<Family>::list));
constexpr const FamilyKind& kind_of(Family family) { return kFamilies[size_t(family)]; }

enum class InitKind { normal, truncated_normal };
template <>
struct Words<InitKind> {
  static constexpr std::string_view list[] = {"normal", "truncated_normal"};
};
/// What may begin as zeros: the last matrix of each sublayer, the head.
enum class ZeroOutput { sublayers, head };
template <>
struct Words<ZeroOutput> {
  static constexpr std::string_view list[] = {"sublayers", "head"};
};
/// Initial weights. What each role begins as: runtime/model/role_rows.cpp.
struct InitSpec {
  double std = 0.02;
  std::string from;  // folder of Hugging Face safetensors, or ""
  InitKind type = InitKind::normal;
  double cut = 3;              // of truncated_normal, in standard deviations
  double embedding_std = 0;    // of tokens and of learned positions; 0: std
  bool residual_scale = true;  // the last matrix of each sublayer has std / sqrt(2 num_layers)
  std::vector<ZeroOutput> zero_output;
  bool begins_as_zeros(ZeroOutput what) const {
    return std::find(zero_output.begin(), zero_output.end(), what) != zero_output.end();
  }
};

/// muP: what is tuned at a base width holds at this one. Formulas: runtime/model/role_rows.h.
struct MupSpec {
  int64_t base_hidden_size = 0;  // 0: no muP
  int64_t base_head_dim = 0;     // 0: head_dim, so that wider models have more heads
};

/// model.mtp.*: multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2). Module d = 1..num_layers
/// predicts the token d + 1 places ahead.
inline constexpr int kMostMtpLayers = 4;
struct MtpSpec {
  int64_t num_layers = 0;
  double loss_weight = 0.3;        // of the mean of the modules' losses
  double later_loss_weight = 0.1;  // from step later_from_step on
  int64_t later_from_step = 0;     // 0: never
  /// In 0-based step `step`.
  double weight_at(int64_t step) const {
    return later_from_step > 0 && step >= later_from_step ? later_loss_weight : loss_weight;
  }
};

/// model.*: one decoder-only transformer.
struct ModelSpec {
  Family family = Family::gpt2;
  std::string preset;  // "" when given field by field
  int64_t hidden_size = 0, num_layers = 0, num_heads = 0, num_kv_heads = 0, ffn_size = 0;
  int64_t head_dim_given = 0;  // 0: hidden_size / num_heads
  int64_t vocab_size = 0, max_seq_len = 0;
  double norm_eps = 1e-5;
  LayerSpec layer;
  std::vector<LayerKind> layers;  // the pattern, repeated; empty: all alike
  MoeSpec moe;
  LatentSpec latent;
  PositionSpec position;
  double embedding_scale = 1, logit_scale = 1, logit_cap = 0, z_loss = 0;
  bool tie_embeddings = true;
  InitSpec init;
  MupSpec mup;
  MtpSpec mtp;

  bool is_latent() const { return latent.kv_lora_rank > 0; }
  /// Of queries and keys.
  int64_t head_dim() const {
    if (is_latent()) return latent.head_dim();
    return head_dim_given > 0 ? head_dim_given : hidden_size / std::max<int64_t>(1, num_heads);
  }
  /// Base width over width, 1 without muP.
  double mup_ratio() const {
    return mup.base_hidden_size > 0 ? double(mup.base_hidden_size) / double(hidden_size) : 1;
  }
  /// Factor of the product of a query and a key: by muP 1 / head_dim, and as without it at the base head_dim.
  /// In latent attention YaRN's growth multiplies it twice, for queries and for keys (DeepSeek-V2).
  double attention_scale() const {
    if (layer.score_scale > 0) return layer.score_scale;
    const int64_t base = mup.base_head_dim > 0 ? mup.base_head_dim : head_dim();
    const double plain = 1.0 / std::sqrt(double(head_dim())) * std::sqrt(double(base) / double(head_dim()));
    const RopeScalingSpec& s = position.scaling;
    if (!is_latent() || s.type != RopeScaling::yarn || s.mscale_all_dim == 0) return plain;
    return plain * s.growth(s.mscale_all_dim) * s.growth(s.mscale_all_dim);
  }
  bool is_rotary() const { return position.type == PositionKind::rope; }
  /// The length that rotary positions are scaled from.
  int64_t original_seq_len() const {
    const RopeScalingSpec& s = position.scaling;
    if (s.original_max_seq_len > 0) return s.original_max_seq_len;
    return std::max<int64_t>(1, std::llround(double(max_seq_len) / s.factor));
  }
  /// Of a head, those that turn.
  int64_t rotary_channels() const {
    if (is_latent()) return latent.qk_rope_head_dim;
    return int64_t(std::llround(position.rotary_fraction * double(head_dim())));
  }
  /// Whether layer `layer`, from 0, has experts in place of one feed-forward part.
  bool has_experts(int64_t layer) const {
    return moe.num_experts > 0 && layer >= moe.first_dense_layers && (layer + 1) % moe.layer_step == 0;
  }
  LayerKind kind_of_layer(int64_t layer) const {
    if (layers.empty()) return this->layer.window > 0 ? LayerKind::window : LayerKind::full;
    return layers[size_t(layer) % layers.size()];
  }
};
/// The same model with the family's own description of a layer, of positions and of the ends.
inline ModelSpec with_family_defaults(const ModelSpec& of) {
  const FamilyKind& kind = kind_of(of.family);
  ModelSpec model = of;
  model.head_dim_given = 0;
  model.head_dim_given = model.head_dim();
  model.layer = kind.layer;
  model.layers = {};
  model.moe = {};
  model.latent = {};
  model.position = {.type = kind.position, .interleaved = kind.interleaved};
  const int64_t width = of.mup.base_hidden_size > 0 ? of.mup.base_hidden_size : of.hidden_size;
  model.embedding_scale = kind.scaled_embedding ? std::sqrt(double(width)) : 1;
  model.logit_scale = 1;
  model.logit_cap = model.z_loss = 0;
  model.mtp = {};
  return model;
}

}  // namespace trainctl
