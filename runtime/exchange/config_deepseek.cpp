// Parts of a config.json of DeepSeek-V3's form: latent attention, and its mixture of experts. Source: DeepseekV3Config
// of transformers 4 and 5.
#include "runtime/exchange/config_parts.h"

namespace trainctl::config_parts {

ConfigPart latent_attention() {
  const auto read = [](const ConfigReader& r, ModelSpec& m) {
    const bool has_query = r.has("q_lora_rank") || !r.mentions("q_lora_rank");
    m.latent = {.kv_lora_rank = r.size("kv_lora_rank", 512),
                .q_lora_rank = has_query ? r.size("q_lora_rank", 1536) : 0,
                .qk_nope_head_dim = r.size("qk_nope_head_dim", 128),
                .qk_rope_head_dim = r.size("qk_rope_head_dim", 64),
                .v_head_dim = r.size("v_head_dim", 128)};
    m.head_dim_given = m.latent.head_dim();
    m.position.interleaved = r.boolean("rope_interleave", true);
    if (m.latent.v_head_dim > m.latent.head_dim())
      r.refuse("v_head_dim is {}; trainctl computes values that are no wider than keys, of {} channels",
               m.latent.v_head_dim, m.latent.head_dim());
    if (m.num_kv_heads != m.num_heads)
      r.refuse("num_key_value_heads is {}; latent attention has a key for each of {} heads", m.num_kv_heads,
               m.num_heads);
  };
  const auto write = [](const ModelSpec& m, OrderedJson& config) {
    const LatentSpec& l = m.latent;
    config["kv_lora_rank"] = l.kv_lora_rank;
    config["q_lora_rank"] = l.q_lora_rank > 0 ? OrderedJson(l.q_lora_rank) : OrderedJson();
    config["qk_nope_head_dim"] = l.qk_nope_head_dim;
    config["qk_rope_head_dim"] = l.qk_rope_head_dim;
    config["qk_head_dim"] = l.head_dim();
    config["head_dim"] = l.qk_rope_head_dim;  // of the rotation, as the class has it
    config["v_head_dim"] = l.v_head_dim;
    config["rope_interleave"] = m.position.interleaved;
  };
  return {{"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "head_dim",
           "v_head_dim", "rope_interleave"},
          read,
          write};
}

ConfigPart deepseek_experts() {
  const auto read = [](const ConfigReader& r, ModelSpec& m) {
    m.moe.num_experts = r.size("n_routed_experts", r.size("num_local_experts", 256));
    m.moe.top_k = r.size("num_experts_per_tok", 8);
    m.moe.expert_ffn_size = r.size("moe_intermediate_size", 2048);
    m.moe.router = RouterKind::sigmoid;
    m.moe.renormalize = r.boolean("norm_topk_prob", true);
    m.moe.routed_scale = r.number("routed_scaling_factor", 2.5);
    const bool all = r.number("first_k_dense_replace", 3) == 0;
    m.moe.first_dense_layers = all ? 0 : r.size("first_k_dense_replace", 3);
    m.moe.aux_loss_coefficient = 0;  // the class computes none
    if (m.moe.top_k > m.moe.num_experts)
      r.refuse("num_experts_per_tok is {}, and there are {} experts", m.moe.top_k, m.moe.num_experts);
    if (r.number("n_shared_experts", 1) != 0)
      r.refuse("n_shared_experts is {}; trainctl computes 0 only", dump_json(r.at("n_shared_experts")));
    if (r.size("n_group", 8) != 1)
      r.refuse("n_group is {}; trainctl computes 1 only", dump_json(r.at("n_group")));
  };
  const auto write = [](const ModelSpec& m, OrderedJson& config) {
    const bool has_experts = m.moe.num_experts > 0;
    config["n_routed_experts"] = has_experts ? m.moe.num_experts : 8;
    config["num_experts_per_tok"] = m.moe.top_k;
    config["moe_intermediate_size"] = has_experts ? m.moe.expert_ffn_size : m.ffn_size;
    config["norm_topk_prob"] = m.moe.renormalize;
    config["routed_scaling_factor"] = m.moe.routed_scale;
    config["first_k_dense_replace"] = has_experts ? m.moe.first_dense_layers : m.num_layers;
    config["n_shared_experts"] = 0;
    config["n_group"] = config["topk_group"] = 1;
    config["num_nextn_predict_layers"] = 0;
    config["output_router_logits"] = false;
  };
  return {{"n_routed_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
           "norm_topk_prob", "routed_scaling_factor", "first_k_dense_replace", "n_shared_experts", "n_group",
           "topk_group", "output_router_logits",
           // Of training, or of modules besides the model: not what it computes.
           "aux_loss_alpha", "seq_aux", "num_nextn_predict_layers", "num_mtp_layers", "ep_size", "auto_map"},
          read,
          write};
}

}  // namespace trainctl::config_parts
