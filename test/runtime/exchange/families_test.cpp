// Goal: a folder of each family that transformers wrote is imported and exported again: the same bytes under the
// same names, and a config.json that describes the same model; a described model that no class of transformers
// computes is not exported, and the field is named.
// Method: the tiny models of test/golden/blocks, in both forms of config.json; described models one by one.
#include <catch2/catch.hpp>

#include <cmath>
#include <filesystem>

#include "ckpt/checkpoint.h"
#include "ckpt/safetensors.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/exchange/export.h"
#include "runtime/exchange/import.h"
#include "runtime/exchange/model_config.h"
#include "runtime/spec/fields/fields.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;

namespace {

namespace fs = std::filesystem;
const fs::path kBlockFolders = fs::path(TRAINCTL_SOURCE_DIR) / "test/golden/blocks";

/// A folder as the Hub has it.
fs::path hub_folder_of(const TemporaryFolder& dir, const std::string& name, const char* config) {
  const fs::path hub = fs::path(dir.path()) / name / config;
  fs::create_directories(hub);
  fs::copy_file(kBlockFolders / name / "weights.safetensors", hub / "model.safetensors");
  fs::copy_file(kBlockFolders / name / config, hub / "config.json");
  return hub;
}

Json config_in(const fs::path& folder) {
  return parse_json(real_file_system().read_text((folder / "config.json").string()));
}

void check_same_tensors(const fs::path& a, const fs::path& b) {
  FileSystem& files = real_file_system();
  const auto left = ckpt::TensorFolder::open(files, a.string()), right = ckpt::TensorFolder::open(files, b.string());
  REQUIRE(left->names() == right->names());
  for (const std::string& name : left->names()) {
    INFO(name);
    CHECK(left->shape(name) == right->shape(name));
    CHECK(left->read_f32(name) == right->read_f32(name));
  }
}

ModelSpec small_model(Family family, int64_t layers) {
  return {.family = family,
          .hidden_size = 32,
          .num_layers = layers,
          .num_heads = 4,
          .num_kv_heads = 2,
          .ffn_size = 64,
          .vocab_size = 64,
          .max_seq_len = 32};
}

}  // namespace

TEST_CASE("every family comes back from an import and an export as it was") {
  const TemporaryFolder dir;
  size_t folders = 0;
  for (const auto& entry : fs::directory_iterator(kBlockFolders))
    for (const char* config : {"config.json", "config_v4.json"}) {
      const std::string name = entry.path().filename();
      if (!fs::exists(entry.path() / config)) continue;
      CAPTURE(name, config);
      const fs::path hub = hub_folder_of(dir, name, config);
      const std::string at = (fs::path(dir.path()) / (name + config)).string();
      import_folder(real_file_system(), {.from = hub.string(), .out = at + ".ckpt"});
      export_checkpoint(real_file_system(), {.checkpoint = at + ".ckpt", .out = at + ".out", .dtype = DType::f32});
      check_same_tensors(hub, at + ".out");
      const ModelSpec before = read_model_config(config_in(hub), "before").model;
      CHECK(spec::model_values(read_model_config(config_in(at + ".out"), "after").model) == spec::model_values(before));
      ++folders;
    }
  CHECK(folders == 35);
}

TEST_CASE("modules of multi-token prediction come with a folder that has them, and copies are equal") {
  const TemporaryFolder dir;
  FileSystem& files = real_file_system();
  const fs::path hub = hub_folder_of(dir, "deepseek_v3_mtp", "config.json");
  const ImportReport with = import_folder(files, {.from = hub.string(), .out = dir / "with"});
  CHECK((with.model.mtp.num_layers == 2 && with.left_out.empty()));
  // As transformers save it: the config has the number, the folder no such layer.
  const fs::path without = hub_folder_of(dir, "deepseek_v3", "config.json");
  Json config = config_in(without);
  config["num_nextn_predict_layers"] = 1;
  fs::remove(without / "config.json");
  files.write_new_text((without / "config.json").string(), dump_json(config));
  const ImportReport plain = import_folder(files, {.from = without.string(), .out = dir / "without"});
  CHECK((plain.model.mtp.num_layers == 0 && plain.left_out.empty()));
  CHECK_THAT(plain.text(), Contains("num_nextn_predict_layers is 1, and the folder has no such layers"));
}

TEST_CASE("an import says that a selection bias stays as it is") {
  for (const auto& [name, says] :
       {std::pair("deepseek_v3", true), {"glm4_moe", true}, {"qwen3_moe", false}}) {
    const std::vector<std::string> notes = read_model_config(config_in(kBlockFolders / name), "f").notes;
    CHECK(std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
            return note.find("bias_update_rate is 0") != std::string::npos;
          }) == says);
  }
}

TEST_CASE("an export in bf16 keeps in f32 what transformers route with in f32") {
  const TemporaryFolder dir;
  FileSystem& files = real_file_system();
  size_t kept = 0;
  for (const char* name : {"deepseek_v3", "glm4_moe", "qwen3_moe"}) {
    CAPTURE(name);
    const fs::path hub = hub_folder_of(dir, name, "config.json");
    const std::string at = dir / (name + std::string(".ckpt"));
    import_folder(files, {.from = hub.string(), .out = at});
    const ExportReport report =
        export_checkpoint(files, {.checkpoint = at, .out = at + ".out", .check_tokens = 4});
    CHECK((report.forward && report.forward->largest == 0));
    const auto before = ckpt::TensorFolder::open(files, hub.string()),
               after = ckpt::TensorFolder::open(files, at + ".out");
    for (const std::string& tensor : after->names()) {
      INFO(tensor);
      std::vector<float> expected = before->read_f32(tensor);
      const bool routes = tensor.ends_with("mlp.gate.weight") || tensor.ends_with("e_score_correction_bias");
      if (routes && std::string_view(name) != "qwen3_moe")
        ++kept;
      else
        for (float& value : expected) value = float(bf16(value));
      CHECK(after->read_f32(tensor) == expected);
    }
  }
  CHECK(kept >= 4);
}

TEST_CASE("a file has a place for modules of multi-token prediction or the export leaves them out") {
  ModelSpec model = small_model(Family::glm4_moe, 2);
  model = with_family_defaults(model);
  model.mtp.num_layers = 1;
  const ParamTable table = parameter_table(model, {});
  std::vector<std::string> names;
  const std::vector<ExportFile> files = export_files(table, DType::bf16, 1 << 30);
  REQUIRE(files.size() == 1);
  for (const ExportTensor& tensor : files.front().tensors)
    if (tensor.stored.name.starts_with("model.layers.2.")) names.push_back(tensor.stored.name.substr(15));
  for (const char* name : {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight",
                           "embed_tokens.weight", "shared_head.head.weight", "self_attn.q_proj.weight"})
    CHECK(std::count(names.begin(), names.end(), name) == 1);
  CHECK(module_copies(table).size() == 2);
}

TEST_CASE("what is said in another way, or by default, is exported") {
  const auto exported = [](Family family, void (*describe)(ModelSpec&)) {
    ModelSpec model = small_model(family, 4);
    model = with_family_defaults(model);
    describe(model);
    return parse_json(model_config_json(model, DType::f32, {}));
  };
  const Json yarn = exported(Family::llama, [](ModelSpec& m) {
    m.position.scaling = {.type = RopeScaling::yarn, .factor = 4};
  });
  CHECK(yarn["rope_scaling"]["original_max_position_embeddings"] == 8);
  const Json gemma = exported(Family::gemma2, [](ModelSpec& m) {
    m.layer.window = 8;
    m.layers = {LayerKind::window, LayerKind::full, LayerKind::window, LayerKind::full};
  });
  CHECK(gemma["query_pre_attn_scalar"].is_number_integer());  // transformers 5 take no other
  CHECK((gemma.contains("pad_token_id") && gemma["pad_token_id"].is_null()));
  exported(Family::qwen3, [](ModelSpec& m) { m.layers = {LayerKind::full}; });
  exported(Family::llama, [](ModelSpec& m) { m.layer.score_scale = 1 / std::sqrt(8.0); });
  CHECK_THROWS_WITH(exported(Family::gemma2, [](ModelSpec& m) { m.layer.score_scale = 0.3; }),
                    Contains("no place for `model.layer.score_scale`"));
  CHECK_THROWS_WITH(exported(Family::olmo3,
                             [](ModelSpec& m) {
                               m.layer.window = 8;
                               m.layers = {LayerKind::window, LayerKind::full};
                               m.position.window_theta = m.position.theta;
                               m.position.scaling = {.type = RopeScaling::yarn, .factor = 4, .truncate = false};
                             }),
                    Contains("no place for `model.position"));
}

TEST_CASE("a file that transformers would compute otherwise is refused") {
  const auto refusal = [](const std::string& name, const std::string& change) -> std::string {
    Json config = config_in(kBlockFolders / name);
    config.merge_patch(parse_json(change));
    try {
      read_model_config(config, "f");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal("gemma2", R"({"sliding_window_size": 4096, "hidden_act": "gelu"})") == "");
  CHECK_THAT(refusal("olmo3", R"({"rope_parameters": {"full_attention": {"truncate": false}}})"), Contains("truncate"));
  CHECK_THAT(refusal("olmo3", R"({"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}})"),
             Contains("windowed layers"));
  CHECK_THAT(refusal("olmo3", R"({"rope_parameters": {"full_attention": null, "sliding_attention": null,
                                                      "rope_type": "linear", "factor": 2.0}})"),
             Contains("full_attention and sliding_attention apart"));
  CHECK_THAT(refusal("gemma3_text", R"({"attn_logit_softcapping": 50.0})"), Contains("attn_logit_softcapping"));
  CHECK_THAT(refusal("smollm3", R"({"use_sliding_window": true, "sliding_window": 8, "layer_types": null})"),
             Contains("no layer_types"));
}

TEST_CASE("a file of DeepSeek-V3's form that is not computed as transformers do is refused") {
  const auto refusal = [](const std::string& change) -> std::string {
    Json config = config_in(kBlockFolders / "deepseek_v3");
    config.merge_patch(parse_json(change));
    try {
      read_model_config(config, "f");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal(R"({"model_type": "kimi_k2", "auto_map": {"AutoConfig": "a.B"}, "ep_size": 1})") == "");
  CHECK(refusal(R"({"q_lora_rank": null, "rope_interleave": false})") == "");
  CHECK_THAT(refusal(R"({"v_head_dim": 12})"), Contains("v_head_dim is 12"));
  CHECK_THAT(refusal(R"({"num_key_value_heads": 2})"), Contains("num_key_value_heads is 2"));
  CHECK_THAT(refusal(R"({"attention_bias": true})"), Contains("attention_bias is true"));
  CHECK_THAT(refusal(R"({"n_group": null})"), Contains("it has no n_group"));
  CHECK_THAT(refusal(R"({"scoring_func": "softmax"})"), Contains("scoring_func"));
  CHECK_THAT(refusal(R"({"quantization_config": {"fmt": "e4m3"}})"), Contains("quantization_config"));
}

TEST_CASE("a described model that transformers have no class for is not exported") {
  ModelSpec llama = small_model(Family::llama, 4);
  llama = with_family_defaults(llama);
  REQUIRE_FALSE(model_config_json(llama, DType::f32, {}).empty());
  const std::vector<std::string> exported = {"head_dim",
                                             "all biases",
                                             "geglu",
                                             "geglu_erf",
                                             "linear scaling",
                                             "scaling of Llama 3",
                                             "two modules of multi-token prediction"};
  for (const DescribedModel& model : described_models()) {
    CAPTURE(model.name);
    ModelSpec described = llama;
    model.describe(described);
    std::string refusal;
    try {
      model_config_json(described, DType::f32, {});
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kData);
      refusal = error.what();
    }
    if (std::find(exported.begin(), exported.end(), model.name) != exported.end())
      CHECK(refusal == "");
    else
      CHECK_THAT(refusal, Contains("LlamaForCausalLM has no place for `model."));
  }
  llama.init.type = InitKind::truncated_normal;
  CHECK_NOTHROW(model_config_json(llama, DType::f32, {}));
  llama.mup.base_hidden_size = 32;
  CHECK_NOTHROW(model_config_json(llama, DType::f32, {}));
  llama.mup.base_hidden_size = 16;
  CHECK_THROWS_WITH(model_config_json(llama, DType::f32, {}), Contains("`model.mup.base_hidden_size`"));
}
