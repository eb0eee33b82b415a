// A folder of Hugging Face safetensors files as one set of tensors.
// Source: the layout of huggingface_hub: model.safetensors.index.json with "weight_map", or one model.safetensors
// (or weights.safetensors).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "ckpt/fail.h"
#include "ckpt/safetensors.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/words.h"

namespace trainctl::ckpt {
namespace {

/// The numbers of a tensor of weights.
enum class WeightNumber { f64, f32, bf16, f16 };

}  // namespace
}  // namespace trainctl::ckpt

/// As safetensors calls them.
template <>
struct trainctl::Words<trainctl::ckpt::WeightNumber> {
  static constexpr std::string_view list[] = {"F64", "F32", "BF16", "F16"};
};

namespace trainctl::ckpt {
namespace {

/// The most bytes of a file that are held before they are converted.
constexpr size_t kRawBytes = size_t(4) << 20;

template <typename Stored, typename Convert>
void convert(std::span<const std::byte> raw, Convert to_float, float* out) {
  for (size_t i = 0; i < raw.size() / sizeof(Stored); ++i) {
    Stored value;
    std::memcpy(&value, raw.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = to_float(value);
  }
}

/// The matrix that a tensor's shape makes: all dimensions but the first are its columns.
parallel::Box as_matrix(const std::vector<int64_t>& shape) {
  int64_t cols = 1;
  for (size_t d = 1; d < shape.size(); ++d) cols *= shape[d];
  return {0, shape.empty() ? 1 : shape[0], 0, cols};
}

class OpenTensorFolder final : public TensorFolder {
 public:
  /// Takes every tensor of the file; a name in two files is an error.
  void add_file(FileSystem& fs, const std::string& path) {
    const size_t file = files_.size();
    paths_.push_back(path);
    files_.push_back(open_safetensors(fs, path));
    for (const SafetensorsEntry& entry : files_.back().entries) {
      const auto [at, is_new] = tensors_.try_emplace(
          entry.name, Place{file, entry, of_word<WeightNumber>(entry.dtype)});
      if (!is_new)
        fail(fmt::format("both {} and {} hold the tensor {}", paths_[at->second.file], path, entry.name));
    }
  }

  void add_index(FileSystem& fs, const std::string& folder, const std::string& index_path) {
    std::map<std::string, std::vector<std::string>> names_of_file;
    try {
      const Json index = parse_json(fs.read_text(index_path));
      for (const auto& [name, file] : index.at("weight_map").items())
        names_of_file[file.get<std::string>()].push_back(name);
    } catch (const JsonError& error) {
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

  void read_f32(const std::string& name, const parallel::Box& box, float* out) override {
    const SafetensorsEntry& entry = place(name).entry;
    const parallel::Box whole = as_matrix(entry.shape);
    ENSURE(box.row_begin >= 0 && box.row_end <= whole.row_end && box.col_begin >= 0 && box.col_end <= whole.col_end);
    if (box.count() == 0) return;
    const WeightNumber number = number_of(name);
    const size_t item = item_bytes(number);
    // Whole rows are contiguous.
    const bool joined = box.cols() == whole.cols();
    const int64_t runs = joined ? 1 : box.rows(), run = joined ? box.count() : box.cols();
    std::vector<std::byte> raw(std::min(kRawBytes / item, size_t(run)) * item);
    for (int64_t r = 0; r < runs; ++r) {
      const int64_t first = (box.row_begin + r) * whole.cols() + box.col_begin;
      for (int64_t done = 0; done < run;) {
        const int64_t count = std::min(run - done, int64_t(raw.size() / item));
        const std::span piece(raw.data(), size_t(count) * item);
        files_[place(name).file].file->read_at(entry.offset + uint64_t(first + done) * item, piece);
        to_f32(number, piece, out);
        out += count;
        done += count;
      }
    }
  }

 private:
  struct Place {
    size_t file;
    SafetensorsEntry entry;
    std::optional<WeightNumber> number;  ///< nullopt: numbers that no weight has
  };
  WeightNumber number_of(const std::string& name) const {
    const Place& at = place(name);
    if (at.number) return *at.number;
    fail(fmt::format("{} in {} has the dtype {}; weights must be F32, BF16, F16 or F64", name,
                     paths_[at.file], at.entry.dtype));
  }
  static size_t item_bytes(WeightNumber number) {
    return number == WeightNumber::f64 ? 8 : number == WeightNumber::f32 ? 4 : 2;
  }
  static void to_f32(WeightNumber number, std::span<const std::byte> raw, float* out) {
    switch (number) {
      case WeightNumber::f32: return convert<float>(raw, [](float value) { return value; }, out);
      case WeightNumber::f64: return convert<double>(raw, [](double value) { return float(value); }, out);
      case WeightNumber::bf16: return convert<bf16>(raw, [](bf16 value) { return float(value); }, out);
      case WeightNumber::f16:
        return convert<f16>(
            raw, [](f16 value) { return float(value); }, out);
    }
  }
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

std::vector<float> TensorFolder::read_f32(const std::string& name) {
  const parallel::Box whole = as_matrix(shape(name));
  std::vector<float> values(size_t(whole.count()));
  read_f32(name, whole, values.data());
  return values;
}

std::unique_ptr<TensorFolder> TensorFolder::open(FileSystem& fs, const std::string& path) {
  auto result = std::make_unique<OpenTensorFolder>();
  if (!fs.exists(path)) fail(fmt::format("{} does not exist", path));
  if (!fs.is_directory(path)) {
    result->add_file(fs, path);
    return result;
  }
  const std::string index = path + "/model.safetensors.index.json", single = path + "/model.safetensors",
                    weights = path + "/weights.safetensors";
  // Where both are there, the one file is the newer: who saves a model into the folder of another leaves the
  // other's index and shards. The library of the format takes it, too.
  if (fs.exists(single)) {
    result->add_file(fs, single);
  } else if (fs.exists(index)) {
    result->add_index(fs, path, index);
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
