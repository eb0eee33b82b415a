// Checks of multi-head latent attention.
#include <fmt/format.h>

#include "runtime/spec/resolution.h"

namespace trainctl::spec {
namespace {

constexpr const char *kRank = "model.latent.kv_lora_rank", *kOwn = "model.latent.qk_nope_head_dim",
                     *kRope = "model.latent.qk_rope_head_dim", *kValue = "model.latent.v_head_dim",
                     *kHeads = "model.num_heads";

/// What belongs to heads with keys and values of their own.
void check_features(Resolution& r) {
  const ModelSpec& m = r.job.model;
  struct Feature {
    std::string path;
    bool given;
  };
  std::vector<Feature> features = {{"model.layer.qk_norm", m.layer.qk_norm != QkNorm::none},
                                   {"model.layer.qkv_bias", m.layer.qkv_bias},
                                   {"model.layer.out_bias", m.layer.out_bias},
                                   {"model.layer.output_gate", m.layer.output_gate},
                                   {"model.position.rotary_fraction", m.position.rotary_fraction != 1}};
  for (const kernels::HeadScalarRow& row : kernels::kHeadScalars)
    features.push_back({fmt::format("model.layer.{}", row.word), m.layer.scalars[row.scalar]});
  for (const Feature& feature : features)
    if (feature.given && r.sound(feature.path))
      r.report("E0229", fmt::format("latent attention has no `{}`", feature.path), {feature.path, kRank},
               {"remove the field, or model.latent"});
  if (r.sound({"model.num_kv_heads", kHeads}) && m.num_kv_heads != m.num_heads)
    r.report(
        "E0229",
        fmt::format("latent attention has a key for each of {} heads, not {}", m.num_heads, m.num_kv_heads),
        {"model.num_kv_heads", kHeads, kRank}, {"remove model.num_kv_heads"});
  if (r.given_by_user("model.head_dim") && r.sound({"model.head_dim", kOwn, kRope}) &&
      m.head_dim_given != m.latent.head_dim())
    r.report("E0229",
             fmt::format("a head of latent attention has qk_nope_head_dim + qk_rope_head_dim = {} channels, "
                         "not {}",
                         m.latent.head_dim(), m.head_dim_given),
             {"model.head_dim", kOwn, kRope}, {"remove model.head_dim"});
  const int64_t parts = LatentSpec::tensor_parts(m.num_heads);
  if (r.sound({kHeads, "parallelism.tensor"}) && m.num_heads % r.job.parallelism.tensor == 0 &&
      parts % r.job.parallelism.tensor != 0)
    r.report("E0229",
             fmt::format("heads of latent attention are not cut over {} ranks", r.job.parallelism.tensor),
             {"parallelism.tensor", kHeads, kRank}, {fmt::format("use a divisor of {}", parts)});
  if (r.sound("model.mup.base_hidden_size") && m.mup.base_hidden_size > 0)
    r.report("E0244", "muP is not known for latent attention", {"model.mup.base_hidden_size", kRank},
             {"remove model.mup"});
}

}  // namespace

void check_latent(Resolution& r) {
  const ModelSpec& m = r.job.model;
  if (!r.sound(kRank)) return;
  if (!m.is_latent()) {
    for (const Field& field : fields())
      if (field.path.starts_with("model.latent.") && field.path != kRank && r.given_by_user(field.path) &&
          r.sound(field.path) && field.get(r.job) != field.fallback)
        r.report("E0224", fmt::format("`{}` has no effect here", field.path), {field.path, kRank},
                 {"give model.latent.kv_lora_rank, too"});
    return;
  }
  if (r.sound({kOwn, kRope, kValue})) {
    const LatentSpec& l = m.latent;
    if (l.v_head_dim < 1 || l.v_head_dim > l.head_dim())
      r.report("E0228",
               fmt::format("values of {} channels do not fit keys of {} + {}", l.v_head_dim,
                           l.qk_nope_head_dim, l.qk_rope_head_dim),
               {kValue, kOwn, kRope}, {"DeepSeek-V3 has 128, and keys of 128 + 64"});
    if (l.qk_rope_head_dim < 1 || l.qk_rope_head_dim % 2 != 0) {
      r.report("E0228", fmt::format("{} channels of a key cannot turn in pairs", l.qk_rope_head_dim), {kRope},
               {"give an even number, such as DeepSeek-V3's 64"});
      r.spoil(kRope);
    }
  }
  check_features(r);
}

}  // namespace trainctl::spec
