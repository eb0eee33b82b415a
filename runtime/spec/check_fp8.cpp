// Checks of number formats: the sizes that FP8 blocks fit, and what f16 is for.
#include <fmt/format.h>

#include <bit>
#include <numeric>

#include "runtime/spec/resolution.h"

namespace trainctl::spec {
namespace {

/// A dimension of products: `each` * (the value of a field + others), of which a tensor rank has its part.
struct Cut {
  std::string path;
  int64_t value = 0, each = 1;
  bool by_tensor = true;
  int64_t others = 0;
  bool ragged = false;  ///< tensor ranks need not divide it
  int64_t channels() const { return each * (value + others); }
};

/// Those of attention's products.
std::vector<Cut> attention_cuts(const ModelSpec& m, const Fp8Spec& fp8) {
  const bool in = !fp8.keeps(Fp8Kept::qkv), out = !fp8.keeps(Fp8Kept::out);
  if (!m.is_latent()) {
    std::vector<Cut> cuts;
    if (in || out) cuts.push_back({"model.num_heads", m.num_heads, m.head_dim()});
    if (in) cuts.push_back({"model.num_kv_heads", m.num_kv_heads, m.head_dim()});
    return cuts;
  }
  const LatentSpec& l = m.latent;
  std::vector<Cut> cuts;
  if (in)
    cuts = {{"model.latent.q_lora_rank", l.q_lora_rank, 1, false},
            {"model.latent.kv_lora_rank", l.kv_lora_rank, 1, false},
            {"model.latent.qk_nope_head_dim", l.qk_nope_head_dim, m.num_heads, true, l.qk_rope_head_dim},
            {"model.latent.qk_nope_head_dim", l.qk_nope_head_dim, m.num_heads, true, l.v_head_dim}};
  if (out) cuts.push_back({"model.latent.v_head_dim", l.v_head_dim, m.num_heads});
  return cuts;
}

std::vector<Cut> feed_forward_cuts(const ModelSpec& m, const Fp8Spec& fp8, bool whole_experts) {
  std::vector<Cut> cuts;
  bool has_dense = false, has_experts = false;
  for (int64_t i = 0; i < m.num_layers; ++i)
    if (!fp8.keeps_layer(i, m.num_layers)) (m.has_experts(i) ? has_experts : has_dense) = true;
  if (has_dense) cuts.push_back({"model.ffn_size", m.ffn_size});
  if (!has_experts) return cuts;
  cuts.push_back({"model.moe.expert_ffn_size", m.moe.expert_ffn_size, 1, !whole_experts, 0, true});
  cuts.push_back({"model.moe.shared_ffn_size", m.moe.shared_ffn_size});
  cuts.push_back({"model.moe.latent_size", m.moe.latent_size, 1, false});
  return cuts;
}

/// Multiples of what fits, around the value.
std::string what_fits(const Cut& cut, int64_t tensor, int64_t group) {
  const int64_t whole = group * (cut.by_tensor ? tensor : 1), step = whole / std::gcd(whole, cut.each);
  const int64_t below = (cut.value + cut.others) / step * step - cut.others;
  return below > 0 ? fmt::format("{} or {}", below, below + step) : fmt::format("{}", below + step);
}

void check_blocks(Resolution& r) {
  const Fp8Spec& fp8 = r.job.fp8;
  const ModelSpec& m = r.job.model;
  const int64_t tensor = r.job.parallelism.tensor, group = scaling_of(fp8.recipe).group;
  if (fp8.keeps(Fp8Kept::qkv) && fp8.keeps(Fp8Kept::out) && fp8.keeps(Fp8Kept::up) &&
      fp8.keeps(Fp8Kept::down))
    return;
  std::vector<Cut> cuts = {{"model.hidden_size", m.hidden_size, 1, false}};
  for (const Cut& cut : attention_cuts(m, fp8)) cuts.push_back(cut);
  if (!fp8.keeps(Fp8Kept::up) || !fp8.keeps(Fp8Kept::down))
    for (const Cut& cut : feed_forward_cuts(m, fp8, r.job.parallelism.token_parts() > 1)) cuts.push_back(cut);
  for (const Cut& cut : cuts) {
    const int64_t all = cut.channels(), ranks = cut.by_tensor ? tensor : 1;
    const bool even = all % ranks == 0;
    if (!r.sound(cut.path) || (even ? all / ranks % group == 0 : !cut.ragged)) continue;
    const std::string whose = ranks > 1 ? fmt::format("that each of {} tensor ranks has of", ranks) : "of";
    r.report("E0322",
             fmt::format("{} blocks of {} do not fit the {}{} channels {} {} = {}",
                         scaling_of(fp8.recipe).four_bits ? "FP4" : "FP8", group, all / ranks,
                         even ? "" : fmt::format(" or {}", all / ranks + 1), whose, cut.path, cut.value),
             {cut.path, "precision.fp8.recipe", "parallelism.tensor"},
             {fmt::format("use {} = {}, or the recipe \"tensor\", or keep its products (precision.keep)",
                          cut.path.substr(cut.path.rfind('.') + 1), what_fits(cut, tensor, group))});
  }
}

}  // namespace

void check_f16(Resolution& r) {
  if (!r.sound("precision.compute")) return;
  constexpr const char* kFields[] = {"precision.loss_scale.initial", "precision.loss_scale.growth_interval",
                                     "precision.loss_scale.minimum"};
  const JobSpec& job = r.job;
  if (job.compute != DType::f16) {
    for (const char* path : kFields)
      if (r.given_by_user(path) && r.sound(path) &&
          find_field(path)->get(job) != find_field(path)->get(JobSpec()))
        r.report(
            "W0245", fmt::format("`{}` has no effect here", path), {path, "precision.compute"},
            {fmt::format("precision.compute is {}; remove the field, or choose f16", name_of(job.compute))});
    return;
  }
  if (r.sound("device") && job.device != DeviceChoice::cpu)
    r.report("E0323", "f16 is computed by ranks on CPUs alone", {"precision.compute", "device"},
             {"use bf16 on GPUs, or set device = \"cpu\""});
  if (r.sound("precision.fp8.recipe") && job.fp8.exists())
    r.report("E0324", "FP8 values times their scales leave the range of f16",
             {"precision.compute", "precision.fp8.recipe"}, {"use bf16 with precision.fp8"});
  for (const auto& [path, value] :
       {std::pair{kFields[0], job.loss_scale.initial}, {kFields[2], job.loss_scale.minimum}})
    if (r.sound(path) && !std::has_single_bit(uint64_t(value)))
      r.report(
          "E0325", fmt::format("{} = {} is no power of two", path, value), {path},
          {fmt::format("use {} or {}", std::bit_floor(uint64_t(value)), std::bit_ceil(uint64_t(value)))});
  if (r.sound({kFields[0], kFields[2]}) && job.loss_scale.minimum > job.loss_scale.initial)
    r.report("E0325",
             fmt::format("the loss scale begins at {}, below its floor of {}", job.loss_scale.initial,
                         job.loss_scale.minimum),
             {kFields[0], kFields[2]}, {"make the minimum smaller"});
}

void check_master_weights(Resolution& r) {
  const char* field = "optimizer.master_weights";
  if (!r.sound(field) || r.job.optimizer.master_weights == MasterWeights::f32) return;
  if (r.sound("precision.compute") && r.job.compute != DType::bf16)
    r.report("E0327",
             fmt::format("only weights in bf16 can be all there is of them, and these are in {}",
                         name_of(r.job.compute)),
             {field, "precision.compute"},
             {"set precision.compute = \"bf16\"", "or master_weights = \"f32\""});
  if (r.sound("precision.fp8.recipe") && r.job.fp8.exists())
    r.report("E0327", "FP8 products round copies of master weights, and there would be none",
             {field, "precision.fp8.recipe"}, {"leave out precision.fp8", "or master_weights = \"f32\""});
  if (r.sound("optimizer.type") && r.job.optimizer.type == OptimizerType::muon)
    r.report("E0327", "muon updates master weights, and there would be none", {field, "optimizer.type"},
             {"use adamw, lion or sgd with it", "or master_weights = \"f32\""});
  if (r.sound("device") && r.job.device != DeviceChoice::cpu)
    r.report("E0327", "GPUs update master weights, and there would be none", {field, "device"},
             {"set device = \"cpu\"",
              "or master_weights = \"f32\", with zero_stage 1 to 3 or bf16 or int8 moments"});
}

void check_fp8(Resolution& r) {
  if (!r.sound("precision.fp8.recipe")) return;
  const Fp8Spec& fp8 = r.job.fp8;
  for (const char* path : {"precision.fp8.gradients", "precision.keep"})
    if (!fp8.exists() && r.given_by_user(path) && r.sound(path) &&
        find_field(path)->get(r.job) != find_field(path)->get(JobSpec()))
      r.report("W0245", fmt::format("`{}` has no effect here", path), {path, "precision.fp8.recipe"},
               {"precision.fp8.recipe is \"none\"; remove the field, or choose a recipe"});
  if (!fp8.exists()) return;
  const bool four_bits = scaling_of(fp8.recipe).four_bits;
  if (four_bits && fp8.gradients != Fp8Gradients::e4m3 && r.sound("precision.fp8.gradients"))
    r.report("W0245", "`precision.fp8.gradients` has no effect here",
             {"precision.fp8.gradients", "precision.fp8.recipe"},
             {"all operands of nvfp4 have 4 bits; remove the field, or choose another recipe"});
  if (four_bits && r.sound("device") && r.job.device != DeviceChoice::cpu)
    r.report("E0328", "nvfp4 is computed by ranks on CPUs alone", {"precision.fp8.recipe", "device"},
             {"use mxfp8 or block on GPUs, or set device = \"cpu\""});
  const bool known = r.sound({"precision.keep", "parallelism.tensor", "model.num_heads", "model.head_dim",
                              "model.num_kv_heads", "model.num_layers"});
  if (scaling_of(fp8.recipe).group > 0 && known) check_blocks(r);
}

}  // namespace trainctl::spec
