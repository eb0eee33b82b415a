#include "runtime/exchange/model_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/exchange/config_parts.h"
#include "runtime/model/hugging_face.h"
#include "runtime/spec/fields/fields.h"

namespace trainctl {
namespace {

/// A family's config.json. What all families of one form have comes first.
struct ConfigTable {
  std::vector<ConfigPart> parts;
  std::vector<const char*> dropouts;  ///< written as 0; trainctl has none
  bool tied;                          ///< tie_word_embeddings where a file does not have the key
};

/// What Llama's form has, with a family's own parts behind. has_kv_heads: the key must be there.
ConfigTable of_hub(std::vector<ConfigPart> own, double norm_eps, int64_t head_dim, bool tied,
                   bool has_kv_heads = true) {
  using namespace config_parts;
  ConfigTable table{
      {size("vocab_size", &ModelSpec::vocab_size), size("max_position_embeddings", &ModelSpec::max_seq_len),
       size("hidden_size", &ModelSpec::hidden_size), size("num_hidden_layers", &ModelSpec::num_layers),
       size("num_attention_heads", &ModelSpec::num_heads), ffn("intermediate_size", false),
       kv_heads(!has_kv_heads), config_parts::head_dim(head_dim),
       number("rms_norm_eps", &ModelSpec::norm_eps, norm_eps), initializer_range()},
      {"attention_dropout"},
      tied};
  for (ConfigPart& part : own) table.parts.push_back(std::move(part));
  return table;
}

/// The same without head_dim.
ConfigTable of_deepseek(std::vector<ConfigPart> own) {
  ConfigTable table = of_hub(std::move(own), 1e-6, 0, false, false);
  std::erase_if(table.parts,
                [](const ConfigPart& part) { return part.keys == std::vector<std::string>{"head_dim"}; });
  return table;
}

// In the order of Family. Source: GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config, Olmo2Config,
// Olmo3Config, Gemma2Config, Gemma3TextConfig, MistralConfig, SmolLM3Config, MixtralConfig, Qwen3MoeConfig,
// Qwen2MoeConfig, Glm4MoeConfig, GptOssConfig and DeepseekV3Config of transformers 4 and 5.
const ConfigTable& table_of(Family family) {
  using namespace config_parts;
  const auto silu = [] { return activation("hidden_act", true); };
  const auto gelu = [] { return activation("hidden_activation", true); };
  static const ConfigTable kTables[] = {
      {{size("vocab_size", &ModelSpec::vocab_size),
        size("n_positions", &ModelSpec::max_seq_len),
        size("n_embd", &ModelSpec::hidden_size),
        size("n_layer", &ModelSpec::num_layers),
        size("n_head", &ModelSpec::num_heads),
        // GPT-2 has no key for its heads of keys and values.
        {{},
         [](const ConfigReader&, ModelSpec& m) { m.num_kv_heads = m.num_heads; },
         [](const ModelSpec&, OrderedJson&) {}},
        ffn("n_inner", true),
        number("layer_norm_epsilon", &ModelSpec::norm_eps, 1e-5),
        initializer_range(),
        activation("activation_function", false),
        fixed("scale_attn_weights", "true"),
        fixed("scale_attn_by_inverse_layer_idx", "false"),
        fixed("reorder_and_upcast_attn", "false"),
        fixed("add_cross_attention", "false")},
       {"attn_pdrop", "embd_pdrop", "resid_pdrop"},
       true},
      of_hub({silu(), attention_bias(), mlp_bias(), rope({})}, 1e-6, 0, false, false),
      of_hub({silu(), windows({.by_use_key = true}), rope({})}, 1e-6, 0, false),
      of_hub({silu(), attention_bias(), windows({.by_use_key = true}), rope({})}, 1e-6, 128, false),
      of_hub({silu(), attention_bias(), rope({})}, 1e-5, 0, false, false),
      of_hub({silu(), attention_bias(), windows({.period = 4}),
              rope({.theta = 500000, .window_is_plain = true})},
             1e-5, 0, false, false),
      of_hub({gelu(), attention_bias(), fixed("use_bidirectional_attention", "false"), windows({.period = 2}),
              ignored("hidden_act"), ignored("sliding_window_size"), gemma(50, 30), rope({})},
             1e-6, 256, true),
      of_hub({gelu(), attention_bias(), fixed("use_bidirectional_attention", "false"),
              windows({.period = 6, .has_pattern_key = true}), ignored("hidden_act"), gemma(std::nullopt, 0),
              rope({.theta = 1e6, .window_theta = "rope_local_base_freq"})},
             1e-6, 256, true),
      of_hub({silu(), window_of_all(), rope({})}, 1e-6, 0, false),
      of_hub({silu(), attention_bias(), mlp_bias(), windows({}), nope_layers(), rope({.theta = 2e6})}, 1e-6,
             0, true),
      of_hub({silu(), window_of_all(), experts({}), rope({.theta = 1e6})}, 1e-5, 0, false),
      of_hub({silu(), attention_bias(), windows({.by_use_key = true}),
              experts({.own_width = true, .num_experts = 128, .top_k = 8}), rope({})},
             1e-6, 0, false),
      of_hub({silu(), fixed("qkv_bias", "true"), windows({.by_use_key = true, .needs_types = true}),
              experts({.own_width = true, .num_experts = 60, .top_k = 4}), shared_expert(), rope({})},
             1e-6, 0, false),
      of_hub({silu(), qkv_bias(), qk_norm(), biased_experts(), rope({.rotary_fraction = 0.5})}, 1e-5, 0,
             false),
      of_hub({fixed("hidden_act", "\"silu\""), fixed("attention_bias", "true"),
              fixed("swiglu_alpha", "1.702"), activation_limit(), windows({.period = 2, .absent = 128}),
              experts({.num_experts = 128, .top_k = 4}), router_bias(), ignored("experts_per_token"),
              ignored("initial_context_length"), rope({.theta = 150000, .must_be_said = true})},
             1e-5, 64, false),
      of_deepseek(
          {silu(), fixed("attention_bias", "false"), fixed("scoring_func", "\"sigmoid\""),
           fixed("topk_method", "\"noaux_tc\""), fixed("moe_layer_freq", "1"), latent_attention(),
           required({"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
                     "routed_scaling_factor", "n_group", "topk_group", "first_k_dense_replace"}),
           biased_experts(), ignored("aux_loss_alpha"), ignored("seq_aux"), ignored("ep_size"),
           ignored("auto_map"), rope({})}),
  };
  return kTables[size_t(family)];
}

// Keys that do not change what the model computes: how it is used, trained or was saved.
constexpr std::string_view kHarmless[] = {"model_type",
                                          "architectures",
                                          "transformers_version",
                                          "torch_dtype",
                                          "dtype",
                                          "use_cache",
                                          "bos_token_id",
                                          "eos_token_id",
                                          "pad_token_id",
                                          "sep_token_id",
                                          "decoder_start_token_id",
                                          "n_ctx",
                                          "pretraining_tp",
                                          "summary_activation",
                                          "summary_first_dropout",
                                          "summary_proj_to_labels",
                                          "summary_type",
                                          "summary_use_proj",
                                          "task_specific_params",
                                          "tokenizer_class",
                                          "return_dict",
                                          "id2label",
                                          "label2id",
                                          "max_length",
                                          "min_length",
                                          "do_sample",
                                          "early_stopping",
                                          "num_beams",
                                          "num_beam_groups",
                                          "diversity_penalty",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "typical_p",
                                          "repetition_penalty",
                                          "length_penalty",
                                          "no_repeat_ngram_size",
                                          "encoder_no_repeat_ngram_size",
                                          "num_return_sequences",
                                          "chunk_size_feed_forward",
                                          "problem_type",
                                          "finetuning_task",
                                          "gradient_checkpointing",
                                          "attn_implementation",
                                          "max_sequence_length",
                                          "n_special",
                                          "predict_special_tokens",
                                          "is_llama_config",
                                          "transformers.js_config",
                                          "cache_implementation",
                                          "unsloth_version"};
/// Reads a whole file.
class ModelReader {
 public:
  ModelReader(const Json& config, const std::string& file) : r_(config, file) {}

  ReadConfig read() {
    if (!r_.all().is_object() || !r_.has("model_type"))
      r_.refuse("it names no model_type, so it is no configuration of a model");
    ModelSpec model;
    model.family = family();
    check_architecture(model.family);
    const ConfigTable& table = table_of(model.family);
    model.tie_embeddings = r_.boolean(kTied, table.tied);
    for (const ConfigPart& part : table.parts) {
      part.read(r_, model);
      // The family's own description, once its widths are known.
      if (&part == &table.parts[kWidths]) model = with_family_defaults(model);
    }
    std::vector<std::string> notes;
    for (const char* key : table.dropouts)
      if (const double dropout = r_.number(key, 0); dropout != 0)
        notes.push_back(fmt::format("{} is {}; trainctl trains without dropout", key, dropout));
    refuse_unknown(table);
    if (model.moe.selection_bias && model.moe.bias_update_rate == 0)
      notes.push_back(
          "no file says how its selection bias was trained: it stays as it is, model.moe.bias_update_rate is "
          "0 "
          "(DeepSeek-V3: 0.001)");
    return {model, notes};
  }

 private:
  static constexpr const char* kTied = "tie_word_embeddings";
  /// The part of the heads: behind it hidden_size and num_heads are known.
  static constexpr size_t kWidths = 4;

  Family family() const {
    const Json& type = r_.at("model_type");
    std::string known;
    for (size_t i = 0; i < std::size(kFamilies); ++i) {
      const std::string_view mine = hugging_face(Family(i)).model_type;
      const std::string_view other = hugging_face(Family(i)).other_type;
      if (type == std::string(mine) || (!other.empty() && type == std::string(other))) return Family(i);
      known += fmt::format("{}{}", known.empty() ? "" : ", ", mine);
    }
    r_.refuse("its model_type is {}; trainctl knows {}", dump_json(type), known);
  }

  void check_architecture(Family family) const {
    const Json& list = r_.at("architectures");
    const std::string mine(hugging_face(family).architecture);
    if (is_nothing(list)) return;
    if (!list.is_array() || std::find(list.begin(), list.end(), mine) == list.end())
      r_.refuse("its architectures are {}; trainctl knows {}", dump_json(list), mine);
  }

  void refuse_unknown(const ConfigTable& table) const {
    const auto known = [&](const std::string& key) {
      const auto reads = [&](const ConfigPart& part) {
        return std::find(part.keys.begin(), part.keys.end(), key) != part.keys.end();
      };
      return std::any_of(table.parts.begin(), table.parts.end(), reads) || key == kTied ||
             std::find(table.dropouts.begin(), table.dropouts.end(), key) != table.dropouts.end() ||
             std::find(std::begin(kHarmless), std::end(kHarmless), key) != std::end(kHarmless);
    };
    if (!is_nothing(r_.at("quantization_config")))
      r_.refuse("its weights are quantised (quantization_config); trainctl reads copies in bf16 or f32");
    for (const auto& [key, value] : r_.all().items())
      if (!key.starts_with("_") && !known(key) && !is_nothing(value))
        r_.refuse(
            "trainctl does not know its key {} (it is {}); if it does not change what the model computes, "
            "remove it from a copy of the file",
            key, dump_json(value));
  }

  const ConfigReader r_;
};

/// The fields with different values, first those that `here` says.
std::vector<ModelDifference> differing_fields(const ModelSpec& here, const ModelSpec& there) {
  const std::string silent = "what its family says";
  using Values = std::vector<std::pair<std::string, std::string>>;
  const Values own = spec::model_values(here), other = spec::model_values(there);
  const auto value_in = [&](const Values& values, const std::string& field) {
    const auto found =
        std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == field; });
    return found == values.end() ? silent : found->second;
  };
  std::vector<ModelDifference> found;
  for (const auto& [field, value] : own)
    if (const std::string theirs = value_in(other, field); field != "model.z_loss" && theirs != value)
      found.push_back({field, value, theirs});
  for (const auto& [field, value] : other)
    if (value_in(own, field) == silent) found.push_back({field, silent, value});
  return found;
}

/// The first field whose value a file of this family cannot say; "" if there is none.
std::string unsaid_field(const ModelSpec& model, const OrderedJson& config) {
  ModelSpec read;
  try {
    read = read_model_config(parse_json(dump_json(config)), "config.json").model;
  } catch (const Error&) {
    return "model.position";  // the part whose values are refused when they are read, too
  }
  // How it began and what counts in training alone say nothing of what it computes.
  read.init = model.init;
  read.moe.z_loss_coefficient = model.moe.z_loss_coefficient;
  read.moe.aux_loss_coefficient = model.moe.aux_loss_coefficient;
  read.moe.bias_update = model.moe.bias_update;
  read.moe.bias_update_rate = model.moe.bias_update_rate;
  read.mtp = model.mtp;
  read.moe.capacity_factor = model.moe.capacity_factor;
  read.moe.drop_policy = model.moe.drop_policy;
  if (read.max_seq_len == model.max_seq_len && compute_the_same(model_plan(read), model_plan(model))) return "";
  const std::vector<ModelDifference> differences = differing_fields(model, read);
  return differences.empty() ? "model.layer" : differences.front().field;
}

}  // namespace

std::string model_config_json(const ModelSpec& model, DType dtype, std::optional<int32_t> end_of_text) {
  const HuggingFaceFamily& family = hugging_face(model.family);
  const ConfigTable& table = table_of(model.family);
  OrderedJson config{{"architectures", {std::string(family.architecture)}},
                      {"model_type", std::string(family.model_type)}};
  for (const ConfigPart& part : table.parts) part.write(model, config);
  for (const char* key : table.dropouts) config[key] = 0.0;
  config["tie_word_embeddings"] = model.tie_embeddings;
  if (const std::string field = unsaid_field(model, config); !field.empty())
    throw Error(
        ErrorCode::kData,
        fmt::format("{} has no place for `{}` of this model: Hugging Face's transformers have no such model, "
                    "so that nothing could load the folder",
                    family.architecture, field));
  const OrderedJson id = end_of_text ? OrderedJson(*end_of_text) : OrderedJson();
  config["bos_token_id"] = id;
  config["eos_token_id"] = id;
  config["pad_token_id"] = nullptr;  // its row of the embedding would get no gradient
  config["use_cache"] = true;
  config["torch_dtype"] = config["dtype"] = dtype == DType::bf16 ? "bfloat16" : "float32";
  return dump_json(config, 2) + "\n";
}

std::string generation_config_json(std::optional<int32_t> end_of_text) {
  OrderedJson config{{"_from_model_config", true}};
  if (end_of_text) {
    config["bos_token_id"] = *end_of_text;
    config["eos_token_id"] = *end_of_text;
  }
  return dump_json(config, 2) + "\n";
}

ReadConfig read_model_config(const Json& config, const std::string& file) {
  return ModelReader(config, file).read();
}

std::vector<ModelDifference> model_differences(const ModelSpec& here, ModelSpec there) {
  // These are of training alone.
  there.init = here.init;
  there.moe.z_loss_coefficient = here.moe.z_loss_coefficient;
  there.moe.aux_loss_coefficient = here.moe.aux_loss_coefficient;
  there.moe.bias_update = here.moe.bias_update;
  there.moe.bias_update_rate = here.moe.bias_update_rate;
  there.mtp = here.mtp;
  there.moe.capacity_factor = here.moe.capacity_factor;
  there.moe.drop_policy = here.moe.drop_policy;
  if (compute_the_same(model_plan(here), model_plan(there))) return {};
  std::vector<ModelDifference> found = differing_fields(here, there);
  std::erase_if(found, [](const ModelDifference& d) { return d.field == "model.max_seq_len"; });
  return found;
}

}  // namespace trainctl
