// Parts of a config.json that say how a family mixes experts.
#include <algorithm>

#include "runtime/exchange/config_parts.h"

namespace trainctl::config_parts {
namespace {

/// mlp_only_layers: trainctl has them in front.
int64_t first_dense_layers(const ConfigReader& r, const ModelSpec& m) {
  const Json& list = r.at("mlp_only_layers");
  if (is_nothing(list)) return 0;
  int64_t first = 0;
  const auto is_listed = [&](int64_t layer) {
    return std::find(list.begin(), list.end(), layer) != list.end();
  };
  while (first < m.num_layers && (is_listed(first) || (first + 1) % m.moe.layer_step != 0)) ++first;
  for (int64_t i = first; i < m.num_layers; ++i)
    if (is_listed(i) && (i + 1) % m.moe.layer_step == 0)
      r.refuse("mlp_only_layers is {}; trainctl computes models whose first layers alone have no experts",
               dump_json(list));
  return first;
}

}  // namespace

ConfigPart experts(ExpertKeys keys) {
  const auto read = [=](const ConfigReader& r, ModelSpec& m) {
    m.moe.num_experts = r.size("num_local_experts", r.size("num_experts", keys.num_experts));
    m.moe.top_k = r.size("num_experts_per_tok", keys.top_k);
    m.moe.expert_ffn_size = keys.own_width ? r.size("moe_intermediate_size", 768) : m.ffn_size;
    m.moe.renormalize = !keys.own_width || r.boolean("norm_topk_prob", false);
    m.moe.layer_step = keys.own_width ? r.size("decoder_sparse_step", 1) : 1;
    m.moe.first_dense_layers = keys.own_width ? first_dense_layers(r, m) : 0;
    m.moe.aux_loss_coefficient = r.number("router_aux_loss_coef", 0.001);
    if (m.moe.top_k > m.moe.num_experts)
      r.refuse("num_experts_per_tok is {}, and there are {} experts", m.moe.top_k, m.moe.num_experts);
    if (const double jitter = r.number("router_jitter_noise", 0); jitter != 0)
      r.refuse("router_jitter_noise is {}; trainctl computes 0 only", jitter);
  };
  const auto write = [=](const ModelSpec& m, OrderedJson& config) {
    config["num_local_experts"] = m.moe.num_experts;
    if (keys.own_width) {
      config["num_experts"] = m.moe.num_experts;  // as version 4 calls them
      config["moe_intermediate_size"] = m.moe.expert_ffn_size;
      config["norm_topk_prob"] = m.moe.renormalize;
      config["decoder_sparse_step"] = m.moe.layer_step;
      OrderedJson dense = OrderedJson::array();
      for (int64_t i = 0; i < m.moe.first_dense_layers; ++i) dense.push_back(i);
      config["mlp_only_layers"] = dense;
    } else {
      config["intermediate_size"] = m.moe.expert_ffn_size;  // no layer has the other width
    }
    config["num_experts_per_tok"] = m.moe.top_k;
    config["router_aux_loss_coef"] = m.moe.aux_loss_coefficient;
    config["output_router_logits"] = false;
  };
  ConfigPart part{{"num_local_experts", "num_experts", "num_experts_per_tok", "router_aux_loss_coef",
                   "router_jitter_noise", "output_router_logits"},
                  read,
                  write};
  if (keys.own_width)
    for (const char* key :
         {"moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"})
      part.keys.push_back(key);
  return part;
}

ConfigPart shared_expert() {
  constexpr const char* kKey = "shared_expert_intermediate_size";
  return {{kKey},
          [](const ConfigReader& r, ModelSpec& m) {
            m.moe.shared_ffn_size = r.size(kKey, 5632);
            m.moe.shared_gate = true;
          },
          [](const ModelSpec& m, OrderedJson& config) { config[kKey] = m.moe.shared_ffn_size; }};
}

namespace {

/// Layers behind the model that predict further tokens.
int64_t modules_of(const ConfigReader& r) {
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers"})
    if (r.has(key) && r.at(key) != 0) {
      const int64_t modules = r.size(key);
      if (modules > kMostMtpLayers) r.refuse("{} is {}, more than {}", key, modules, kMostMtpLayers);
      return modules;
    }
  return 0;
}

}  // namespace

ConfigPart biased_experts() {
  const auto read = [](const ConfigReader& r, ModelSpec& m) {
    MoeSpec& moe = m.moe;
    moe.num_experts = r.size("n_routed_experts", 128);
    moe.top_k = r.size("num_experts_per_tok", 8);
    moe.expert_ffn_size = r.size("moe_intermediate_size", 1408);
    moe.shared_ffn_size = moe.expert_ffn_size * r.size("n_shared_experts", 1);
    moe.router = RouterKind::sigmoid;
    moe.renormalize = r.boolean("norm_topk_prob", true);
    moe.routed_scale = r.number("routed_scaling_factor", 1);
    moe.groups = r.size("n_group", 1);
    moe.top_groups = r.size("topk_group", 1);
    const bool all = r.number("first_k_dense_replace", 1) == 0;
    moe.first_dense_layers = all ? 0 : r.size("first_k_dense_replace", 1);
    m.mtp.num_layers = modules_of(r);
    moe.selection_bias = true;
    moe.aux_loss_coefficient = 0;
    if (moe.num_experts % moe.groups != 0 || moe.top_groups > moe.groups ||
        moe.top_k > moe.num_experts / moe.groups * moe.top_groups)
      r.refuse("a token has {} of {} experts, in {} of {} groups", moe.top_k, moe.num_experts, moe.top_groups,
               moe.groups);
  };
  const auto write = [](const ModelSpec& m, OrderedJson& config) {
    const MoeSpec& moe = m.moe;
    config["n_routed_experts"] = moe.num_experts;
    config["num_experts_per_tok"] = moe.top_k;
    config["moe_intermediate_size"] = moe.expert_ffn_size;
    config["n_shared_experts"] = moe.shared_ffn_size / std::max<int64_t>(1, moe.expert_ffn_size);
    config["norm_topk_prob"] = moe.renormalize;
    config["routed_scaling_factor"] = moe.routed_scale;
    config["n_group"] = moe.groups;
    config["topk_group"] = moe.top_groups;
    config["first_k_dense_replace"] = moe.first_dense_layers;
    config["num_nextn_predict_layers"] = m.mtp.num_layers;
    config["output_router_logits"] = false;
  };
  return {{"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
           "norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group", "first_k_dense_replace",
           "num_nextn_predict_layers", "num_mtp_layers", "num_local_experts", "output_router_logits"},
          read,
          write};
}

ConfigPart qkv_bias() {
  return {{"attention_bias"},
          [](const ConfigReader& r, ModelSpec& m) { m.layer.qkv_bias = r.boolean("attention_bias", false); },
          [](const ModelSpec& m, OrderedJson& config) { config["attention_bias"] = m.layer.qkv_bias; }};
}

ConfigPart qk_norm() {
  return {{"use_qk_norm"},
          [](const ConfigReader& r, ModelSpec& m) {
            m.layer.qk_norm = r.boolean("use_qk_norm", false) ? QkNorm::head : QkNorm::none;
          },
          [](const ModelSpec& m, OrderedJson& config) {
            config["use_qk_norm"] = m.layer.qk_norm == QkNorm::head;
          }};
}

ConfigPart router_bias() {
  return {{},
          [](const ConfigReader&, ModelSpec& m) { m.moe.router_bias = true; },
          [](const ModelSpec&, OrderedJson&) {}};
}

ConfigPart activation_limit() {
  return {{"swiglu_limit"},
          [](const ConfigReader& r, ModelSpec& m) { m.layer.activation_limit = r.number("swiglu_limit", 7); },
          [](const ModelSpec& m, OrderedJson& config) { config["swiglu_limit"] = m.layer.activation_limit; }};
}

}  // namespace trainctl::config_parts
