// Parts of a config.json of DeepSeek-V3's form. Source: DeepseekV3Config of transformers 4 and 5.
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

ConfigPart required(std::vector<const char*> keys) {
  return {{},
          [=](const ConfigReader& r, ModelSpec&) {
            for (const char* key : keys)
              if (!r.has(key)) r.refuse("it has no {}", key);
          },
          [](const ModelSpec&, OrderedJson&) {}};
}

}  // namespace trainctl::config_parts
