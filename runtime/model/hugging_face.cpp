#include "runtime/model/hugging_face.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "runtime/base/error.h"

namespace trainctl {
namespace {

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kGpt2Buffers[] = {".attn.bias", ".attn.masked_bias"};
constexpr std::string_view kLlamaBuffers[] = {".rotary_emb.inv_freq"};

/// Of a family that keeps its tensors as Llama does.
constexpr HuggingFaceFamily of_hub(std::string_view model_type, std::string_view architecture) {
  return {model_type, architecture, "", false, kLlamaBuffers};
}

// In the order of Family. Source: the classes of these names in transformers 4 and 5.
constexpr HuggingFaceFamily kHuggingFace[] = {
    {.model_type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .prefix = "transformer.",
     .transposed = true,
     .buffers = kGpt2Buffers},
    of_hub("llama", "LlamaForCausalLM"),
    of_hub("qwen2", "Qwen2ForCausalLM"),
    of_hub("qwen3", "Qwen3ForCausalLM"),
    of_hub("olmo2", "Olmo2ForCausalLM"),
    of_hub("olmo3", "Olmo3ForCausalLM"),
    of_hub("gemma2", "Gemma2ForCausalLM"),
    of_hub("gemma3_text", "Gemma3ForCausalLM"),
    of_hub("mistral", "MistralForCausalLM"),
    of_hub("smollm3", "SmolLM3ForCausalLM"),
    of_hub("mixtral", "MixtralForCausalLM"),
    of_hub("qwen3_moe", "Qwen3MoeForCausalLM"),
    of_hub("qwen2_moe", "Qwen2MoeForCausalLM"),
    {.model_type = "glm4_moe",
     .architecture = "Glm4MoeForCausalLM",
     .prefix = "",
     .transposed = false,
     .buffers = kLlamaBuffers,
     .predicts_further = true,
     .routes_in_f32 = true},
    {.model_type = "gpt_oss",
     .architecture = "GptOssForCausalLM",
     .prefix = "",
     .transposed = false,
     .buffers = kLlamaBuffers,
     .joins_experts = true},
    {.model_type = "deepseek_v3",
     .architecture = "DeepseekV3ForCausalLM",
     .prefix = "",
     .transposed = false,
     .buffers = kLlamaBuffers,
     .predicts_further = true,
     .other_type = "kimi_k2",
     .routes_in_f32 = true},
};
static_assert(std::size(kHuggingFace) == std::size(kFamilies));

/// Floats that are transposed at a time.
constexpr int64_t kTransposedFloats = int64_t(1) << 20;

std::vector<int64_t> shape_of(const Param& param, bool transposed) {
  std::vector<int64_t> shape{param.layout.rows};
  if (!param.is_vector()) shape.push_back(param.layout.cols);
  if (transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

std::string with_prefix(std::string_view prefix, const Param& param) {
  return (param.role == ParamRole::head ? "" : std::string(prefix)) + param.layout.name;
}

/// The place of an expert's parameter "...experts.7.up_proj.bias" in the tensor of all: [E, C, 2 F] of gates
/// and inputs by turns, [E, F, C], and their biases [E, 2 F], [E, C]. Nullopt: of another parameter.
std::optional<StoredParam> joined_experts(const ParamTable& table, const Param& param) {
  constexpr std::string_view kExperts = ".experts.";
  const std::string& name = param.layout.name;
  const size_t at = name.find(kExperts);
  if (!hugging_face(table.family).joins_experts || at == std::string::npos) return std::nullopt;
  const size_t number = at + kExperts.size(), dot = name.find('.', number);
  const std::string what = name.substr(dot + 1);
  const bool is_down = what.starts_with("down_proj"), is_bias = what.ends_with(".bias");
  const int64_t lines = is_bias ? 1 : param.layout.cols,
                width = is_down ? param.layout.rows : 2 * param.layout.rows;
  StoredParam stored{
      .name = name.substr(0, number) + (is_down ? "down_proj" : "gate_up_proj") + (is_bias ? "_bias" : ""),
      .shape = {table.experts, lines, width}};
  if (is_bias) stored.shape.erase(stored.shape.begin() + 1);
  stored.part = {.expert = std::stoll(name.substr(number, dot - number)),
                 .lines = lines,
                 .width = width,
                 .first = what.starts_with("up_proj") ? 1 : 0,
                 .step = is_down ? 1 : 2};
  return stored;
}

/// Whether it is a tensor of layer 47 of a model of fewer layers, of which the folder has
/// "model.layers.47.eh_proj.weight".
bool is_of_further_layer(const std::string& name, int64_t layers, ckpt::TensorFolder& folder) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return false;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), number);
  return error == std::errc() && *end == '.' && number >= layers &&
         folder.has(fmt::format("{}{}.eh_proj.weight", kLayers, number));
}

/// Whether the folder stores linear weights as [in, out]: the first that may be, and is not square, decides
/// for all.
bool stores_transposed(const ParamTable& table, ckpt::TensorFolder& folder, std::string_view prefix) {
  for (const Param& p : table.params) {
    if (!p.may_be_transposed || p.layout.rows == p.layout.cols) continue;
    const std::string name = with_prefix(prefix, p);
    if (folder.has(name)) return folder.shape(name) == shape_of(p, true);
  }
  return false;
}

}  // namespace

const HuggingFaceFamily& hugging_face(Family family) { return kHuggingFace[size_t(family)]; }

StoredParam stored_param(const ParamTable& table, const Param& param) {
  if (const auto joined = joined_experts(table, param)) return *joined;
  return {.name = with_prefix(hugging_face(table.family).prefix, param),
          .shape = shape_of(param, param.may_be_transposed),
          .transposed = param.may_be_transposed};
}

DType stored_dtype(const ParamTable& table, const Param& param, DType dtype) {
  const bool routes = param.role == ParamRole::router || param.role == ParamRole::selection_bias;
  return routes && hugging_face(table.family).routes_in_f32 ? DType::f32 : dtype;
}

std::vector<std::pair<int, std::string>> module_copies(const ParamTable& table) {
  std::vector<std::pair<int, std::string>> copies;
  int head = 0;  // tied: the embedding
  for (size_t i = 0; i < table.params.size(); ++i)
    if (table.params[i].role == ParamRole::head) head = int(i);
  constexpr std::string_view kJoin = "eh_proj.weight";
  for (const Param& p : table.params) {
    if (p.mtp == 0 || !p.layout.name.ends_with(kJoin)) continue;
    const std::string module = p.layout.name.substr(0, p.layout.name.size() - kJoin.size());
    copies.emplace_back(0, module + "embed_tokens.weight");
    copies.emplace_back(head, module + "shared_head.head.weight");
  }
  return copies;
}

StoredModel::StoredModel(const ParamTable& table, ckpt::TensorFolder& folder, std::string what)
    : table_(table), folder_(folder), what_(std::move(what)) {
  const Param& first = table.params.front();
  const std::string prefix(hugging_face(table.family).prefix);
  if (!folder.has(first.layout.name) && folder.has(with_prefix(prefix, first))) prefix_ = prefix;
  transposed_ = stores_transposed(table, folder, prefix_);
}

namespace {

/// Experts of the layer of tensor `name`, joined or named otherwise than it; "" without, and where only this
/// one is missing.
std::string experts_instead(const std::string& name, const ckpt::TensorFolder& folder) {
  const std::string experts = ".experts", layers = "layers.";
  const size_t at = name.find(layers), of_experts = name.find(experts);
  if (of_experts == std::string::npos || at == std::string::npos) return "";
  if (const size_t number = of_experts + experts.size() + 1, end = name.find('.', number);
      end != std::string::npos && folder.has(name.substr(0, number) + "0" + name.substr(end)))
    return "";
  const std::string layer = name.substr(0, name.find('.', at + layers.size()) + 1);
  for (const std::string& other : folder.names())
    if (other.starts_with(layer) && other.find(experts) != std::string::npos)
      return fmt::format("`{}` [{}]", other, fmt::join(folder.shape(other), ", "));
  return "";
}

}  // namespace

StoredParam StoredModel::find(const Param& param) const {
  const bool transposed = transposed_ && param.may_be_transposed;
  StoredParam stored{with_prefix(prefix_, param), shape_of(param, transposed), transposed};
  if (const auto joined = joined_experts(table_, param)) stored = *joined;
  if (const std::string other = folder_.has(stored.name) ? "" : experts_instead(stored.name, folder_);
      !other.empty())
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("{} has no tensor `{}` [{}], but {}: experts are joined or named as this family's are "
                    "not; store them under the names that trainctl asks for",
                    what_, stored.name, fmt::join(stored.shape, ", "), other));
  if (!folder_.has(stored.name))
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{} has no tensor `{}`; it holds {} tensors, are they of another model family?",
                            what_, stored.name, folder_.names().size()));
  if (const auto shape = folder_.shape(stored.name); shape != stored.shape)
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("tensor `{}` of {} has shape [{}], this model needs [{}]", stored.name, what_,
                            fmt::join(shape, ", "), fmt::join(stored.shape, ", ")));
  return stored;
}

void StoredModel::read(const StoredParam& stored, const parallel::Box& box, float* out) {
  if (stored.part) return read_part(stored, box, out);
  if (!stored.transposed) {
    folder_.read_f32(stored.name, box, out);
    return;
  }
  const int64_t most = std::max<int64_t>(1, kTransposedFloats / std::max<int64_t>(1, box.cols()));
  std::vector<float> values;
  for (int64_t row = box.row_begin; row < box.row_end; row += most) {
    const int64_t rows = std::min(most, box.row_end - row);
    values.resize(size_t(rows * box.cols()));
    folder_.read_f32(stored.name, {box.col_begin, box.col_end, row, row + rows}, values.data());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < box.cols(); ++c) *out++ = values[size_t(c * rows + r)];
  }
}

void StoredModel::read_part(const StoredParam& stored, const parallel::Box& box, float* out) {
  const StoredParam::Part& part = *stored.part;
  const int64_t most = std::max<int64_t>(1, kTransposedFloats / part.width);
  std::vector<float> values;
  for (int64_t line = box.col_begin; line < box.col_end; line += most) {
    const int64_t lines = std::min(most, box.col_end - line);
    values.resize(size_t(lines * part.width));
    folder_.read_f32(stored.name,
                     {part.expert, part.expert + 1, line * part.width, (line + lines) * part.width},
                     values.data());
    for (int64_t r = 0; r < box.rows(); ++r)
      for (int64_t i = 0; i < lines; ++i)
        out[r * box.cols() + line - box.col_begin + i] =
            values[size_t(i * part.width + part.first + (box.row_begin + r) * part.step)];
  }
}

StoredModel::Others StoredModel::others() const {
  const HuggingFaceFamily& family = hugging_face(table_.family);
  const std::string other_prefix(prefix_.empty() ? family.prefix : "");
  std::set<std::string> known;
  std::map<std::string, std::string> second_names;
  for (const Param& p : table_.params) {
    if (const auto joined = joined_experts(table_, p)) {
      known.insert(joined->name);
      continue;
    }
    const std::string name = with_prefix(prefix_, p);
    known.insert(name);
    if (const std::string second = with_prefix(other_prefix, p); second != name) second_names[second] = name;
  }
  std::map<std::string, std::string> copies;
  for (const auto& [param, name] : module_copies(table_))
    copies[name] = with_prefix(prefix_, table_.params[size_t(param)]);
  Others result;
  for (const std::string& name : folder_.names()) {
    if (known.count(name)) continue;
    const auto is_end = [&](std::string_view end) { return std::string_view(name).ends_with(end); };
    if (const auto second = second_names.find(name); second != second_names.end())
      result.twice.emplace_back(second->second, name);
    else if (const auto copy = copies.find(name); copy != copies.end())
      result.copies.emplace_back(copy->second, name);
    else if (table_.tied && name == kHead)
      result.tied_head = name;
    else if (std::any_of(family.buffers.begin(), family.buffers.end(), is_end) ||
             (family.predicts_further && module_copies(table_).empty() &&
              is_of_further_layer(name, table_.params.back().layer, folder_)))
      result.buffers.push_back(name);
    else
      result.unknown.push_back(name);
  }
  return result;
}

}  // namespace trainctl
