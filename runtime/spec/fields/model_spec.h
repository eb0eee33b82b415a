// ModelSpec: the section `model` of a job after parsing. A layer is described by data; a family is a named
// preset of that description, with the names that its parameters have in files.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

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
/// Of the feed-forward part. The gated ones have twice as many columns in their first product.
enum class FfnActivation { gelu, gelu_erf, relu2, silu, swiglu, geglu, geglu_erf, swiglu_clamped };
template <>
struct Words<FfnActivation> {
  static constexpr std::string_view list[] = {"gelu",   "gelu_erf", "relu2",     "silu",
                                              "swiglu", "geglu",    "geglu_erf", "swiglu_clamped"};
};
constexpr bool is_gated(FfnActivation a) { return a >= FfnActivation::swiglu; }

/// A layer. Formulas: runtime/model/sublayers.
struct LayerSpec {
  LayerNormKind norm = LayerNormKind::rmsnorm;
  NormPlace norm_place = NormPlace::pre;
  NormWeight norm_weight = NormWeight::plain;
  bool norm_bias = false, qkv_bias = false, out_bias = false, mlp_bias = false;
  QkNorm qk_norm = QkNorm::none;
  int64_t window = 0;  // of the layers that are windowed: a query sees itself and window - 1 before
  bool sinks = false, output_gate = false;
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
  double attention_factor = 0;                       // yarn; 0: 0.1 ln(factor) + 1
  bool truncate = true;                              // yarn: whole channels begin and end the ramp
  bool operator==(const RopeScalingSpec&) const = default;
};
struct PositionSpec {
  PositionKind type = PositionKind::rope;
  double theta = 10000;
  double window_theta = 0;     // windowed layers turn by this base, without scaling; 0: as the others do
  double rotary_fraction = 1;  // of a head's channels, the first ones
  bool interleaved = false;    // channels 2i and 2i + 1 turn together; else i and i + half
  RopeScalingSpec scaling;
};

/// How a router scores experts: their share of a softmax over all, or a sigmoid of each (DeepSeek-V3).
enum class RouterKind { softmax, sigmoid };
template <>
struct Words<RouterKind> {
  static constexpr std::string_view list[] = {"softmax", "sigmoid"};
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
  bool operator==(const MoeSpec&) const = default;
};

/// How parameters are named.
enum class ParamNames { gpt2, hub };
enum class ExpertNames { mlp, mixtral };

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
  qwen3_moe
};
template <>
struct Words<Family> {
  static constexpr std::string_view list[] = {"gpt2",    "llama",   "qwen2",   "qwen3",
                                              "olmo2",   "olmo3",   "gemma2",  "gemma3",
                                              "mistral", "smollm3", "mixtral", "qwen3_moe"};
};
/// What a family presets.
struct FamilyKind {
  LayerSpec layer;
  PositionKind position = PositionKind::rope;
  bool tied = false;
  bool scaled_embedding = false;  ///< by sqrt(hidden_size)
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
};
static_assert(std::size(kFamilies) == std::size(Words<Family>::list));
constexpr const FamilyKind& kind_of(Family family) { return kFamilies[size_t(family)]; }

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
  PositionSpec position;
  double embedding_scale = 1, logit_scale = 1, logit_cap = 0, z_loss = 0;
  bool tie_embeddings = true;
  double init_std = 0.02;
  std::string init_from;  // folder of Hugging Face safetensors, or ""

  int64_t head_dim() const {
    return head_dim_given > 0 ? head_dim_given : hidden_size / std::max<int64_t>(1, num_heads);
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
  model.position = {.type = kind.position};
  model.embedding_scale = kind.scaled_embedding ? std::sqrt(double(of.hidden_size)) : 1;
  model.logit_scale = 1;
  model.logit_cap = model.z_loss = 0;
  return model;
}

}  // namespace trainctl
