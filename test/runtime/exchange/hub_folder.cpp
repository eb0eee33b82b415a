#include "test/runtime/exchange/hub_folder.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "runtime/base/json.h"

namespace trainctl::test {
namespace {

constexpr int64_t kVocabulary = 61, kPositions = 16, kHidden = 32, kLayers = 2, kHeads = 4;

class Weights {
 public:
  HubTensor random(std::vector<int64_t> shape) {
    HubTensor tensor{std::move(shape), {}};
    size_t count = 1;
    for (const int64_t n : tensor.shape) count *= size_t(n);
    for (size_t i = 0; i < count; ++i) tensor.values.push_back(normal_(engine_));
    return tensor;
  }

 private:
  std::mt19937 engine_{7};
  std::normal_distribution<float> normal_{0.0f, 0.3f};
};

uint64_t number_of(const std::string& bytes) {
  uint64_t n = 0;
  std::memcpy(&n, bytes.data(), sizeof n);
  return n;
}

void write_file(FileSystem& fs, const std::string& path, const std::vector<std::string>& names,
                const HubModel& model, DType dtype) {
  Json header{{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const std::string& name : names) {
    const HubTensor& tensor = model.tensors.at(name);
    const size_t begin = data.size();
    for (const float value : tensor.values) {
      const bf16 rounded(value);
      if (dtype == DType::f32) data.append(reinterpret_cast<const char*>(&value), 4);
      if (dtype == DType::bf16) data.append(reinterpret_cast<const char*>(&rounded), 2);
    }
    header[name] = {{"dtype", dtype == DType::f32 ? "F32" : "BF16"},
                    {"shape", tensor.shape},
                    {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  fs.write_new_text(path, std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
}

}  // namespace

HubModel gpt2_model(bool tied) {
  HubModel model;
  model.config = {{"architectures", {"GPT2LMHeadModel"}},
                  {"model_type", "gpt2"},
                  {"vocab_size", kVocabulary},
                  {"n_positions", kPositions},
                  {"n_embd", kHidden},
                  {"n_layer", kLayers},
                  {"n_head", kHeads},
                  {"n_inner", nullptr},
                  {"activation_function", "gelu_new"},
                  {"resid_pdrop", 0.1},
                  {"layer_norm_epsilon", 1e-5},
                  {"tie_word_embeddings", tied},
                  {"summary_type", "cls_index"},
                  {"bos_token_id", 50256},
                  {"use_cache", true}};
  Weights weights;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    model.tensors["transformer." + name] = weights.random(std::move(shape));
  };
  const auto with_bias = [&](const std::string& name, std::vector<int64_t> shape) {
    add(name + ".bias", {shape.back()});
    add(name + ".weight", std::move(shape));
  };
  const int64_t h = kHidden;
  add("wte.weight", {kVocabulary, h});
  add("wpe.weight", {kPositions, h});
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = "h." + std::to_string(i) + ".";
    with_bias(layer + "ln_1", {h});
    with_bias(layer + "attn.c_attn", {h, 3 * h});
    with_bias(layer + "attn.c_proj", {h, h});
    with_bias(layer + "ln_2", {h});
    with_bias(layer + "mlp.c_fc", {h, 4 * h});
    with_bias(layer + "mlp.c_proj", {4 * h, h});
  }
  with_bias("ln_f", {h});
  if (!tied) model.tensors["lm_head.weight"] = weights.random({kVocabulary, h});
  return model;
}

HubModel llama_model(bool tied) {
  HubModel model;
  constexpr int64_t kKvHeads = 2, kFfn = 48;
  model.config = {{"architectures", {"LlamaForCausalLM"}},
                  {"model_type", "llama"},
                  {"vocab_size", kVocabulary},
                  {"max_position_embeddings", kPositions},
                  {"hidden_size", kHidden},
                  {"intermediate_size", kFfn},
                  {"num_hidden_layers", kLayers},
                  {"num_attention_heads", kHeads},
                  {"num_key_value_heads", kKvHeads},
                  {"head_dim", kHidden / kHeads},
                  {"hidden_act", "silu"},
                  {"rms_norm_eps", 1e-5},
                  {"rope_parameters", {{"rope_theta", 5000.0}, {"rope_type", "default"}}},
                  {"attention_bias", false},
                  {"mlp_bias", false},
                  {"tie_word_embeddings", tied},
                  {"dtype", "float32"}};
  Weights weights;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    model.tensors[name] = weights.random(std::move(shape));
  };
  const int64_t h = kHidden, kv = h / kHeads * kKvHeads;
  add("model.embed_tokens.weight", {kVocabulary, h});
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {h});
    add(layer + "self_attn.q_proj.weight", {h, h});
    add(layer + "self_attn.k_proj.weight", {kv, h});
    add(layer + "self_attn.v_proj.weight", {kv, h});
    add(layer + "self_attn.o_proj.weight", {h, h});
    add(layer + "post_attention_layernorm.weight", {h});
    add(layer + "mlp.gate_proj.weight", {kFfn, h});
    add(layer + "mlp.up_proj.weight", {kFfn, h});
    add(layer + "mlp.down_proj.weight", {h, kFfn});
  }
  add("model.norm.weight", {h});
  if (!tied) add("lm_head.weight", {kVocabulary, h});
  return model;
}

void write_hub_folder(FileSystem& fs, const std::string& folder, const HubModel& model, DType dtype,
                      size_t files) {
  fs.make_directories(folder);
  fs.write_new_text(folder + "/config.json", model.config.dump());
  std::vector<std::vector<std::string>> names(files);
  Json index{{"metadata", Json::object()}, {"weight_map", Json::object()}};
  size_t n = 0;
  for (const auto& [name, tensor] : model.tensors) {
    const size_t file = n++ % files;
    names[file].push_back(name);
    index["weight_map"][name] = "model-" + std::to_string(file) + ".safetensors";
  }
  if (files == 1) return write_file(fs, folder + "/model.safetensors", names[0], model, dtype);
  for (size_t f = 0; f < files; ++f)
    write_file(fs, folder + "/model-" + std::to_string(f) + ".safetensors", names[f], model, dtype);
  fs.write_new_text(folder + "/model.safetensors.index.json", index.dump());
}

std::map<std::string, std::pair<std::vector<int64_t>, std::string>> tensors_of(FileSystem& fs,
                                                                               const std::string& folder,
                                                                               const std::string& dtype) {
  std::map<std::string, std::pair<std::vector<int64_t>, std::string>> result;
  for (const std::string& name : fs.list(folder)) {
    if (!name.ends_with(".safetensors")) continue;
    const std::string text = fs.read_text(folder + "/" + name);
    const uint64_t length = number_of(text);
    const Json header = Json::parse(text.substr(8, length));
    for (const auto& [tensor, entry] : header.items()) {
      if (tensor == "__metadata__") continue;
      INFO(tensor);
      CHECK(entry["dtype"] == dtype);
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      const bool is_new = result
                              .emplace(tensor, std::pair(entry["shape"].get<std::vector<int64_t>>(),
                                                         text.substr(8 + length + begin, end - begin)))
                              .second;
      CHECK(is_new);
    }
  }
  return result;
}

}  // namespace trainctl::test
