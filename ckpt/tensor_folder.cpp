// A folder of Hugging Face safetensors files as one set of tensors.
// Source: the layout of huggingface_hub: model.safetensors.index.json with "weight_map", or one model.safetensors
// (or weights.safetensors).
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "ckpt/safetensors.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::ckpt {
namespace {

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorCode::kCheckpoint, message); }

/// IEEE binary16.
float half_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f, fraction = float(bits & 0x3ff);
  if (exponent == 0x1f) return fraction != 0 ? std::nanf("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(fraction + 1024.0f, exponent - 25);
}

template <typename Stored, typename Convert>
std::vector<float> convert(const std::vector<std::byte>& raw, Convert to_float) {
  std::vector<float> values(raw.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored value;
    std::memcpy(&value, raw.data() + i * sizeof(Stored), sizeof(Stored));
    values[i] = to_float(value);
  }
  return values;
}

class OpenTensorFolder final : public TensorFolder {
 public:
  /// Takes every tensor of the file; two files with one name contradict each other.
  void add_file(FileSystem& fs, const std::string& path) {
    const size_t file = files_.size();
    paths_.push_back(path);
    files_.push_back(open_safetensors(fs, path));
    for (const SafetensorsEntry& entry : files_.back().entries) {
      const auto [at, is_new] = tensors_.try_emplace(entry.name, Place{file, entry});
      if (!is_new)
        fail(fmt::format("both {} and {} hold the tensor {}", paths_[at->second.file], path, entry.name));
    }
  }

  void add_index(FileSystem& fs, const std::string& folder, const std::string& index_path) {
    std::map<std::string, std::vector<std::string>> names_of_file;
    try {
      const nlohmann::json index = parse_json(fs.read_text(index_path));
      for (const auto& [name, file] : index.at("weight_map").items())
        names_of_file[file.get<std::string>()].push_back(name);
    } catch (const nlohmann::json::exception& error) {
      fail(fmt::format("{} is not an index of safetensors files: {}", index_path, error.what()));
    }
    for (const auto& [file, names] : names_of_file) {
      const std::string path = folder + "/" + file;
      if (file.empty() || file.find('/') != std::string::npos)
        fail(fmt::format("{} names the file \"{}\"", index_path, file));
      if (!fs.exists(path)) fail(fmt::format("{} names {}, which is missing", index_path, path));
      add_file(fs, path);
      for (const std::string& name : names)
        if (!has(name) || tensors_.at(name).file != files_.size() - 1)
          fail(fmt::format("{} says that {} holds {}, but it does not", index_path, file, name));
    }
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> result;
    for (const auto& [name, place] : tensors_) result.push_back(name);
    return result;
  }
  bool has(const std::string& name) const override { return tensors_.count(name) > 0; }
  std::vector<int64_t> shape(const std::string& name) const override { return place(name).entry.shape; }

  std::vector<float> read_f32(const std::string& name) override {
    const SafetensorsEntry& entry = place(name).entry;
    std::vector<std::byte> raw(entry.bytes);
    files_[place(name).file].file->read_at(entry.offset, raw);
    if (entry.dtype == "F32") return convert<float>(raw, [](float value) { return value; });
    if (entry.dtype == "F64") return convert<double>(raw, [](double value) { return float(value); });
    if (entry.dtype == "BF16") return convert<bf16>(raw, [](bf16 value) { return float(value); });
    if (entry.dtype == "F16") return convert<uint16_t>(raw, half_to_float);
    fail(fmt::format("{} in {} has the dtype {}; weights must be F32, BF16, F16 or F64", name,
                     paths_[place(name).file], entry.dtype));
  }

 private:
  struct Place {
    size_t file;
    SafetensorsEntry entry;
  };
  const Place& place(const std::string& name) const {
    const auto at = tensors_.find(name);
    if (at == tensors_.end())
      fail(fmt::format("{} holds no tensor {}", paths_.empty() ? "the folder" : paths_[0], name));
    return at->second;
  }

  std::vector<std::string> paths_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> tensors_;
};

}  // namespace

std::unique_ptr<TensorFolder> TensorFolder::open(FileSystem& fs, const std::string& path) {
  auto result = std::make_unique<OpenTensorFolder>();
  if (!fs.exists(path)) fail(fmt::format("{} does not exist", path));
  if (!fs.is_directory(path)) {
    result->add_file(fs, path);
    return result;
  }
  const std::string index = path + "/model.safetensors.index.json", single = path + "/model.safetensors",
                    weights = path + "/weights.safetensors";
  if (fs.exists(index)) {
    result->add_index(fs, path, index);
  } else if (fs.exists(single)) {
    result->add_file(fs, single);
  } else if (fs.exists(weights)) {
    result->add_file(fs, weights);
  } else {
    bool found = false;
    for (const std::string& name : fs.list(path)) {
      if (name.size() <= 12 || name.compare(name.size() - 12, 12, ".safetensors") != 0) continue;
      result->add_file(fs, path + "/" + name);
      found = true;
    }
    if (!found) fail(fmt::format("{} holds no *.safetensors file", path));
  }
  return result;
}

}  // namespace trainctl::ckpt
