// Goal: a folder that is no model, or a model that trainctl does not compute, is refused in one sentence that
// names the part, and nothing is written.
// Method: one change at a time of a folder that is accepted, in a file system in memory.
#include <catch2/catch.hpp>

#include "data/bpe_trainer.h"
#include "data/tokenizer_json.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/exchange/export.h"
#include "runtime/exchange/import.h"
#include "runtime/exchange/model_config.h"
#include "runtime/exchange/tokenizer_files.h"
#include "test/runtime/exchange/hub_folder.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;

namespace {

/// The message with which the import of the folder is refused; "" if it is not. Nothing is left either way.
std::string refusal(PowerLossFileSystem& fs, bool takes_tokenizer = true) {
  const auto before = fs.files();
  try {
    import_folder(fs, {.from = "/hub", .out = "/c", .takes_tokenizer = takes_tokenizer});
  } catch (const Error& error) {
    CHECK(fs.files() == before);
    CHECK_FALSE(fs.exists("/c"));
    CHECK((error.code() == ErrorCode::kData || error.code() == ErrorCode::kCheckpoint));
    return error.what();
  }
  return "";
}

std::string refusal_of(const HubModel& model, size_t files = 1) {
  PowerLossFileSystem fs;
  write_hub_folder(fs, "/hub", model, DType::f32, files);
  return refusal(fs);
}

HubModel with_config(HubModel model, const std::string& change) {
  model.config.merge_patch(Json::parse(change));
  return model;
}

}  // namespace

TEST_CASE("a config.json that trainctl does not compute is refused by the name of the key") {
  const std::pair<const char*, const char*> changes_of_llama[] = {
      {R"({"model_type": "mamba"})", "its model_type is \"mamba\"; trainctl knows gpt2, llama, qwen2"},
      {R"({"model_type": null})", "names no model_type"},
      {R"({"architectures": ["LlamaForSequenceClassification"]})", "its architectures are"},
      {R"({"hidden_act": "relu"})",
       "hidden_act is \"relu\"; trainctl computes silu, gelu_pytorch_tanh and gelu"},
      {R"({"attention_bias": 1})", "attention_bias is 1, not true or false"},
      {R"({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}})",
       "rope_scaling.rope_type is \"longrope\"; trainctl computes default, linear, llama3 and yarn"},
      {R"({"rope_scaling": {"type": "linear"}})", "it has no rope_scaling.factor"},
      {R"({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 3}})",
       "rope_scaling.beta_fast is 3"},
      {R"({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "stretch": 0.7}})",
       "rope_parameters.stretch is 0.7; trainctl does not compute it"},
      {R"({"rope_parameters": {"partial_rotary_factor": 0.5}})", "partial_rotary_factor is 0.5"},
      {R"({"rope_theta": 7.0})", "rope_theta is 7 but rope_parameters.rope_theta is 5000.0"},
      {R"({"quantization_config": {"bits": 4}})", "its weights are quantised (quantization_config)"},
      {R"({"sliding_window": 128})", "trainctl does not know its key sliding_window (it is 128)"},
      {R"({"vocab_size": null})", "it has no vocab_size"},
      {R"({"hidden_size": "32"})", "hidden_size is \"32\", not a whole number"},
      {R"({"num_hidden_layers": -1})", "num_hidden_layers is -1"},
      {R"({"rms_norm_eps": "small"})", "rms_norm_eps is \"small\", not a number"},
      {R"({"num_attention_heads": 5, "head_dim": null})", "hidden_size / num_attention_heads is 32 / 5"},
      {R"({"num_key_value_heads": 3})", "that trainctl cannot train: the number of KV heads must divide"},
  };
  REQUIRE(refusal_of(llama_model(false)) == "");
  for (const auto& [change, message] : changes_of_llama) {
    INFO(change);
    CHECK_THAT(refusal_of(with_config(llama_model(false), change)),
               Contains("/hub/config.json") && Contains(message));
  }
  const std::pair<const char*, const char*> changes_of_gpt2[] = {
      {R"({"activation_function": "relu"})", "activation_function is \"relu\""},
      {R"({"scale_attn_by_inverse_layer_idx": true})", "scale_attn_by_inverse_layer_idx is true"},
      {R"({"scale_attn_weights": false})", "scale_attn_weights is false"},
      {R"({"add_cross_attention": true})", "add_cross_attention is true"},
      {R"({"n_embd": null})", "it has no n_embd"},
  };
  REQUIRE(refusal_of(gpt2_model(false)) == "");
  for (const auto& [change, message] : changes_of_gpt2) {
    INFO(change);
    CHECK_THAT(refusal_of(with_config(gpt2_model(false), change)),
               Contains("/hub/config.json") && Contains(message));
  }
}

TEST_CASE("either form of a configuration describes the same model, and what an export writes is read back") {
  const HubModel version5 = llama_model(true);
  HubModel version4 = version5;
  version4.config.erase("rope_parameters");
  version4.config.erase("head_dim");
  version4.config.merge_patch(
      Json::parse(R"({"rope_theta": 5000, "rope_scaling": null, "torch_dtype": "float16",
                                              "pretraining_tp": 1, "_name_or_path": "me/mine"})"));
  const ReadConfig a = read_model_config(version5.config, "f"), b = read_model_config(version4.config, "f");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::string text = model_config_json(a.model, dtype, 7);
    CHECK(model_config_json(b.model, dtype, 7) == text);
    CHECK(model_config_json(read_model_config(Json::parse(text), "f").model, dtype, 7) == text);
    const Json config = Json::parse(text);
    CHECK(config["rope_theta"].is_number_float());  // version 5 checks types
    CHECK(config["rope_theta"] == 5000.0);
    CHECK(config["rope_parameters"] == Json::parse(R"({"rope_theta": 5000.0, "rope_type": "default"})"));
    CHECK(config["torch_dtype"] == config["dtype"]);
    CHECK(config["dtype"] == (dtype == DType::f32 ? "float32" : "bfloat16"));
    CHECK(config["eos_token_id"] == 7);
    CHECK(config["tie_word_embeddings"] == true);
  }
  const ReadConfig gpt2 = read_model_config(gpt2_model(true).config, "f");
  CHECK(gpt2.model.ffn_size == 128);
  CHECK(gpt2.notes == std::vector<std::string>{"resid_pdrop is 0.1; trainctl trains without dropout"});
  CHECK(Json::parse(model_config_json(gpt2.model, DType::f32, {}))["eos_token_id"].is_null());
}

TEST_CASE("a configuration that promises other tensors than the folder holds is refused by their names") {
  const std::pair<const char*, const char*> changes[] = {
      {R"({"attention_bias": true})", "no tensor `model.layers.0.self_attn.q_proj.bias`"},
      {R"({"mlp_bias": true})", "no tensor `model.layers.0.mlp.gate_proj.bias`"},
      {R"({"head_dim": 16})", "`model.layers.0.self_attn.q_proj.weight` of /hub has shape [32, 32]"}};
  for (const auto& [change, message] : changes) {
    INFO(change);
    CHECK_THAT(refusal_of(with_config(llama_model(false), change)), Contains(message));
  }
}

TEST_CASE("a folder that is no model is refused") {
  PowerLossFileSystem fs;
  CHECK_THROWS_WITH(import_folder(fs, {.from = "/hub", .out = "/c"}), Contains("/hub is no folder"));
  fs.make_directory("/hub");
  CHECK_THAT(refusal(fs), Contains("/hub is no folder of a model: it has no config.json"));
  fs.write_new_text("/hub/config.json", "{");
  CHECK_THAT(refusal(fs), Contains("/hub/config.json is not JSON"));
  fs.replace_text("/hub/config.json", "[]");
  CHECK_THAT(refusal(fs), Contains("names no model_type"));
  fs.replace_text("/hub/config.json", llama_model(false).config.dump());
  CHECK_THAT(refusal(fs), Contains("/hub holds no *.safetensors file"));
}

TEST_CASE("missing files, missing tensors, unknown tensors and other shapes are refused by name") {
  PowerLossFileSystem fs;
  write_hub_folder(fs, "/hub", llama_model(false), DType::f32, 3);
  fs.remove_file("/hub/model-1.safetensors");
  CHECK_THAT(refusal(fs), Contains("names /hub/model-1.safetensors, which is missing"));

  HubModel model = gpt2_model(true);
  model.tensors.erase("transformer.h.1.mlp.c_fc.bias");
  CHECK_THAT(refusal_of(model), Contains("/hub has no tensor `transformer.h.1.mlp.c_fc.bias`"));
  model = llama_model(false);
  model.tensors.erase("lm_head.weight");
  CHECK_THAT(refusal_of(model), Contains("/hub has no tensor `lm_head.weight`"));
  model = llama_model(false);
  model.tensors["model.layers.0.self_attn.q_proj.bias"] = {{1}, {0}};
  model.tensors["model.layers.2.mlp.up_proj.weight"] = {{1}, {0}};
  CHECK_THAT(refusal_of(model), Contains("holds 2 tensors that trainctl does not know, the first is "
                                         "`model.layers.0.self_attn.q_proj.bias`"));
  model = llama_model(false);
  model.tensors["model.norm.weight"] = {{3}, {0, 0, 0}};
  CHECK_THAT(refusal_of(model),
             Contains("tensor `model.norm.weight` of /hub has shape [3], this model needs [32]"));
}

TEST_CASE("experts that are stored otherwise are refused by both names, with the shape that is needed") {
  HubModel model =
      with_config(llama_model(false), R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
      "num_local_experts": 2, "num_experts_per_tok": 1, "mlp_bias": null, "attention_bias": null})");
  for (int64_t layer = 0; layer < model.config["num_hidden_layers"].get<int64_t>(); ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    for (const char* part : {"gate", "up", "down"}) model.tensors.erase(at + "mlp." + part + "_proj.weight");
    model.tensors[at + "block_sparse_moe.gate.weight"] = {{2, 32}, std::vector<float>(64, 0.5f)};
    model.tensors[at + "mlp.experts.gate_up_proj"] = {{2, 96, 32}, std::vector<float>(2 * 96 * 32, 0.5f)};
  }
  CHECK_THAT(
      refusal_of(model),
      Contains("/hub has no tensor `model.layers.0.block_sparse_moe.experts.0.w1.weight` [48, 32], but "
               "`model.layers.0.mlp.experts.gate_up_proj` [2, 96, 32]"));
}

TEST_CASE("two names for one tensor are refused, unless the second is the tied head with the same numbers") {
  HubModel model = gpt2_model(true);
  model.tensors["h.0.ln_1.weight"] = model.tensors.at("transformer.h.0.ln_1.weight");
  CHECK_THAT(refusal_of(model), Contains("one tensor under two names, `transformer.h.0.ln_1.weight` and "
                                         "`h.0.ln_1.weight`"));
  for (const HubModel& tied : {gpt2_model(true), llama_model(true)}) {
    const std::string embedding =
        tied.config["model_type"] == "gpt2" ? "transformer.wte.weight" : "model.embed_tokens.weight";
    HubModel with_head = tied;
    HubTensor& head = with_head.tensors["lm_head.weight"] = tied.tensors.at(embedding);
    CHECK(refusal_of(with_head) == "");
    head.values.back() += 1;
    CHECK_THAT(refusal_of(with_head),
               Contains("`lm_head.weight` and `" + embedding + "`, two names for one tensor"));
  }
  PowerLossFileSystem fs;
  write_hub_folder(fs, "/hub", llama_model(false), DType::f32, 2);
  fs.remove_file("/hub/model.safetensors.index.json");
  fs.write_new_text("/hub/model-2.safetensors", fs.read_text("/hub/model-1.safetensors"));
  CHECK_THAT(refusal(fs),
             Contains("both /hub/model-1.safetensors and /hub/model-2.safetensors hold the tensor"));
}

TEST_CASE("weights that are not finite are refused, with their place") {
  for (const auto& [value, word] : {std::pair{NAN, "NaN"}, {INFINITY, "infinity"}, {-INFINITY, "infinity"}}) {
    HubModel model = llama_model(false);
    model.tensors["model.layers.1.mlp.up_proj.weight"].values[5] = value;
    CHECK_THAT(refusal_of(model), Contains("tensor `model.layers.1.mlp.up_proj.weight` holds") &&
                                      Contains(word) && Contains("at [0, 5]"));
  }
}

TEST_CASE("a written tokenizer that encodes otherwise is found") {
  PowerLossFileSystem fs;
  fs.make_directory("/t");
  const TokenizerFiles files = tokenizer_files(fs, data::TokenizerChoice::bytes(), 257, 16);
  fs.write_new_text("/t/tokenizer.json", files.texts.at(files.file));
  CHECK_NOTHROW(require_same_tokens(fs, data::TokenizerChoice::bytes(), "/t/tokenizer.json"));
  Json other = Json::parse(files.texts.at(files.file));
  std::swap(other["model"]["vocab"]["a"], other["model"]["vocab"]["e"]);
  fs.replace_text("/t/tokenizer.json", other.dump());
  CHECK_THROWS_WITH(require_same_tokens(fs, data::TokenizerChoice::bytes(), "/t/tokenizer.json"),
                    Contains("does not encode as tokenizer bytes: token 4 of a probe text is 97, not 101"));
}

TEST_CASE("the byte tokenizer goes both ways; one with an unknown part is refused by that part") {
  PowerLossFileSystem fs;
  HubModel model = llama_model(false);
  model.config["vocab_size"] = 257;
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
    model.tensors[name] = {{257, 32}, std::vector<float>(257 * 32, 0.5f)};
  write_hub_folder(fs, "/hub", model, DType::f32);
  const TokenizerFiles files = tokenizer_files(fs, data::TokenizerChoice::bytes(), 257, 16);
  CHECK(files.end_of_text == 256);
  const Json good = Json::parse(files.texts.at("tokenizer.json"));
  fs.write_new_text("/hub/tokenizer.json", good.dump());
  CHECK(tokenizer_in(fs, "/hub", 257).is_bytes());
  CHECK_THROWS_WITH(tokenizer_in(fs, "/hub", 256), Contains("has 257 ids but the model has 256"));
  import_folder(fs, {.from = "/hub", .out = "/ok"});
  const ExportReport report =
      export_checkpoint(fs, {.checkpoint = "/ok", .out = "/out"});  // the checkpoint knows it
  CHECK_THAT(report.tokenizer, Contains("bytes (there, text that spells <|endoftext|> becomes that token)"));
  CHECK(Json::parse(fs.read_text("/out/tokenizer.json")) == good);
  CHECK(Json::parse(fs.read_text("/out/config.json"))["eos_token_id"] == 256);
  CHECK(Json::parse(fs.read_text("/out/generation_config.json"))["eos_token_id"] == 256);

  const std::pair<const char*, const char*> changes[] = {
      {R"({"normalizer": {"type": "NFKC"}})", "trainctl does not know normalizer = {\"type\":\"NFKC\"}"},
      {R"({"pre_tokenizer": {"type": "Metaspace"}})", "trainctl does not know pre_tokenizer = {"},
      {R"({"model": {"type": "Unigram"}})", "trainctl does not know model.type = \"Unigram\""},
      {R"({"model": {"merges": ["a b"]}})", "model.merges[0] needs the token \"ab\""},
      {R"({"added_tokens": []})", "none of its added_tokens ends a document"},
  };
  for (const auto& [change, message] : changes) {
    INFO(change);
    Json changed = good;
    changed.merge_patch(Json::parse(change));
    fs.replace_text("/hub/tokenizer.json", changed.dump());
    CHECK_THAT(refusal(fs),
               Contains("/hub/tokenizer.json: ") && Contains(message) && Contains("--no-tokenizer"));
  }
  fs.replace_text("/hub/tokenizer.json", "[1]");
  CHECK_THAT(refusal(fs), Contains("/hub/tokenizer.json: the file is no tokenizer"));
  fs.remove_file("/hub/tokenizer.json");
  fs.write_new_text("/hub/vocab.json", "{}");
  CHECK_THAT(refusal(fs), Contains("does not know the tokenizer of /hub/vocab.json"));
  fs.write_new_text("/hub/tokenizer.model", "no model\n");
  CHECK_THAT(refusal(fs), Contains("/hub/tokenizer.model is no SentencePiece model"));
  fs.replace_text("/hub/tokenizer.model", "IQ== 0\n");
  CHECK_THAT(refusal(fs), Contains("/hub/tokenizer.model has no token for the byte 0x00"));
  CHECK(import_folder(fs, {.from = "/hub", .out = "/c", .takes_tokenizer = false}).tokenizer == "");
}

TEST_CASE("a byte-level BPE goes in and out of a folder byte for byte") {
  PowerLossFileSystem fs;
  HubModel model = llama_model(false);
  model.config["vocab_size"] = 300;
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
    model.tensors[name] = {{300, 32}, std::vector<float>(300 * 32, 0.5f)};
  write_hub_folder(fs, "/hub", model, DType::f32);
  const std::string text = "one two one two one two, and so on: one two three\n";
  bool given = false;
  const std::string file =
      data::train_bpe([&](std::string_view& next) { return given ? false : (next = text, given = true); },
                      270, 1) +
      " \n";
  fs.write_new_text("/hub/tokenizer.json", file);
  const int end = int(data::open_tokenizer_json(file, "t")->vocab_size()) - 1;
  const ImportReport imported = import_folder(fs, {.from = "/hub", .out = "/start"});
  CHECK(imported.tokenizer == "/hub/tokenizer.json");
  const ExportReport report = export_checkpoint(fs, {.checkpoint = "/start", .out = "/out"});
  CHECK(report.tokenizer == "byte-level BPE /hub/tokenizer.json");
  CHECK(fs.read_text("/out/tokenizer.json") == file);
  const Json config = Json::parse(fs.read_text("/out/tokenizer_config.json"));
  CHECK(config["tokenizer_class"] == "PreTrainedTokenizerFast");
  CHECK(config["eos_token"] == "<|endoftext|>");
  CHECK(Json::parse(fs.read_text("/out/config.json"))["eos_token_id"] == end);
  CHECK_THROWS_WITH(tokenizer_in(fs, "/hub", end), Contains("but the model has"));
  // The tokenizer.model of Llama 3 beside it is the same tokenizer; a SentencePiece model would be the one
  // in use.
  fs.write_new_text("/hub/tokenizer.model", "IQ== 0\n");
  CHECK(tokenizer_in(fs, "/hub", 300) == data::TokenizerChoice::file("/hub/tokenizer.json"));
  fs.replace_text("/hub/tokenizer.model", "no model");
  CHECK_THROWS_WITH(tokenizer_in(fs, "/hub", 300),
                    Contains("/hub/tokenizer.model is no SentencePiece model"));
}

TEST_CASE("a folder says whether its SentencePiece model puts a space before a text") {
  PowerLossFileSystem fs;
  const std::string text = "one two one two one two, and so on: one two three\n";
  bool given = false;
  const std::string lossless = data::train_sentencepiece(
      [&](std::string_view& next) { return given ? false : (next = text, given = true); }, 320);
  fs.write_new_text("/lossless", lossless);
  fs.write_new_text("/spaced",
                    lossless + "\x1a\x02\x18\x01");  // normalizer_spec.add_dummy_prefix of its message
  for (const auto& [file, adds_space] : {std::pair("/lossless", false), std::pair("/spaced", true)}) {
    const TokenizerFiles files = tokenizer_files(fs, data::TokenizerChoice::file(file), 320, 16);
    const Json config = Json::parse(files.texts.at("tokenizer_config.json"));
    CHECK(config["add_prefix_space"] == adds_space);
    CHECK(config["legacy"] == adds_space);
  }
}

TEST_CASE("a value of any type at any key is accepted or refused, and no other exception escapes") {
  const Json values =
      Json::parse(R"([null, true, false, 0, -1, 1e300, 18446744073709551615, "", "x", [], [[]], [1], {},
                                      {"a": 1}, {"type": 1}, {"rope_type": null, "rope_theta": "y"}])");
  size_t refused = 0, accepted = 0;
  const auto attempt = [&](const auto& work) {
    try {
      work();
      ++accepted;
    } catch (const Error& error) {
      ++refused;
      CHECK(error.code() == ErrorCode::kData);
    }
  };
  for (const HubModel& model : {gpt2_model(false), llama_model(true)})
    for (const auto& [key, before] : model.config.items())
      for (const Json& value : values) {
        INFO(key << " = " << value);
        Json config = model.config;
        config[key] = value;
        attempt([&] { read_model_config(config, "f"); });
      }
  PowerLossFileSystem fs;
  fs.make_directory("/hub");
  const std::string good =
      tokenizer_files(fs, data::TokenizerChoice::bytes(), 257, 16).texts.at("tokenizer.json");
  for (const char* at :
       {"/model", "/model/vocab", "/model/merges", "/model/type", "/added_tokens", "/added_tokens/0",
        "/added_tokens/0/id", "/pre_tokenizer", "/decoder", "/normalizer", "/post_processor", ""})
    for (const Json& value : values) {
      INFO(at << " = " << value);
      Json changed = Json::parse(good);
      changed.make_at(at) = value;
      fs.replace_text("/hub/tokenizer.json", changed.dump());
      attempt([&] { tokenizer_in(fs, "/hub", 257); });
    }
  CHECK(refused > 300);
  CHECK(accepted > 30);
}

TEST_CASE("a tokenizer with more ids than the model is not exported") {
  PowerLossFileSystem fs;
  write_hub_folder(fs, "/hub", llama_model(false), DType::f32);
  import_folder(fs, {.from = "/hub", .out = "/c"});
  CHECK_THROWS_WITH(
      export_checkpoint(fs, {.checkpoint = "/c", .out = "/out", .tokenizer = data::TokenizerChoice::bytes()}),
      Contains("tokenizer bytes has 257 ids but the model has 61"));
  CHECK_FALSE(fs.exists("/out"));
}
