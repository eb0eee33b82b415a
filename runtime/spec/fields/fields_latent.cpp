// Part of the field table: multi-head latent attention.
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {

void declare_latent(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection latent(
      table, sections, "model.latent",
      "Multi-head latent attention (DeepSeek-V2 and V3): keys and values of all heads come from one narrow "
      "latent of each token, and the part of keys that turns is one for all heads.",
      Change::never);
  struct Size {
    const char *name, *text, *example;
    int64_t LatentSpec::*member;
  };
  const Size sizes[] = {
      {"kv_lora_rank", "Width of the latent of keys and values. 0: heads have keys and values of their own.",
       "512", &LatentSpec::kv_lora_rank},
      {"q_lora_rank", "Width of the latent of queries. 0: queries are one product.", "1536",
       &LatentSpec::q_lora_rank},
      {"qk_nope_head_dim", "Channels of a head of queries and keys that do not turn, the first ones.", "128",
       &LatentSpec::qk_nope_head_dim},
      {"qk_rope_head_dim",
       "Channels that turn, behind them: an even number. All heads share a token's key there.", "64",
       &LatentSpec::qk_rope_head_dim},
      {"v_head_dim",
       "Channels of a value; at most those of a key, because kernels take values that are filled up with "
       "zeros to that width.",
       "128", &LatentSpec::v_head_dim}};
  for (const Size& size : sizes)
    latent.integer(size.name, size.text)
        .to([member = size.member](JobSpec & job) -> auto& { return job.model.latent.*member; })
        .from(0)
        .upto(1 << 16)
        .fallback(int64_t{0})
        .left_out_as_default()
        .example(size.example);
}

}  // namespace trainctl::spec
