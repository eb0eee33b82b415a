#include "runtime/exchange/model_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/model/hugging_face.h"

namespace trainctl {
namespace {

struct SizeRow {
  const char* key;
  int64_t ModelSpec::*member;
};
/// `absent`: the value where a file does not have the key.
struct NumberRow {
  const char* key;
  double ModelSpec::*member;
  double absent;
};
/// A key of which trainctl computes one value only, and the others that mean the same.
struct FixedRow {
  const char* key;
  const char* value;  ///< JSON
  std::vector<const char*> also = {};
};

struct ConfigTable {
  std::vector<SizeRow> sizes;
  std::vector<NumberRow> numbers;
  std::vector<FixedRow> fixed;
  std::vector<const char*> dropouts;  ///< written as 0; trainctl has none
  const char* ffn_key;
  bool ffn_may_be_null;  ///< then it is 4 * hidden_size
  bool tied;             ///< tie_word_embeddings where a file does not have the key
};

// In the order of Family. Source: GPT2Config and LlamaConfig of transformers 4 and 5.
const ConfigTable& table_of(Family family) {
  static const ConfigTable kTables[] = {
      {.sizes = {{"vocab_size", &ModelSpec::vocab_size},
                 {"n_positions", &ModelSpec::max_seq_len},
                 {"n_embd", &ModelSpec::hidden_size},
                 {"n_layer", &ModelSpec::num_layers},
                 {"n_head", &ModelSpec::num_heads}},
       .numbers = {{"layer_norm_epsilon", &ModelSpec::norm_eps, 1e-5},
                   {"initializer_range", &ModelSpec::init_std, 0.02}},
       .fixed = {{"activation_function", "\"gelu_new\"", {"\"gelu_pytorch_tanh\""}},
                 {"scale_attn_weights", "true"},
                 {"scale_attn_by_inverse_layer_idx", "false"},
                 {"reorder_and_upcast_attn", "false"},
                 {"add_cross_attention", "false"}},
       .dropouts = {"attn_pdrop", "embd_pdrop", "resid_pdrop"},
       .ffn_key = "n_inner",
       .ffn_may_be_null = true,
       .tied = true},
      {.sizes = {{"vocab_size", &ModelSpec::vocab_size},
                 {"max_position_embeddings", &ModelSpec::max_seq_len},
                 {"hidden_size", &ModelSpec::hidden_size},
                 {"num_hidden_layers", &ModelSpec::num_layers},
                 {"num_attention_heads", &ModelSpec::num_heads}},
       .numbers = {{"rms_norm_eps", &ModelSpec::norm_eps, 1e-6},
                   {"initializer_range", &ModelSpec::init_std, 0.02}},
       .fixed = {{"hidden_act", "\"silu\"", {"\"swish\""}},
                 {"attention_bias", "false"},
                 {"mlp_bias", "false"}},
       .dropouts = {"attention_dropout"},
       .ffn_key = "intermediate_size",
       .ffn_may_be_null = false,
       .tied = false},
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
                                          "unsloth_version"};
// Read outside the tables.
constexpr std::string_view kOther[] = {"tie_word_embeddings", "num_key_value_heads", "head_dim",
                                       "rope_theta",          "rope_scaling",        "rope_parameters"};

bool is_nothing(const Json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

class Reader {
 public:
  Reader(const Json& config, const std::string& file) : config_(config), file_(file) {}

  ReadConfig read() {
    if (!config_.is_object() || !config_.contains("model_type"))
      refuse("it names no model_type, so it is no configuration of a model");
    model_.family = family();
    model_.preset = "";
    check_architecture();
    const ConfigTable& table = table_of(model_.family);
    for (const SizeRow& row : table.sizes) model_.*row.member = size(row.key, std::nullopt);
    for (const NumberRow& row : table.numbers) model_.*row.member = number(row.key, row.absent);
    for (const FixedRow& row : table.fixed) check_fixed(row);
    model_.ffn_size =
        size(table.ffn_key, table.ffn_may_be_null ? std::optional(4 * model_.hidden_size) : std::nullopt);
    model_.num_kv_heads = size("num_key_value_heads", model_.num_heads);
    model_.tie_embeddings = table.tied;
    if (const Json& tied = at("tie_word_embeddings"); tied.is_boolean())
      model_.tie_embeddings = tied.get<bool>();
    check_head_size();
    read_rope();
    for (const char* key : table.dropouts)
      if (const double dropout = number(key, 0); dropout != 0)
        notes_.push_back(fmt::format("{} is {}; trainctl trains without dropout", key, dropout));
    refuse_unknown(table);
    return {model_, notes_};
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorCode::kData, fmt::format("{} cannot be used: {}", file_,
                                              fmt::format(format, std::forward<Args>(args)...)));
  }

  const Json& at(const std::string& key) const {
    static const Json nothing;
    const auto found = config_.find(key);
    return found == config_.end() ? nothing : *found;
  }

  Family family() const {
    const Json& type = at("model_type");
    std::string known;
    for (size_t i = 0; i < std::size(kFamilies); ++i) {
      const std::string_view mine = hugging_face(Family(i)).model_type;
      if (type == std::string(mine)) return Family(i);
      known += fmt::format("{}{}", known.empty() ? "" : ", ", mine);
    }
    refuse("its model_type is {}; trainctl knows {}", dump_json(type), known);
  }

  void check_architecture() const {
    const Json& list = at("architectures");
    const std::string mine(hugging_face(model_.family).architecture);
    if (is_nothing(list)) return;
    if (!list.is_array() || std::find(list.begin(), list.end(), mine) == list.end())
      refuse("its architectures are {}; trainctl knows {}", dump_json(list), mine);
  }

  int64_t size(const std::string& key, std::optional<int64_t> absent) const {
    const Json& value = at(key);
    if (value.is_null() && absent) return *absent;
    if (value.is_null()) refuse("it has no {}", key);
    if (!value.is_number_integer() || value <= 0 || value > int64_t(1) << 40)
      refuse("{} is {}, not a whole number above 0", key, dump_json(value));
    return value.get<int64_t>();
  }

  double number(const std::string& key, double absent) const {
    const Json& value = at(key);
    if (value.is_null()) return absent;
    if (!value.is_number()) refuse("{} is {}, not a number", key, dump_json(value));
    return value.get<double>();
  }

  void check_fixed(const FixedRow& row) const {
    const Json& value = at(row.key);
    if (value.is_null() || value == parse_json(row.value)) return;
    for (const char* same : row.also)
      if (value == parse_json(same)) return;
    refuse("{} is {}; trainctl computes {} only", row.key, dump_json(value), row.value);
  }

  void check_head_size() const {
    const int64_t heads = model_.num_heads, hidden = model_.hidden_size;
    if (const int64_t size_given = size("head_dim", hidden / heads); size_given * heads != hidden)
      refuse("head_dim is {}; trainctl computes hidden_size / num_attention_heads = {} / {} only", size_given,
             hidden, heads);
  }

  /// One description of rotary positions: rope_parameters (version 5), or rope_scaling (version 4).
  void check_plain_rope(const char* key) {
    const Json& value = at(key);
    if (is_nothing(value)) return;
    if (!value.is_object()) refuse("{} is {}, not an object", key, dump_json(value));
    for (const auto& [name, part] : value.items()) {
      if (name == "rope_theta") continue;
      const bool is_type = name == "rope_type" || name == "type";
      if (is_type && part == "default") continue;
      if (name == "partial_rotary_factor" && part == 1.0) continue;
      if (is_nothing(part)) continue;
      refuse("{} has {} {}; trainctl computes plain rotary positions only", key, name, dump_json(part));
    }
  }

  void read_rope() {
    if (!kind_of(model_.family).rotary) return;
    check_plain_rope("rope_scaling");
    check_plain_rope("rope_parameters");
    model_.rope_theta = number("rope_theta", 10000.0);
    const Json& parameters = at("rope_parameters");
    if (!parameters.is_object() || !parameters.contains("rope_theta")) return;
    const Json& theta = parameters["rope_theta"];
    if (!theta.is_number()) refuse("rope_parameters.rope_theta is {}, not a number", dump_json(theta));
    if (!at("rope_theta").is_null() && model_.rope_theta != theta.get<double>())
      refuse("rope_theta is {} but rope_parameters.rope_theta is {}", model_.rope_theta, dump_json(theta));
    model_.rope_theta = theta.get<double>();
  }

  void refuse_unknown(const ConfigTable& table) const {
    const auto known = [&](const std::string& key) {
      const auto is_key = [&](const auto& row) { return key == row.key; };
      const auto in = [&](auto list) {
        return std::find(std::begin(list), std::end(list), key) != std::end(list);
      };
      return std::any_of(table.sizes.begin(), table.sizes.end(), is_key) ||
             std::any_of(table.numbers.begin(), table.numbers.end(), is_key) ||
             std::any_of(table.fixed.begin(), table.fixed.end(), is_key) || in(std::span(kHarmless)) ||
             in(std::span(kOther)) || key == table.ffn_key || in(std::span(table.dropouts));
    };
    for (const auto& [key, value] : config_.items())
      if (!key.starts_with("_") && !known(key) && !is_nothing(value))
        refuse(
            "trainctl does not know its key {} (it is {}); if it does not change what the model computes, "
            "remove it from a copy of the file",
            key, dump_json(value));
  }

  const Json& config_;
  const std::string& file_;
  ModelSpec model_;
  std::vector<std::string> notes_;
};

}  // namespace

std::string model_config_json(const ModelSpec& model, DType dtype, std::optional<int32_t> end_of_text) {
  const HuggingFaceFamily& family = hugging_face(model.family);
  const ConfigTable& table = table_of(model.family);
  OrderedJson config{{"architectures", {std::string(family.architecture)}},
                      {"model_type", std::string(family.model_type)}};
  for (const SizeRow& row : table.sizes) config[row.key] = model.*row.member;
  config[table.ffn_key] = model.ffn_size;
  for (const NumberRow& row : table.numbers) config[row.key] = model.*row.member;
  for (const FixedRow& row : table.fixed) config[row.key] = parse_ordered_json(row.value);
  for (const char* key : table.dropouts) config[key] = 0.0;
  if (kind_of(model.family).rotary) {
    config["num_key_value_heads"] = model.num_kv_heads;
    config["head_dim"] = model.head_dim();
    config["rope_theta"] = model.rope_theta;  // version 4
    config["rope_scaling"] = nullptr;
    config["rope_parameters"] = {{"rope_theta", model.rope_theta}, {"rope_type", "default"}};  // version 5
  }
  config["tie_word_embeddings"] = model.tie_embeddings;
  const OrderedJson id = end_of_text ? OrderedJson(*end_of_text) : OrderedJson();
  config["bos_token_id"] = id;
  config["eos_token_id"] = id;
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
  return Reader(config, file).read();
}

}  // namespace trainctl
