#include "runtime/model/model_plan.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/model/mtp_plan.h"
#include "runtime/model/sublayers/latent_experts.h"

namespace trainctl {
namespace {

using kernels::NormKind;
using parallel::Cut;

/// Names of parameters, below their layer's prefix, as Hugging Face's transformers have them; those of GPT-2
/// for what it has, and like them for the rest.
struct Names {
  const char *embedding, *positions, *layers, *last_norm;
  const char* qkv[3];  ///< two null: one product
  const char *gate, *out, *q_norm, *k_norm;
  const char *up_gate, *up, *down;
  /// Of the norms before and behind attention, then of those of the feed-forward part: by NormPlace.
  const char* norms[3][4];
};
// In the order of ParamNames.
constexpr Names kNames[] = {{"wte.weight",
                             "wpe.weight",
                             "h.",
                             "ln_f",
                             {"attn.c_attn", nullptr, nullptr},
                             "attn.c_gate",
                             "attn.c_proj",
                             "attn.q_norm",
                             "attn.k_norm",
                             "mlp.c_gate",
                             "mlp.c_fc",
                             "mlp.c_proj",
                             {{"ln_1", nullptr, "ln_2", nullptr},
                              {nullptr, "ln_1", nullptr, "ln_2"},
                              {"ln_1", "ln_1_after", "ln_2", "ln_2_after"}}},
                            {"model.embed_tokens.weight",
                             "model.embed_positions.weight",
                             "model.layers.",
                             "model.norm",
                             {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                             "self_attn.gate_proj",
                             "self_attn.o_proj",
                             "self_attn.q_norm",
                             "self_attn.k_norm",
                             "mlp.gate_proj",
                             "mlp.up_proj",
                             "mlp.down_proj",
                             {{"input_layernorm", nullptr, "post_attention_layernorm", nullptr},
                              {nullptr, "post_attention_layernorm", nullptr, "post_feedforward_layernorm"},
                              {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                               "post_feedforward_layernorm"}}}};

struct ExpertWords {
  const char *router, *expert;  ///< of one expert: with its number behind
  const char *gate, *up, *down;
  const char* shared =
      "mlp.shared_expert";  ///< of the one that every token meets; its gate: with _gate behind
};
// In the order of ExpertNames; the weights of experts lie apart in files of transformers 4 and 5.
constexpr ExpertWords kExpertWords[] = {
    {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"},
    {"block_sparse_moe.gate", "block_sparse_moe.experts.", "w1", "w3", "w2"},
    {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj", "mlp.shared_experts"},
    {"mlp.router", "mlp.experts.", "gate_proj", "up_proj", "down_proj"}};

/// Of the norms of latents: DeepSeek-V3's classes in transformers, and its released code, have this one
/// whatever the model's norm_eps is.
constexpr float kLatentEps = 1e-6f;

/// Makes a plan from the description of its layers.
class PlanBuilder {
 public:
  PlanBuilder(const ModelSpec& m, const Fp8Spec& fp8, ModelPlan& plan)
      : m_(m), layer_(m.layer), fp8_(fp8), names_(kNames[size_t(kind_of(m.family).names)]), plan_(plan) {
    norm_ = {layer_.norm == LayerNormKind::layernorm ? NormKind::layernorm : NormKind::rmsnorm,
             float(m.norm_eps), is_one_plus() ? 1.0f : 0.0f};
  }

  void build() {
    plan_.embedding.tokens = vocabulary(names_.embedding, ParamRole::embedding);
    if (m_.position.type == PositionKind::learned)
      plan_.embedding.positions = {.name = names_.positions,
                                   .role = ParamRole::position,
                                   .rows = m_.max_seq_len,
                                   .cols = m_.hidden_size};
    plan_.layer_prefix = names_.layers;
    for (int64_t i = 0; i < m_.num_layers; ++i)
      plan_.layers.push_back(layer_of(m_.kind_of_layer(i), m_.has_experts(i), multiplies_fp8(i)));
    plan_.head = {norm_, norm_parameters(names_.last_norm), std::nullopt};
    if (!m_.tie_embeddings) plan_.head.weight = vocabulary("lm_head.weight", ParamRole::head);
    plan_.ends = {float(m_.embedding_scale),
                  {float(m_.logit_scale * m_.mup_ratio()), float(m_.logit_cap)},
                  float(m_.z_loss)};
    plan_.mtp = mtp_plans(m_, plan_);
  }

 private:
  bool is_one_plus() const { return layer_.norm_weight == NormWeight::one_plus; }
  ParamDeclaration vocabulary(const char* name, ParamRole role) const {
    return {.name = name, .role = role, .rows = m_.vocab_size, .cols = m_.hidden_size, .cut = Cut::rows};
  }
  std::vector<ParamDeclaration> norm_parameters(const char* name) const {
    ParamList list;
    norm(list, name, 0, 1);
    return list.take();
  }
  /// The norm, if it has a name. Its bias has the second place.
  std::optional<NormPlan> norm(ParamList& list, const char* name, int weight, int bias) const {
    if (!name) return std::nullopt;
    list.norm({.name = name, .size = m_.hidden_size, .one_plus = is_one_plus()},
              {weight, layer_.norm_bias ? bias : -1});
    return norm_;
  }

  /// Of attention's parameters that are named alike in all families.
  std::string attention_prefix() const {
    const std::string out = names_.out;
    return out.substr(0, out.find('.') + 1);
  }

  bool multiplies_fp8(int64_t layer) const {
    return fp8_.exists() && !fp8_.keeps_layer(layer, m_.num_layers);
  }
  /// Of a sublayer with these products. Both kept: as if there were no FP8, so that no room is taken.
  Fp8Plan fp8_plan(Fp8Kept in, Fp8Kept out) const {
    if (fp8_.keeps(in) && fp8_.keeps(out)) return {};
    return {fp8_.recipe, fp8_.gradients, fp8_.keeps(in), fp8_.keeps(out)};
  }
  void multiply_fp8(SublayerPlan& sublayer) const {
    std::visit(
        [&](auto& plan) {
          constexpr bool attends = requires { plan.heads; };
          plan.fp8 = attends ? fp8_plan(Fp8Kept::qkv, Fp8Kept::out) : fp8_plan(Fp8Kept::up, Fp8Kept::down);
        },
        sublayer);
  }

  /// Equal layers share one value.
  LayerRef layer_of(LayerKind kind, bool has_experts, bool fp8) {
    const std::tuple key(kind, has_experts, fp8);
    const auto known = kinds_.find(key);
    if (known != kinds_.end()) return known->second;
    LayerPlan layer{{}, plan_.precision};
    if (m_.is_latent())
      layer.sublayers.emplace_back(latent_attention(kind));
    else
      layer.sublayers.emplace_back(attention(kind));
    if (has_experts)
      layer.sublayers.emplace_back(moe());
    else
      layer.sublayers.emplace_back(mlp());
    if (fp8)
      for (SublayerPlan& sublayer : layer.sublayers) multiply_fp8(sublayer);
    for (const auto& [other, plan] : kinds_)
      if (*plan == layer) return kinds_[key] = plan;
    return kinds_[key] = std::make_shared<const LayerPlan>(std::move(layer));
  }

  AttentionPlan attention(LayerKind kind) const {
    using A = AttentionPlan;
    const char* const* names = names_.norms[size_t(layer_.norm_place)];
    A plan{.heads = m_.num_heads, .kv_heads = m_.num_kv_heads, .head_dim = m_.head_dim()};
    plan.scale = float(m_.attention_scale());
    plan.cap = float(layer_.score_cap);
    plan.window = has_window(kind) ? layer_.window : 0;
    plan.gated = layer_.output_gate;
    plan.qk_norm = layer_.qk_norm;
    if (plan.qk_norm != QkNorm::none) plan.qk = {NormKind::rmsnorm, norm_.eps, norm_.weight_offset};
    if (m_.is_rotary() && has_positions(kind)) plan.rotary = rotary(kind);
    ParamList list;
    plan.norm = norm(list, names[0], A::norm_weight, A::norm_bias);
    input_products(list);
    qk_norms(list);
    for (const kernels::HeadScalarRow& row : kernels::kHeadScalars)
      if (layer_.scalars[row.scalar])
        list.add({.name = attention_prefix() + std::string(row.word),
                  .role = ParamRole::bias,
                  .rows = m_.num_heads,
                  .cut = Cut::rows,
                  .place = A::place_of(row.scalar)});
    list.linear({.name = names_.out,
                 .out = m_.hidden_size,
                 .in = m_.num_heads * m_.head_dim(),
                 .cut = Cut::cols,
                 .residual = true},
                {A::proj_weight, layer_.out_bias ? A::proj_bias : -1});
    plan.norm_after = norm(list, names[1], A::after_weight, A::after_bias);
    plan.parameters = list.take();
    return plan;
  }

  LatentAttentionPlan latent_attention(LayerKind kind) const {
    using A = LatentAttentionPlan;
    const char* const* names = names_.norms[size_t(layer_.norm_place)];
    const LatentSpec& spec = m_.latent;
    A plan{.heads = m_.num_heads,
           .query_latent = spec.q_lora_rank,
           .key_latent = spec.kv_lora_rank,
           .own_dim = spec.qk_nope_head_dim,
           .rope_dim = spec.qk_rope_head_dim,
           .value_dim = spec.v_head_dim};
    plan.scale = float(m_.attention_scale());
    plan.cap = float(layer_.score_cap);
    plan.window = has_window(kind) ? layer_.window : 0;
    plan.latent = {NormKind::rmsnorm, kLatentEps, norm_.weight_offset};
    if (m_.is_rotary() && has_positions(kind)) plan.rotary = rotary(kind);
    ParamList list;
    plan.norm = norm(list, names[0], A::norm_weight, A::norm_bias);
    latent_products(list, plan);
    list.weight({.name = names_.out,
                 .out = m_.hidden_size,
                 .in = m_.num_heads * spec.v_head_dim,
                 .cut = Cut::cols,
                 .residual = true},
                A::proj_weight);
    plan.norm_after = norm(list, names[1], A::after_weight, A::after_bias);
    plan.parameters = list.take();
    return plan;
  }

  /// From x to the latents, and from them to queries, keys and values.
  void latent_products(ParamList& list, const LatentAttentionPlan& plan) const {
    using A = LatentAttentionPlan;
    const std::string prefix = attention_prefix();
    const bool has_query = plan.query_latent > 0;
    const auto whole = [&](const char* name, int64_t width, bool joined) {
      list.add({.name = prefix + name + ".weight",
                .rows = width,
                .cols = m_.hidden_size,
                .place = A::down_weight,
                .joined = joined,
                .partial = true});
    };
    const auto latent_norm = [&](const char* name, int64_t width, int place) {
      list.norm({.name = prefix + name, .size = width, .one_plus = is_one_plus(), .partial = true},
                {place, -1});
    };
    const auto by_head = [&](const char* name, int64_t width, int64_t in, int place) {
      list.weight(
          {.name = prefix + name, .out = plan.heads * width, .in = in, .cut = Cut::rows, .head_rows = width},
          place);
    };
    if (has_query) whole("q_a_proj", plan.query_latent, false);
    whole("kv_a_proj_with_mqa", plan.key_latent + plan.rope_dim, has_query);
    if (has_query) latent_norm("q_a_layernorm", plan.query_latent, A::query_norm);
    latent_norm("kv_a_layernorm", plan.key_latent, A::key_norm);
    by_head(has_query ? "q_b_proj" : "q_proj", plan.head_dim(),
            has_query ? plan.query_latent : m_.hidden_size, A::query_weight);
    by_head("kv_b_proj", plan.own_dim + plan.value_dim, plan.key_latent, A::key_value_weight);
  }

  /// Q, K, V and the gate, one taller matrix.
  void input_products(ParamList& list) const {
    using A = AttentionPlan;
    const int64_t q = m_.num_heads * m_.head_dim(), kv = m_.num_kv_heads * m_.head_dim();
    std::vector<ParamList::Linear> products;
    if (names_.qkv[1]) {
      for (int i = 0; i < 3; ++i) products.push_back({.name = names_.qkv[i], .out = i == 0 ? q : kv});
    } else {
      products.push_back({.name = names_.qkv[0], .out = q + 2 * kv, .sections = {q, kv, kv}});
    }
    for (ParamList::Linear& product : products) product.head_rows = m_.head_dim();
    if (layer_.output_gate) products.push_back({.name = names_.gate, .out = q});
    for (size_t i = 0; i < products.size(); ++i) {
      products[i].in = m_.hidden_size, products[i].cut = Cut::rows, products[i].joined = i > 0;
      list.weight(products[i], A::qkv_weight);
    }
    for (const ParamList::Linear& product : products)
      if (layer_.qkv_bias) list.bias(product, A::qkv_bias);
  }

  void qk_norms(ParamList& list) const {
    using A = AttentionPlan;
    if (layer_.qk_norm == QkNorm::none) return;
    const bool by_head = layer_.qk_norm == QkNorm::head;
    const auto add = [&](const char* name, int64_t heads, int place) {
      list.norm({.name = name,
                 .size = (by_head ? 1 : heads) * m_.head_dim(),
                 .one_plus = is_one_plus(),
                 .cut = by_head ? Cut::none : Cut::rows,
                 .partial = by_head},
                {place, -1});
    };
    add(names_.q_norm, m_.num_heads, A::q_norm);
    add(names_.k_norm, m_.num_kv_heads, A::k_norm);
  }

  Rotary rotary(LayerKind kind) const {
    const PositionSpec& p = m_.position;
    Rotary rotary{.theta = p.theta,
                  .channels = m_.rotary_channels(),
                  .interleaved = p.interleaved,
                  .scaling = p.scaling};
    if (has_window(kind) && p.window_theta > 0) rotary.theta = p.window_theta, rotary.scaling = {};
    if (rotary.scaling.type != RopeScaling::none) rotary.scaling.original_max_seq_len = m_.original_seq_len();
    return rotary;
  }

  MlpPlan mlp() const {
    using M = MlpPlan;
    const char* const* names = names_.norms[size_t(layer_.norm_place)];
    M plan{.ffn = m_.ffn_size, .activation = layer_.activation};
    if (layer_.activation == FfnActivation::swiglu_clamped) plan.limit = float(layer_.activation_limit);
    ParamList list;
    plan.norm = norm(list, names[2], M::norm_weight, M::norm_bias);
    std::vector<ParamList::Linear> products;
    if (is_gated(layer_.activation)) products.push_back({.name = names_.up_gate});
    products.push_back({.name = names_.up});
    for (size_t i = 0; i < products.size(); ++i) {
      products[i].out = m_.ffn_size, products[i].in = m_.hidden_size, products[i].cut = Cut::rows;
      products[i].joined = i > 0;
      list.weight(products[i], M::up_weight);
    }
    for (const ParamList::Linear& product : products)
      if (layer_.mlp_bias) list.bias(product, M::up_bias);
    list.linear(
        {.name = names_.down, .out = m_.hidden_size, .in = m_.ffn_size, .cut = Cut::cols, .residual = true},
        {M::down_weight, layer_.mlp_bias ? M::down_bias : -1});
    plan.norm_after = norm(list, names[3], M::after_weight, M::after_bias);
    plan.parameters = list.take();
    return plan;
  }

  MoePlan moe() const {
    using M = MoePlan;
    const MoeSpec& spec = m_.moe;
    const char* const* names = names_.norms[size_t(layer_.norm_place)];
    const ExpertWords& words = kExpertWords[size_t(kind_of(m_.family).expert_names)];
    M plan{.experts = spec.num_experts, .top_k = spec.top_k, .ffn = spec.expert_ffn_size};
    plan.activation = layer_.activation;
    if (layer_.activation == FfnActivation::swiglu_clamped) plan.limit = float(layer_.activation_limit);
    // Both have their words in the same order.
    plan.router = {kernels::RouterScore(spec.router), spec.renormalize, float(spec.routed_scale),
                   int(spec.groups), int(spec.top_groups)};
    plan.shared = {spec.shared_ffn_size, spec.shared_gate};
    plan.capacity_factor = spec.capacity_factor;
    plan.drops_by_weight = spec.drop_policy == DropPolicy::weight;
    plan.latent = spec.latent_size;
    plan.counts_margins = spec.bias_update == BiasUpdate::quantile;
    plan.aux_loss = float(spec.aux_loss_coefficient);
    plan.z_loss = float(spec.z_loss_coefficient);
    ParamList list;
    plan.norm = norm(list, names[2], M::norm_weight, M::norm_bias);
    list.add({.name = std::string(words.router) + ".weight",
              .role = ParamRole::router,
              .rows = spec.num_experts,
              .cols = m_.hidden_size,
              .place = M::router_weight,
              .partial = true});
    if (spec.router_bias)
      list.add({.name = std::string(words.router) + ".bias",
                .role = ParamRole::bias,
                .rows = spec.num_experts,
                .place = M::router_bias,
                .partial = true});
    if (spec.selection_bias)
      list.add({.name = std::string(words.router) + ".e_score_correction_bias",
                .role = ParamRole::selection_bias,
                .rows = spec.num_experts,
                .place = M::selection_bias});
    LatentExperts::declare_parameters(list, m_.hidden_size, spec.latent_size, {M::latent_in, M::latent_out});
    expert_parameters(list, words);
    if (spec.shared_ffn_size > 0) shared_expert(list, words.shared);
    plan.norm_after = norm(list, names[3], M::after_weight, M::after_bias);
    plan.parameters = list.take();
    return plan;
  }

  /// Gate and up of all experts one after another, then down of all, then their biases in the same order.
  void expert_parameters(ParamList& list, const ExpertWords& words) const {
    std::vector<ParamList::Linear> up, down;
    for (int64_t e = 0; e < m_.moe.num_experts; ++e)
      feed_forward(words.expert + std::to_string(e) + ".", words, m_.moe.width(m_.hidden_size),
                   m_.moe.expert_ffn_size, up, down, int(e));
    for (const ParamList::Linear& product : up) list.weight(product, MoePlan::up_weight);
    for (const ParamList::Linear& product : down) list.weight(product, MoePlan::down_weight);
    if (!layer_.mlp_bias) return;
    for (const ParamList::Linear& product : up) list.bias(product, MoePlan::up_bias);
    for (const ParamList::Linear& product : down) list.bias(product, MoePlan::down_bias);
  }

  void shared_expert(ParamList& list, const std::string& name) const {
    std::vector<ParamList::Linear> up, down;
    feed_forward(name + ".", kExpertWords[0], m_.hidden_size, m_.moe.shared_ffn_size, up, down);
    for (const ParamList::Linear& product : up) list.weight(product, MoePlan::shared_up_weight);
    list.weight(down[0], MoePlan::shared_down_weight);
    if (m_.moe.shared_gate)
      list.add({.name = name + "_gate.weight",
                .role = ParamRole::router,
                .rows = 1,
                .cols = m_.hidden_size,
                .place = MoePlan::shared_gate,
                .partial = true});
  }

  /// Adds the products of one expert behind those of others. hidden: the width of what it reads.
  void feed_forward(const std::string& before, const ExpertWords& words, int64_t hidden, int64_t width,
                    std::vector<ParamList::Linear>& up, std::vector<ParamList::Linear>& down,
                    int expert = -1) const {
    if (is_gated(layer_.activation))
      up.push_back({.name = before + words.gate,
                    .out = width,
                    .in = hidden,
                    .cut = Cut::rows,
                    .joined = !up.empty(),
                    .expert = expert});
    up.push_back({.name = before + words.up,
                  .out = width,
                  .in = hidden,
                  .cut = Cut::rows,
                  .joined = !up.empty(),
                  .expert = expert});
    down.push_back({.name = before + words.down,
                    .out = hidden,
                    .in = width,
                    .cut = Cut::cols,
                    .residual = true,
                    .joined = !down.empty(),
                    .expert = expert});
  }

  const ModelSpec& m_;
  const LayerSpec& layer_;
  const Fp8Spec& fp8_;
  const Names& names_;
  NormPlan norm_;
  ModelPlan& plan_;
  std::map<std::tuple<LayerKind, bool, bool>, LayerRef> kinds_;
};

}  // namespace

ModelPlan model_plan(const ModelSpec& m, DType compute, const Fp8Spec& fp8) {
  ModelPlan plan{.family = m.family,
                 .hidden = m.hidden_size,
                 .vocabulary = m.vocab_size,
                 .init = m.init,
                 .mup_ratio = m.mup_ratio(),
                 .precision = precision_of(compute)};
  PlanBuilder(m, fp8, plan).build();
  return plan;
}

std::vector<LayerRef> ModelPlan::unlike_layers() const {
  std::vector<LayerRef> unlike;
  for (const LayerRef& layer : layers)
    if (std::find(unlike.begin(), unlike.end(), layer) == unlike.end()) unlike.push_back(layer);
  return unlike;
}

namespace {

/// null: nothing turns.
const Rotary* rotary_of(const SublayerPlan& sublayer) {
  const std::optional<Rotary>* rotary = nullptr;
  if (const auto* attention = std::get_if<AttentionPlan>(&sublayer)) rotary = &attention->rotary;
  if (const auto* latent = std::get_if<LatentAttentionPlan>(&sublayer)) rotary = &latent->rotary;
  return rotary && *rotary ? &**rotary : nullptr;
}

}  // namespace

std::vector<Rotary> ModelPlan::rotaries() const {
  std::vector<Rotary> rotaries;
  for (const LayerRef& layer : unlike_layers())
    for (const SublayerPlan& sublayer : layer->sublayers)
      if (const Rotary* rotary = rotary_of(sublayer))
        if (std::find(rotaries.begin(), rotaries.end(), *rotary) == rotaries.end())
          rotaries.push_back(*rotary);
  return rotaries;
}

bool compute_the_same(const ModelPlan& a, const ModelPlan& b) {
  const auto same_layer = [](const LayerRef& x, const LayerRef& y) { return *x == *y; };
  return a.embedding.tokens == b.embedding.tokens && a.embedding.positions == b.embedding.positions &&
         std::equal(a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end(), same_layer) &&
         a.head.norm == b.head.norm && a.head.norm_parameters == b.head.norm_parameters &&
         a.head.weight == b.head.weight && a.ends.embedding_scale == b.ends.embedding_scale &&
         a.ends.logits.scale == b.ends.logits.scale && a.ends.logits.cap == b.ends.logits.cap;
}

}  // namespace trainctl
