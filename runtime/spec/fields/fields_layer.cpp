// Part of the field table: the description of a layer, of positions and of a model's ends.
#include "runtime/spec/fields/field_builder.h"

namespace trainctl::spec {
namespace {

void declare_norms(DeclareSection& layer) {
  layer.choice("norm", words_of<LayerNormKind>(), "Normalisation.")
      .to(IN_JOB(model.layer.norm))
      .by_family("gpt2: layernorm; else rmsnorm")
      .also({"normalization", "norm_type"});
  layer
      .choice("norm_place", words_of<NormPlace>(),
              "Where a sublayer f has its norms. `pre`: x + f(norm(x)). `post`: x + norm(f(x)). `sandwich`: "
              "x + norm(f(norm(x))).")
      .to(IN_JOB(model.layer.norm_place))
      .by_family("olmo2, olmo3: post; gemma2, gemma3: sandwich; else pre");
  layer
      .choice("norm_weight", words_of<NormWeight>(),
              "What norms multiply by: their weight (`plain`), or 1 + their weight (`one_plus`), also the "
              "last norm "
              "and those of `qk_norm`.")
      .to(IN_JOB(model.layer.norm_weight))
      .by_family("gemma2, gemma3: one_plus; else plain");
  layer.boolean("norm_bias", "Norms add a bias; LayerNorm only.")
      .to(IN_JOB(model.layer.norm_bias))
      .by_family("gpt2: true; else false");
}

void declare_attention(DeclareSection& layer) {
  layer.boolean("qkv_bias", "Queries, keys and values have biases.")
      .to(IN_JOB(model.layer.qkv_bias))
      .by_family("gpt2, qwen2, qwen2_moe, glm4_moe, gpt_oss: true; else false")
      .also({"attention_bias", "add_qkv_bias"});
  layer.boolean("out_bias", "The product behind attention has a bias.")
      .to(IN_JOB(model.layer.out_bias))
      .by_family("gpt2, gpt_oss: true; else false");
  layer
      .choice("qk_norm", words_of<QkNorm>(),
              "RMSNorm of queries and keys before they are turned: of each head (`head`, one weight for all "
              "heads), or "
              "of all heads as one row (`projection`).")
      .to(IN_JOB(model.layer.qk_norm))
      .by_family("qwen3, qwen3_moe, gemma3: head; olmo2, olmo3: projection; else none")
      .also({"use_qk_norm", "qk_layernorm"});
  layer
      .integer("window",
               "Sliding window of the layers that `model.layers` calls `window`: a query sees itself and the "
               "window - 1 tokens before it. 0: no layer has one.")
      .to(IN_JOB(model.layer.window))
      .on_change(Change::branch)
      .by_family("0")
      .from(0)
      .upto(1 << 24)
      .unit(Unit::tokens)
      .also({"sliding_window", "attention_window"})
      .example("4096");
  for (const kernels::HeadScalarRow& row : kernels::kHeadScalars)
    layer.boolean(std::string(row.word), std::string(row.meaning))
        .to([scalar = row.scalar](JobSpec & job) -> auto& { return job.model.layer.scalars[scalar]; })
        .by_family(std::string(row.by_family));
  layer
      .boolean("output_gate",
               "Attention's output is multiplied by the sigmoid of another product of its input.")
      .to(IN_JOB(model.layer.output_gate))
      .by_family("false");
  layer.number("score_cap", "An attention score s becomes cap * tanh(s / cap). 0: it stays.")
      .to(IN_JOB(model.layer.score_cap))
      .on_change(Change::branch)
      .by_family("0")
      .from(0)
      .also({"attn_logit_softcapping"})
      .example("50.0");
  layer.number("score_scale", "Factor of the product of a query and a key. 0: 1 / sqrt(head_dim).")
      .to(IN_JOB(model.layer.score_scale))
      .on_change(Change::branch)
      .by_family("0")
      .from(0)
      .also({"attention_multiplier"})
      .example("0.0625");
}

/// "`gelu` (by tanh), `gelu_erf`"
std::string activations_text(bool gated) {
  std::string text;
  for (const kernels::FfnActivationRow& row : kernels::kFfnActivations) {
    if (row.is_gated() != gated) continue;
    text += fmt::format("{}`{}`", text.empty() ? "" : ", ", row.word);
    if (!row.meaning.empty()) text += fmt::format(" ({})", row.meaning);
  }
  return text;
}

void declare_ffn(DeclareSection& layer) {
  layer
      .choice("activation", words_of<FfnActivation>(),
              fmt::format("Of the feed-forward part. {}; gated, with a gate of the same width: {}.",
                          activations_text(false), activations_text(true)))
      .to(IN_JOB(model.layer.activation))
      .by_family("gpt2: gelu; gemma2, gemma3: geglu; gpt_oss: swiglu_clamped; else swiglu")
      .also({"hidden_act", "hidden_activation", "activation_function"});
  layer.number("activation_limit", "Where `swiglu_clamped` clamps.")
      .to(IN_JOB(model.layer.activation_limit))
      .on_change(Change::branch)
      .by_family("7")
      .above(0)
      .also({"swiglu_limit"});
  layer.boolean("mlp_bias", "The products of the feed-forward part, or of its experts, have biases.")
      .to(IN_JOB(model.layer.mlp_bias))
      .by_family("gpt2, gpt_oss: true; else false");
}

void declare_expert_sizes(DeclareSection& moe) {
  moe.integer("num_experts",
              "Experts of a layer, which parallelism.expert ranks share. 0: the layers are dense.")
      .to(IN_JOB(model.moe.num_experts))
      .from(0)
      .upto(4096)
      .fallback(int64_t{0})
      .left_out_as_default()
      .also({"num_local_experts", "n_routed_experts", "experts"})
      .example("64");
  moe.integer(
         "top_k",
         "Experts of each token: those with the largest scores, of equal ones the first. None is dropped, "
         "unless there is a capacity_factor.")
      .to(IN_JOB(model.moe.top_k))
      .from(1)
      .upto(4096)
      .fallback(int64_t{2})
      .left_out_as_default()
      .also({"num_experts_per_tok", "moe_router_topk"})
      .example("8");
  moe.integer("expert_ffn_size", "Width of one expert; required with experts.")
      .to(IN_JOB(model.moe.expert_ffn_size))
      .from(0)
      .upto(1 << 22)
      .fallback(int64_t{0})
      .left_out_as_default()
      .also({"moe_intermediate_size", "moe_ffn_hidden_size"})
      .example("768");
  moe.integer("first_dense_layers", "So many of the first layers have no experts.")
      .to(IN_JOB(model.moe.first_dense_layers))
      .from(0)
      .upto(10000)
      .fallback(int64_t{0})
      .left_out_as_default()
      .also({"first_k_dense_replace"});
  moe.integer("layer_step", "Of the layers, counted from 1, each so many-th has experts.")
      .to(IN_JOB(model.moe.layer_step))
      .from(1)
      .upto(10000)
      .fallback(int64_t{1})
      .left_out_as_default()
      .also({"decoder_sparse_step"});
}

void declare_router(DeclareSection& moe) {
  moe.choice(
         "router", words_of<RouterKind>(),
         "Scores of experts, in float32: `softmax` over all experts, a `sigmoid` of each (DeepSeek-V3), or "
         "`sqrt_softplus`, sqrt(log(1 + e^x)) of each (DeepSeek-V4).")
      .to(IN_JOB(model.moe.router))
      .fallback(std::string("softmax"))
      .left_out_as_default()
      .also({"scoring_func"});
  moe.boolean("renormalize",
              "The weights of a token's experts are their scores over the sum of those scores.")
      .to(IN_JOB(model.moe.renormalize))
      .fallback(true)
      .left_out_as_default()
      .also({"norm_topk_prob"});
  moe.number("routed_scale", "Factor of the weights of a token's experts.")
      .to(IN_JOB(model.moe.routed_scale))
      .above(0)
      .fallback(1.0)
      .left_out_as_default()
      .also({"routed_scaling_factor"});
  moe.number(
         "aux_loss_coefficient",
         "How much the loss of unevenly used experts counts in training, of each token and layer: E / (k "
         "T^2) * sum over experts of a sequence's tokens that have it * the sum of its scores there. It is "
         "of each sequence, so that no mesh changes it, and of all tokens, while the loss is divided by the "
         "targets that count. Where sequences are cut it is of each chunk of a sequence that a rank may have "
         "by itself (parallelism.context_blocks; `plan` says how long they are). What a capacity drops "
         "counts, too. Layers add up, as in Megatron-LM; transformers take their mean and do not "
         "divide by k: their router_aux_loss_coef is this times layers / k. The reported loss is without "
         "it.")
      .to(IN_JOB(model.moe.aux_loss_coefficient))
      .on_change(Change::branch)
      .from(0)
      .upto(100)
      .fallback(0.01)
      .left_out_as_default()
      .also({"router_aux_loss_coef", "aux_loss_alpha", "moe_aux_loss_coeff"})
      .example("0.001");
  moe.number("z_loss_coefficient",
             "Adds this * lse^2 of a router's scores to the loss of each token in training, so that they "
             "stay small.")
      .to(IN_JOB(model.moe.z_loss_coefficient))
      .on_change(Change::branch)
      .from(0)
      .upto(1)
      .fallback(0.0)
      .left_out_as_default()
      .also({"router_z_loss_coef", "moe_z_loss_coeff"})
      .example("1e-3");
}

void declare_choice(DeclareSection& moe) {
  moe.boolean(
         "selection_bias",
         "A bias of each expert is added to its score for the choice of a token's experts, and not to "
         "their weights (DeepSeek-V3, GLM-4.5). True where bias_update_rate is above 0, or bias_update is "
         "`quantile`.")
      .to(IN_JOB(model.moe.selection_bias))
      .fallback(false)
      .left_out_as_default()
      .also({"moe_router_enable_expert_bias"});
  moe.choice(
         "bias_update", words_of<BiasUpdate>(),
         "How a step changes the selection bias: `sign` by bias_update_rate, or `quantile` (quantile "
         "balancing, Kimi K3), which has no rate: the bias becomes what would have given each expert its "
         "share of the step's tokens, by a histogram of 1,000 bins for each expert, less the mean of all. "
         "Histograms are integers, summed over all ranks at the end of the step, so that no mesh changes "
         "them. For softmax and sigmoid scores without groups; usually with an aux_loss_coefficient of 0.")
      .to(IN_JOB(model.moe.bias_update))
      .on_change(Change::branch)
      .fallback(std::string("sign"))
      .left_out_as_default()
      .also({"moe_router_load_balancing_type"});
  moe.number("bias_update_rate",
             "Balances experts without a loss: after each step the bias of an expert that got fewer tokens "
             "of the whole batch than the mean grows by this, of one that got more it shrinks by this. "
             "Usually with an aux_loss_coefficient of 0 or little. 0: biases stay.")
      .to(IN_JOB(model.moe.bias_update_rate))
      .on_change(Change::branch)
      .from(0)
      .upto(1)
      .fallback(0.0)
      .left_out_as_default()
      .also({"moe_router_bias_update_rate", "bias_update_speed", "gamma"})
      .example("0.001");
  moe.integer("groups",
              "Experts are in so many groups of neighbours, of which a token meets the top_groups with the "
              "largest sums of their two largest (biased) scores. 1: none.")
      .to(IN_JOB(model.moe.groups))
      .from(1)
      .upto(64)
      .fallback(int64_t{1})
      .left_out_as_default()
      .also({"n_group", "num_expert_groups", "moe_router_num_groups"})
      .example("8");
  moe.integer("top_groups", "Groups in which a token has its experts.")
      .to(IN_JOB(model.moe.top_groups))
      .from(1)
      .upto(64)
      .fallback(int64_t{1})
      .left_out_as_default()
      .also({"topk_group", "moe_router_group_topk"})
      .example("4");
}

void declare_beside_experts(DeclareSection& moe) {
  moe.integer(
         "shared_ffn_size",
         "Width of an expert that every token meets beside its own, as of one feed-forward part. 0: none.")
      .to(IN_JOB(model.moe.shared_ffn_size))
      .from(0)
      .upto(1 << 22)
      .fallback(int64_t{0})
      .left_out_as_default()
      .also({"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "n_shared_experts"})
      .example("5632");
  moe.boolean(
         "shared_gate",
         "The shared expert's output is multiplied by the sigmoid of a number of each token, a product of "
         "its own (Qwen2-MoE).")
      .to(IN_JOB(model.moe.shared_gate))
      .fallback(false)
      .left_out_as_default()
      .also({"moe_shared_expert_gate"});
  moe.boolean("router_bias",
              "The product whose outputs are experts' scores has a bias, which is trained (gpt-oss).")
      .to(IN_JOB(model.moe.router_bias))
      .fallback(false)
      .left_out_as_default();
}

void declare_capacity(DeclareSection& moe) {
  moe.number(
         "capacity_factor",
         "An expert takes at most this times the mean of all experts, rounded up, of the tokens of a "
         "micro-batch (where sequences are cut, of each of parallelism.context_blocks); so "
         "batch.micro_sequences has a part in what is dropped. To a token that is over the expert adds "
         "nothing, and the weights of its other experts stay as they are. Memory is planned for so many "
         "rows. The losses of balance and bias_update_rate follow from what the router chose, with what "
         "is dropped. Evaluations drop, too, over this times the mean of each sequence by itself, so that "
         "those of a run score as `trainctl eval` (where sequences are cut, of each of their chunks: "
         "`trainctl eval` does not cut). 0: nothing is dropped.")
      .to(IN_JOB(model.moe.capacity_factor))
      .on_change(Change::branch)
      .from(0)
      .upto(4096)
      .fallback(0.0)
      .left_out_as_default()
      .also({"moe_expert_capacity_factor", "expert_capacity_factor"})
      .example("1.25");
  moe.choice("drop_policy", words_of<DropPolicy>(),
             "Which tokens an expert takes of more than it can: those to which it counts most (`weight`, of "
             "equal ones the first, as Megatron-LM's `probs`), or the first ones (`position`).")
      .to(IN_JOB(model.moe.drop_policy))
      .on_change(Change::branch)
      .fallback(std::string("weight"))
      .left_out_as_default()
      .also({"moe_token_drop_policy"});
  moe.integer(
         "latent_size",
         "Experts work in this width: one product that all share brings tokens there before they are "
         "sent to experts, another brings the sum of their experts back (Nemotron 3). The router and the "
         "shared expert work in hidden_size. 0: so do experts.")
      .to(IN_JOB(model.moe.latent_size))
      .from(0)
      .upto(1 << 20)
      .fallback(int64_t{0})
      .left_out_as_default()
      .also({"moe_latent_size"})
      .example("1024");
}

void declare_experts(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection moe(
      table, sections, "model.moe",
      "Mixture of experts: in place of the feed-forward part, a router sends each token to a few "
      "of many.",
      Change::never);
  declare_expert_sizes(moe);
  declare_router(moe);
  declare_choice(moe);
  declare_beside_experts(moe);
  declare_capacity(moe);
}

void declare_positions(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection position(table, sections, "model.position", "Positional encoding.", Change::branch);
  position
      .choice("type", words_of<PositionKind>(),
              "Kind of positions: learned vectors added to the embedding, rotary ones that turn queries and "
              "keys, or "
              "none.")
      .to(IN_JOB(model.position.type))
      .on_change(Change::never)
      .by_family("gpt2: learned; else rope");
  const auto rotary = [&](Declare field) { return field.where_learned(WhereLearned::nothing); };
  rotary(position.number("theta", "Base of the rotary frequencies."))
      .to(IN_JOB(model.position.theta))
      .above(0)
      .fallback(10000.0)
      .also({"rope_theta"})
      .example("500000.0");
  rotary(position.number(
             "window_theta",
             "Base of the rotary frequencies of windowed layers, which then turn without `scaling`. 0: "
             "they turn as the others do."))
      .to(IN_JOB(model.position.window_theta))
      .by_family("0")
      .from(0)
      .also({"rope_local_base_freq"})
      .example("10000.0");
  rotary(position.number("rotary_fraction", "Share of a head's channels that turn: the first ones."))
      .to(IN_JOB(model.position.rotary_fraction))
      .by_family("1")
      .above(0)
      .upto(1)
      .also({"partial_rotary_factor", "rotary_pct"});
  rotary(position.boolean("interleaved", "Channels 2i and 2i + 1 turn together, in place of i and i + half."))
      .to(IN_JOB(model.position.interleaved))
      .by_family("deepseek_v3: true; else false")
      .also({"rope_interleaved", "rope_interleave"});
}

void declare_scaling(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection scaling(table, sections, "model.position.scaling",
                         "How rotary positions reach beyond the lengths that a model was first trained with.",
                         Change::branch);
  scaling.choice("type", words_of<RopeScaling>(), "Rule: of position interpolation, of Llama 3.1, or YaRN.")
      .to(IN_JOB(model.position.scaling.type))
      .where_learned(WhereLearned::nothing)
      .by_family("none")
      .also({"rope_type"});
  struct Number {
    const char *name, *text, *fallback;
    double RopeScalingSpec::*member;
    double least;
  };
  const Number numbers[] = {
      {"factor", "How many times longer sequences get.", "1", &RopeScalingSpec::factor, 1},
      {"low_freq_factor",
       "`llama3`: slower channels than this many turns in the original length are stretched.", "1",
       &RopeScalingSpec::low_freq_factor, 0},
      {"high_freq_factor", "`llama3`: faster channels than this many turns stay as they are.", "4",
       &RopeScalingSpec::high_freq_factor, 0},
      {"beta_fast", "`yarn`: faster channels than this many turns in the original length stay as they are.",
       "32", &RopeScalingSpec::beta_fast, 0},
      {"beta_slow", "`yarn`: slower channels than this many turns are stretched.", "1",
       &RopeScalingSpec::beta_slow, 0},
      {"attention_factor",
       "`yarn`: factor of cosines and sines. 0: g(mscale) / g(mscale_all_dim) with both given, else g(1); "
       "g(s) = 0.1 s ln(factor) + 1.",
       "0", &RopeScalingSpec::attention_factor, 0},
      {"mscale", "`yarn`: see attention_factor.", "0", &RopeScalingSpec::mscale, 0},
      {"mscale_all_dim",
       "`yarn`: see attention_factor; in latent attention scores are also multiplied by g(mscale_all_dim)^2.",
       "0", &RopeScalingSpec::mscale_all_dim, 0}};
  for (const Number& n : numbers)
    scaling.number(n.name, n.text)
        .to([member = n.member](JobSpec & job) -> auto& { return job.model.position.scaling.*member; })
        .where_learned(WhereLearned::nothing)
        .by_family(n.fallback)
        .from(n.least);
  scaling
      .integer("original_max_seq_len",
               "The length that the model was first trained with. 0: max_seq_len / factor.")
      .to(IN_JOB(model.position.scaling.original_max_seq_len))
      .where_learned(WhereLearned::nothing)
      .by_family("0")
      .from(0)
      .upto(1 << 24)
      .unit(Unit::tokens)
      .also({"original_max_position_embeddings"});
  scaling.boolean("truncate", "`yarn`: its ramp begins and ends at whole channels.")
      .to(IN_JOB(model.position.scaling.truncate))
      .where_learned(WhereLearned::nothing)
      .by_family("true");
}

void declare_ends(std::vector<Field>& table, std::vector<Section>& sections) {
  DeclareSection model(table, sections, "model", "", Change::branch);
  model
      .field(Type::text_list, "layers",
             "Kinds of the layers, a pattern that is repeated: `full` attention or in a `window`; "
             "`full_nope` and "
             "`window_nope` without rotary positions. Its length must divide `model.num_layers`.",
             words_of<LayerKind>())
      .to(IN_JOB(model.layers))
      .by_family("all `window` if model.layer.window is given, else all `full`")
      .also({"layer_types", "layer_pattern"})
      .example(R"(["window", "window", "window", "full"])");
  model.number("embedding_scale", "Factor of the token embedding where the stream begins.")
      .to(IN_JOB(model.embedding_scale))
      .by_family("gemma2, gemma3: sqrt(hidden_size); else 1")
      .above(0)
      .also({"embedding_multiplier"});
  model.number("logit_scale", "Factor of the logits.").to(IN_JOB(model.logit_scale)).by_family("1").above(0);
  model.number("logit_cap", "A logit l becomes cap * tanh(l / cap). 0: it stays.")
      .to(IN_JOB(model.logit_cap))
      .by_family("0")
      .from(0)
      .also({"final_logit_softcapping"})
      .example("30.0");
  model
      .number("z_loss",
              "Adds z_loss * lse^2 to the loss of each token in training, lse the log of its sum of "
              "exponentials, so "
              "that logits stay small. 0: off.")
      .to(IN_JOB(model.z_loss))
      .by_family("0")
      .from(0)
      .upto(1)
      .also({"z_loss_coefficient", "softmax_auxiliary_loss"})
      .example("1e-4");
}

}  // namespace

void declare_layer(std::vector<Field>& table, std::vector<Section>& sections) {
  {
    DeclareSection layer(
        table, sections, "model.layer",
        "What a layer computes. Each field replaces the family's, so that a new combination needs no "
        "new program.",
        Change::never);
    declare_norms(layer);
    declare_attention(layer);
    declare_ffn(layer);
  }
  declare_experts(table, sections);
  declare_latent(table, sections);
  declare_mtp(table, sections);
  declare_ends(table, sections);
  declare_positions(table, sections);
  declare_scaling(table, sections);
}

}  // namespace trainctl::spec
