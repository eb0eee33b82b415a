// Checks of a model's heads, of the description of its layers and of its positions.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/text.h"
#include "runtime/spec/divisors.h"
#include "runtime/spec/resolution.h"

namespace trainctl::spec {
namespace {

/// A field that means nothing but where `used` holds.
struct Idle {
  const char* path;
  bool used;
  const char *other, *help;
};

bool any_layer(const ModelSpec& m, bool (*is)(LayerKind)) {
  const int64_t kinds = m.layers.empty() ? 1 : std::min<int64_t>(m.num_layers, int64_t(m.layers.size()));
  for (int64_t layer = 0; layer < kinds; ++layer)
    if (is(m.kind_of_layer(layer))) return true;
  return false;
}

void check_idle(Resolution& r) {
  const ModelSpec& m = r.job.model;
  const RopeScaling scaling = m.position.scaling.type;
  const bool llama3 = scaling == RopeScaling::llama3, yarn = scaling == RopeScaling::yarn;
  const char *kScaling = "model.position.scaling.type", *kLlama3 = "it belongs to scaling by \"llama3\"",
             *kYarn = "it belongs to scaling by \"yarn\"",
             *kTied = "the embedding is the head here; its factor is that of `embedding`";
  const Idle fields[] = {
      {"model.layer.activation_limit", m.layer.activation == FfnActivation::swiglu_clamped,
       "model.layer.activation", "only swiglu_clamped has a limit"},
      {"model.layer.window", any_layer(m, has_window), "model.layers",
       "call some layers `window` in model.layers, or remove the window"},
      {"model.position.window_theta", any_layer(m, has_window), "model.layers", "no layer has a window"},
      {"model.position.scaling.factor", scaling != RopeScaling::none, kScaling, "name the rule of scaling"},
      {"model.position.scaling.original_max_seq_len", llama3 || yarn, kScaling,
       "it belongs to scaling by \"llama3\" or \"yarn\""},
      {"model.position.scaling.low_freq_factor", llama3, kScaling, kLlama3},
      {"model.position.scaling.high_freq_factor", llama3, kScaling, kLlama3},
      {"model.position.scaling.beta_fast", yarn, kScaling, kYarn},
      {"model.position.scaling.beta_slow", yarn, kScaling, kYarn},
      {"model.position.scaling.attention_factor", yarn, kScaling, kYarn},
      {"model.position.scaling.mscale", yarn, kScaling, kYarn},
      {"model.position.scaling.mscale_all_dim", yarn, kScaling, kYarn},
      {"model.position.scaling.truncate", yarn, kScaling, kYarn},
      {"model.init.cut", m.init.type == InitKind::truncated_normal, "model.init.type",
       "only truncated_normal is cut"},
      {"model.mup.base_head_dim", m.mup.base_hidden_size > 0, "model.mup.base_hidden_size",
       "give model.mup.base_hidden_size, too"},
      {"eval.tasks_every_steps", !r.job.eval.tasks.empty(), "eval.tasks", "give eval.tasks, too"},
      {"optimizer.lr_scale.head", !m.tie_embeddings, "model.tie_embeddings", kTied},
      {"optimizer.weight_decay_scale.head", !m.tie_embeddings, "model.tie_embeddings", kTied}};
  if (m.layer.norm_bias && m.layer.norm == LayerNormKind::rmsnorm && r.sound({"model.layer.norm", "model.layer.norm_bias"}))
    r.report("E0224", "`model.layer.norm_bias` has no effect here", {"model.layer.norm_bias", "model.layer.norm"},
             {"rmsnorm has no bias"});
  const JobSpec preset{.model = with_family_defaults(m)};
  for (const Idle& idle : fields) {
    const Field& field = *find_field(idle.path);
    const Setting unused = field.by_family ? field.get(preset) : *field.fallback;
    if (idle.used || !r.sound({idle.path, idle.other}) || field.get(r.job) == unused) continue;
    if (!r.given_by_user(idle.path)) {   // the preset's; what the user gave makes it idle
      field.set(r.job, unused);
      continue;
    }
    r.report("E0224", fmt::format("`{}` has no effect here", idle.path), {idle.path, idle.other},
             {idle.help});
  }
}

void check_groups(Resolution& r) {
  const MoeSpec& moe = r.job.model.moe;
  const char *groups = "model.moe.groups", *kept = "model.moe.top_groups", *experts = "model.moe.num_experts";
  if (!r.sound({groups, kept, experts, "model.moe.top_k"})) return;
  if (moe.num_experts % moe.groups != 0)
    return r.report("E0255", "groups of experts must be equally large", {groups, experts},
                    {use_one_of(common_divisors({moe.num_experts}))},
                    fmt::format("{} is not a multiple of {}", moe.num_experts, moe.groups));
  const int64_t size = moe.num_experts / moe.groups;
  if (moe.top_groups > moe.groups)
    r.report("E0255",
             fmt::format("a token cannot have experts in {} of {} groups", moe.top_groups, moe.groups),
             {kept, groups}, {fmt::format("use at most {}", moe.groups)});
  else if (moe.top_k <= moe.num_experts && moe.top_k > size * moe.top_groups)
    r.report("E0255",
             fmt::format("a token has {} experts, and {} of {} groups have only {}", moe.top_k,
                         moe.top_groups, moe.groups, size * moe.top_groups),
             {kept, groups, "model.moe.top_k"},
             {fmt::format("use a top_groups of at least {}", (moe.top_k + size - 1) / size)});
}

/// Whether margins can be counted: each lies between two bounds and has a bin, and an expert may stay out.
void check_quantile(Resolution& r) {
  MoeSpec& moe = r.job.model.moe;
  const char *rate = "model.moe.bias_update_rate", *update = "model.moe.bias_update",
             *router = "model.moe.router", *groups = "model.moe.groups", *top_k = "model.moe.top_k",
             *experts = "model.moe.num_experts";
  if (moe.bias_update_rate > 0 && r.given_by_user(rate))
    r.report("E0224", fmt::format("`{}` has no effect here", rate), {rate, update},
             {"remove it: a quantile has no rate"});
  moe.bias_update_rate = 0;  // a preset's
  if (r.sound({router}) && moe.router == RouterKind::sqrt_softplus)
    r.report("E0259", "scores of sqrt_softplus have no largest value", {router, update},
             {"use a router of sigmoid or softmax"});
  if (r.sound({groups}) && moe.groups > 1)
    r.report("E0259", "experts in groups have no quantile of their own", {groups, update},
             {"use 1 group, or a bias_update of sign"});
  if (r.sound({top_k, experts}) && moe.top_k == moe.num_experts)
    r.report("E0224", fmt::format("`{}` has no effect here", update), {update, top_k},
             {"each token goes to all experts"});
  if (r.sound({"batch.global_sequences", "data.seq_len"}) && r.job.tokens_per_step() >= int64_t{1} << 31)
    r.report("E0259", "a step has 2^31 tokens or more, which cannot be counted in 32 bits",
             {"batch.global_sequences", "data.seq_len", update}, {"use a smaller batch"});
}

/// Counts of tokens are sums in f32, which are exact as far as 2^24.
void check_counts(Resolution& r) {
  const char* bias = "model.moe.selection_bias";
  if (r.sound("parallelism.reduction_dtype") && r.job.parallelism.reduction_dtype != DType::f32)
    r.report("E0256", "biases of experts follow from counts, which bf16 would round",
             {"parallelism.reduction_dtype", bias}, {"use a reduction_dtype of f32"});
  if (!r.sound({"batch.global_sequences", "data.seq_len", "model.moe.top_k", "model.moe.num_experts"}))
    return;
  if (r.job.model.moe.mean_count(r.job.tokens_per_step()) >= double(1 << 24))
    r.report("E0256", "an expert has 2^24 tokens of a step or more, which cannot be counted in f32",
             {"batch.global_sequences", "data.seq_len", bias}, {"use a smaller batch"});
}

void check_balance(Resolution& r) {
  MoeSpec& moe = r.job.model.moe;
  const char *rate = "model.moe.bias_update_rate", *bias = "model.moe.selection_bias",
             *update = "model.moe.bias_update";
  if (!r.sound({rate, bias, update})) return;
  const bool by_quantile = moe.bias_update == BiasUpdate::quantile;
  if ((by_quantile || moe.bias_update_rate > 0) && !moe.selection_bias) {
    const char* field = by_quantile ? update : rate;
    if (r.given_by_user(bias))
      r.report("E0224", fmt::format("`{}` has no effect here", field), {field, bias},
               {"remove one of them: a bias that is not there does not change"});
    moe.selection_bias = true;
  }
  if (by_quantile)
    check_quantile(r);
  else if (moe.selection_bias)
    check_counts(r);
}

/// Whether a capacity drops something, and not nearly all: at least a row of a source is an expert's by the
/// factor alone.
void check_capacity(Resolution& r) {
  const MoeSpec& moe = r.job.model.moe;
  const char *factor = "model.moe.capacity_factor", *policy = "model.moe.drop_policy";
  if (!r.sound({factor, policy})) return;
  if (moe.capacity_factor == 0) {
    if (moe.drop_policy != DropPolicy::weight)
      r.report("E0224", fmt::format("`{}` has no effect here", policy), {policy, factor},
               {"give model.moe.capacity_factor, too"});
    return;
  }
  if (!r.sound({"model.moe.num_experts", "model.moe.top_k", "batch.micro_sequences", "data.seq_len",
                "parallelism.context_blocks"}) ||
      moe.top_k > moe.num_experts)
    return;
  const int64_t tokens = r.job.batch.micro_sequences * r.job.data.seq_len /
                         std::max<int64_t>(1, r.job.parallelism.context_blocks) /
                         std::max(1, r.job.parallelism.token_parts());
  const double rows = moe.capacity_factor * moe.mean_count(tokens);
  if (rows >= double(tokens))
    r.report("E0224", fmt::format("`{}` has no effect here", factor), {factor, "model.moe.top_k"},
             {fmt::format("an expert would take {:.0f} of {} tokens: use less than {:.4g}, or 0", rows,
                          tokens, double(moe.num_experts) / double(moe.top_k))});
  if (rows < 1)
    r.report("E0258", fmt::format("experts would take {:.2g} of {} tokens each", rows, tokens),
             {factor, "model.moe.num_experts"},
             {fmt::format("use at least {:.4g}", 1 / moe.mean_count(tokens))});
}

/// Tensor ranks have parts of an expert that need not be equally wide, and equal ones of a shared expert.
void check_cuts_of_experts(Resolution& r) {
  const MoeSpec& moe = r.job.model.moe;
  const ParallelSpec& p = r.job.parallelism;
  const char *width = "model.moe.expert_ffn_size", *shared = "model.moe.shared_ffn_size";
  if (!r.sound({"parallelism.tensor", "parallelism.expert_tensor"})) return;
  if (r.sound(width) && moe.expert_ffn_size < p.ranks_of_expert())
    r.report("E0252", "an expert has fewer columns than tensor ranks that share them",
             {"parallelism.tensor", width}, {fmt::format("use a tensor of at most {}", moe.expert_ffn_size)},
             fmt::format("{} on {}", count_of(moe.expert_ffn_size, "column"), count_of(p.tensor, "rank")));
  const bool needs_equal = r.sound("optimizer.moments") && r.job.optimizer.moments == kernels::Moments::int8;
  if (r.sound(width) && needs_equal && moe.expert_ffn_size % p.tensor != 0)
    r.report("E0252", "with moments in 8 bits tensor parallel size must divide the width of an expert",
             {"parallelism.tensor", width, "optimizer.moments"},
             {use_one_of(common_divisors({moe.expert_ffn_size})), "or moments in bf16"},
             fmt::format("{} is not a multiple of {}", moe.expert_ffn_size, p.tensor));
  if (r.sound(shared) && moe.shared_ffn_size % p.tensor != 0)
    r.report("E0252", "tensor parallel size must divide the width of the shared expert",
             {"parallelism.tensor", shared}, {use_one_of(common_divisors({moe.shared_ffn_size}))},
             fmt::format("{} is not a multiple of {}", moe.shared_ffn_size, p.tensor));
}

void check_experts(Resolution& r) {
  const ModelSpec& m = r.job.model;
  const char *experts = "model.moe.num_experts", *width = "model.moe.expert_ffn_size",
             *top_k = "model.moe.top_k";
  if (!r.sound(experts)) return;
  if (m.moe.num_experts == 0) {
    for (const Field& field : fields())
      if (field.path.starts_with("model.moe.") && field.path != experts && r.given_by_user(field.path) &&
          r.sound(field.path) && field.get(r.job) != field.fallback)
        r.report("E0224", fmt::format("`{}` has no effect here", field.path), {field.path, experts},
                 {"give model.moe.num_experts, too"});
    return;
  }
  if (r.sound(width) && m.moe.expert_ffn_size == 0) {
    r.report("E0250", fmt::format("{} experts have no width", m.moe.num_experts), {width, experts},
             {"set model.moe.expert_ffn_size"});
    r.spoil(width);
  }
  if (r.sound(top_k) && m.moe.top_k > m.moe.num_experts)
    r.report("E0251", fmt::format("a token cannot go to {} of {} experts", m.moe.top_k, m.moe.num_experts),
             {top_k, experts}, {fmt::format("use a top_k of at most {}", m.moe.num_experts)});
  bool any = false;
  for (int64_t layer = 0; layer < m.num_layers && !any; ++layer) any = m.has_experts(layer);
  if (!any && r.sound({"model.num_layers", "model.moe.first_dense_layers", "model.moe.layer_step"}))
    r.report("E0253", "no layer has experts",
             {"model.moe.first_dense_layers", "model.moe.layer_step", "model.num_layers"},
             {m.moe.layer_step > m.num_layers
                  ? fmt::format("use a layer_step of at most {}", m.num_layers)
                  : fmt::format("there are {} layers: use a first_dense_layers of at most {}", m.num_layers,
                                m.num_layers / m.moe.layer_step * m.moe.layer_step - 1)});
  const char *shared = "model.moe.shared_ffn_size", *gate = "model.moe.shared_gate";
  if (m.layer.mlp_bias && m.moe.shared_ffn_size > 0 && r.sound({"model.layer.mlp_bias", shared}))
    r.report("E0254", "a shared expert has no biases", {"model.layer.mlp_bias", shared},
             {"set model.layer.mlp_bias to false"});
  if (m.moe.shared_gate && m.moe.shared_ffn_size == 0 && r.sound({shared, gate}))
    r.report("E0224", fmt::format("`{}` has no effect here", gate), {gate, shared},
             {"give model.moe.shared_ffn_size, too"});
  check_cuts_of_experts(r);
  check_groups(r);
  check_balance(r);
  check_capacity(r);
}

void check_pattern(Resolution& r) {
  const ModelSpec& m = r.job.model;
  const auto length = int64_t(m.layers.size());
  if (!r.sound({"model.layers", "model.num_layers", "model.layer.window", "model.position.type"})) return;
  if (length > 0 && m.num_layers % length != 0)
    r.report("E0225", fmt::format("a pattern of {} kinds does not fill {} layers", length, m.num_layers),
             {"model.layers", "model.num_layers"},
             {fmt::format("a pattern's length must divide the number of layers: {}, or list all {}",
                          use_one_of(common_divisors({m.num_layers})), m.num_layers)});
  else if (any_layer(m, has_window) && m.layer.window == 0)
    r.report("E0226", "layers are called `window`, and there is no window",
             {"model.layers", "model.layer.window"},
             {"set model.layer.window to the tokens that a query sees, itself among them"});
  if (!m.is_rotary() && any_layer(m, [](LayerKind k) { return !has_positions(k); }))
    r.report("E0226", "layers without rotary positions need others that have them",
             {"model.layers", "model.position.type"}, {"call them `full` and `window`"});
}

void check_positions(Resolution& r) {
  const ModelSpec& m = r.job.model;
  if (!r.sound("model.position.type")) return;
  if (!m.is_rotary()) {
    const JobSpec preset{.model = with_family_defaults(m)};
    for (const Field& field : fields())
      if (field.where_learned == WhereLearned::nothing && r.given_by_user(field.path) &&
          r.sound(field.path) && !(field.by_family && field.get(r.job) == field.get(preset)))
        r.report("E0210", fmt::format("`{}` does not fit positions that are not rotary", field.path),
                 {field.path, "model.position.type"},
                 {fmt::format("positions are \"{}\" here; remove the field", word_of(m.position.type))});
    return;
  }
  if (!m.is_latent() &&
      r.sound({"model.hidden_size", "model.num_heads", "model.head_dim", "model.position.rotary_fraction"}) &&
      (m.rotary_channels() % 2 != 0 || m.rotary_channels() == 0))
    r.report(
        "E0222",
        fmt::format("rotary positions need an even number of channels in a head, not {}",
                    m.rotary_channels()),
        {"model.num_heads", "model.hidden_size", "model.head_dim", "model.position.rotary_fraction"},
        {"choose model.head_dim, or num_heads and hidden_size, so that head_dim * rotary_fraction is even"});
  const RopeScalingSpec& s = m.position.scaling;
  if (s.type == RopeScaling::llama3 && !(s.low_freq_factor < s.high_freq_factor))
    r.report("E0227", "low_freq_factor must be below high_freq_factor",
             {"model.position.scaling.low_freq_factor", "model.position.scaling.high_freq_factor"},
             {"Llama 3.1 has 1 and 4"});
  if (s.type == RopeScaling::yarn && !(s.beta_slow <= s.beta_fast && s.beta_slow > 0))
    r.report("E0227", "beta_slow must be above 0 and at most beta_fast",
             {"model.position.scaling.beta_slow", "model.position.scaling.beta_fast"}, {"YaRN has 1 and 32"});
}

void check_parametrisation(Resolution& r) {
  const ModelSpec& m = r.job.model;
  const char *kBase = "model.mup.base_hidden_size", *kScale = "model.layer.score_scale";
  if (r.sound({"model.init.zero_output", "model.tie_embeddings"}) && m.tie_embeddings &&
      m.init.begins_as_zeros(ZeroOutput::head))
    r.report("E0240", "a head that is the embedding cannot begin as zeros",
             {"model.init.zero_output", "model.tie_embeddings"},
             {"remove \"head\", or set model.tie_embeddings to false"});
  if (!r.sound(kBase)) return;
  if (m.mup.base_hidden_size == 0) {
    if (r.given_by_user(kBase))
      r.report("E0243", "muP needs the width of a base model", {kBase},
               {"give the width at which the learning rate was tuned, or remove model.mup"});
    return;
  }
  if (r.sound(kScale) && m.layer.score_scale > 0)
    r.report("E0241", "muP gives attention scores their scale", {kScale, kBase},
             {"set model.layer.score_scale to 0", "or remove model.mup"});
  if (r.sound("model.init.from") && !m.init.from.empty())
    r.report("E0242", "weights that are given were not trained with muP", {"model.init.from", kBase},
             {"remove model.mup", "or begin with random weights"});
  if (r.sound("model.moe.num_experts") && m.moe.num_experts > 0)
    r.report("E0244", "muP is not known for experts", {kBase, "model.moe.num_experts"}, {"remove model.mup"});
}

}  // namespace

void check_heads(Resolution& r) {
  const ModelSpec& m = r.job.model;
  const bool heads = r.sound({"model.hidden_size", "model.num_heads"});
  if (heads && !m.is_latent() && !r.given("model.head_dim") && m.hidden_size % m.num_heads != 0) {
    r.report("E0220", "the number of heads must divide the hidden size",
             {"model.num_heads", "model.hidden_size"},
             {use_one_of(common_divisors({m.hidden_size})) + ", or give model.head_dim"},
             fmt::format("{} is not a multiple of {}", m.hidden_size, m.num_heads));
    r.spoil("model.head_dim");
  }
  if (r.sound({"model.num_heads", "model.num_kv_heads"}) && m.num_heads % m.num_kv_heads != 0)
    r.report("E0221", "the number of KV heads must divide the number of heads",
             {"model.num_kv_heads", "model.num_heads"}, {use_one_of(common_divisors({m.num_heads}))},
             fmt::format("{} is not a multiple of {}", m.num_heads, m.num_kv_heads));
}

void check_layer(Resolution& r) {
  if (!r.sound("model.family")) return;
  check_idle(r);
  check_pattern(r);
  check_experts(r);
  check_latent(r);
  check_mtp(r);
  check_positions(r);
  check_parametrisation(r);
}

}  // namespace trainctl::spec
