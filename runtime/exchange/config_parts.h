// Parts of a config.json: some of its keys and what they say of a model, in both directions. A family is a
// list of parts (model_config.cpp). Pure.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exchange/config_reader.h"
#include "runtime/spec/fields/model_spec.h"

namespace trainctl {

struct ConfigPart {
  std::vector<std::string> keys;  ///< that it reads
  std::function<void(const ConfigReader&, ModelSpec&)> read;
  std::function<void(const ModelSpec&, OrderedJson&)> write;
};

namespace config_parts {

ConfigPart size(const char* key, int64_t ModelSpec::*member);
/// `absent`: the value where a file does not have the key.
ConfigPart number(const char* key, double ModelSpec::*member, double absent);
ConfigPart initializer_range();
/// A key of which trainctl computes one value only (JSON), and the others that mean the same.
ConfigPart fixed(const char* key, const char* value, std::vector<const char*> also = {});
/// may_be_absent: then as many as heads; the classes of other families have a number of their own.
ConfigPart kv_heads(bool may_be_absent);
/// absent: 0 for hidden_size / num_attention_heads.
ConfigPart head_dim(int64_t absent);
ConfigPart ffn(const char* key, bool may_be_null);
/// attention_bias of q, k, v and the product behind attention; mlp_bias.
ConfigPart attention_bias();
ConfigPart mlp_bias();
ConfigPart activation(const char* key, bool gated);
/// A key that the class reads nowhere.
ConfigPart ignored(const char* key);
/// rope_theta with rope_scaling (version 4), or rope_parameters (version 5).
struct RopeKeys {
  double theta = 10000;
  /// Of windowed layers: nullptr, or the key of their theta in version 4; they turn without scaling.
  const char* window_theta = nullptr;
  bool window_is_plain = false;  ///< they turn with the same theta without scaling
  double rotary_fraction = 0;    ///< where a file has no partial_rotary_factor; 0: whole heads turn always
  bool must_be_said = false;     ///< versions differ in what a file without scaling means (gpt-oss)
};
ConfigPart rope(RopeKeys keys);
/// sliding_window of all layers (Mistral).
ConfigPart window_of_all();
/// sliding_window and layer_types. Without layer_types every `period`-th layer is full; by_use_key: where
/// use_sliding_window is true, those from max_window_layers on (Qwen); else the list must be there.
struct WindowRule {
  int64_t period = 0;
  bool has_pattern_key = false;  ///< sliding_window_pattern is the period
  bool by_use_key = false;
  bool needs_types = false;  ///< versions differ in which layers use_sliding_window means (Qwen2-MoE)
  int64_t absent = 4096;     ///< the window where a file has none
};
ConfigPart windows(WindowRule rule);
/// Layers without rotary positions: no_rope_layers, or each no_rope_layer_interval-th (SmolLM3).
ConfigPart nope_layers();
/// Experts: how many (under either key), how many of them for each token, their width, and which layers have
/// them.
struct ExpertKeys {
  bool own_width =
      false;  ///< moe_intermediate_size, norm_topk_prob, decoder_sparse_step and mlp_only_layers (Qwen);
              ///< else all layers have experts of intermediate_size, renormalised (Mixtral)
  int64_t num_experts = 8, top_k = 2;  ///< where a file does not have the keys
};
ConfigPart experts(ExpertKeys keys);
/// One that every token meets, with a gate (Qwen2-MoE).
ConfigPart shared_expert();
/// Experts chosen by biased sigmoids in groups, with shared ones; the first layers are dense (DeepSeek-V3,
/// GLM-4.5), and the modules of multi-token prediction.
ConfigPart biased_experts();
/// attention_bias of q, k and v alone; use_qk_norm (GLM-4.5).
ConfigPart qkv_bias();
ConfigPart qk_norm();
/// What each file of gpt-oss says without a key; swiglu_limit.
ConfigPart router_bias();
ConfigPart activation_limit();
/// Latent attention, whose sizes take the place of head_dim (DeepSeek-V3).
ConfigPart latent_attention();
/// Keys without which the family's class has values of its own.
ConfigPart required(std::vector<const char*> keys);
/// query_pre_attn_scalar and soft-caps, with what they are where a file has no such keys. score_cap nullopt:
/// the class has its key, and computes none.
ConfigPart gemma(std::optional<double> score_cap, double logit_cap);

}  // namespace config_parts
}  // namespace trainctl
