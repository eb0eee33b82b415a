#include "runtime/exchange/folder_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/exchange/model_config.h"
#include "runtime/exchange/new_folder.h"
#include "runtime/exchange/tokenizer_files.h"
#include "runtime/spec/fields/fields.h"

namespace trainctl {
namespace {

/// Floats that are compared at a time.
constexpr int64_t kComparedFloats = int64_t(1) << 20;

[[noreturn]] void refuse_folder(const std::string& message) { throw Error(ErrorCode::kCheckpoint, message); }

Json config_of(FileSystem& fs, const std::string& folder) {
  if (!fs.is_directory(folder))
    throw Error(ErrorCode::kUsage,
                fmt::format("{} is no folder; give the folder of a Hugging Face model", folder));
  const std::string path = folder + "/config.json";
  if (!fs.exists(path))
    throw Error(ErrorCode::kData, fmt::format("{} is no folder of a model: it has no config.json", folder));
  Json config = try_parse_json(fs.read_text(path));
  if (config.is_discarded()) throw Error(ErrorCode::kData, fmt::format("{} is not JSON", path));
  return config;
}

/// Letters, digits, `.`, `_` and `-` of the folder's name.
std::string job_name(const std::string& folder) {
  std::string name = std::filesystem::path(folder).lexically_normal().filename().string();
  for (char& c : name)
    if (!isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') c = '-';
  return name.empty() || !isalnum(static_cast<unsigned char>(name[0])) ? "imported" + name : name;
}

/// The spec that the checkpoint holds: the model; a launch --from it says the rest.
ParsedJob job_of_model(const ModelSpec& m, const data::TokenizerChoice& tokenizer,
                       const std::string& folder) {
  OrderedJson spec{
      {"version", 1},
      {"name", job_name(folder)},
      {"description", "imported from " + folder},
      {"data", {{"tokenizer", tokenizer.text()}, {"train", {{{"path", "no-data-was-imported"}}}}}},
      {"parallelism", {{"world_size", 1}}},
      {"schedule", {{"total_steps", 1}}}};
  for (const auto& [path, value] : spec::model_values(m)) {
    OrderedJson* node = &spec;
    for (size_t begin = 0, end; begin < path.size(); begin = end + 1) {
      end = std::min(path.find('.', begin), path.size());
      node = &(*node)[path.substr(begin, end - begin)];
    }
    *node = parse_ordered_json(value);
  }
  ParsedJob job = parse_job({.text = dump_json(spec, 1), .file = folder + "/config.json"});
  for (const Diagnostic& mistake : job.diagnostics)
    if (mistake.is_error())
      throw Error(ErrorCode::kData,
                  fmt::format("{}/config.json describes a model that trainctl cannot train: {}", folder,
                              mistake.message));
  return job;
}

/// Whether two tensors of the folder hold the same numbers.
bool are_equal(ckpt::TensorFolder& folder, const std::string& a, const std::string& b,
               const parallel::ParamLayout& layout) {
  if (folder.shape(a) != folder.shape(b)) return false;
  std::vector<float> x, y;
  const int64_t most = std::max<int64_t>(1, kComparedFloats / layout.cols);
  for (int64_t row = 0; row < layout.rows; row += most) {
    const parallel::Box box{row, std::min(layout.rows, row + most), 0, layout.cols};
    x.resize(size_t(box.count()));
    y.resize(x.size());
    folder.read_f32(a, box, x.data());
    folder.read_f32(b, box, y.data());
    if (std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

/// Refuses what the folder holds besides the model. Returns the tensors that may be left out.
std::vector<std::string> check_others(const StoredModel& stored, ckpt::TensorFolder& folder,
                                      const ParamTable& table, const std::string& where) {
  StoredModel::Others others = stored.others();
  if (!others.twice.empty())
    refuse_folder(fmt::format("{} holds one tensor under two names, `{}` and `{}`; remove one of them", where,
                              others.twice[0].first, others.twice[0].second));
  if (!others.unknown.empty())
    refuse_folder(fmt::format(
        "{} holds {} that trainctl does not know, the first is `{}`; the model is not the one that "
        "its config.json describes",
        where, count_of(int64_t(others.unknown.size()), "tensor"), others.unknown[0]));
  for (const auto& [tensor, copy] : others.copies) {
    const Param& param = *std::find_if(table.params.begin(), table.params.end(),
                                       [&](const Param& p) { return stored.find(p).name == tensor; });
    if (!are_equal(folder, tensor, copy, param.layout))
      refuse_folder(
          fmt::format("{}: `{}` is to be a copy of `{}`, which the module shares, and holds other numbers",
                      where, copy, tensor));
  }
  if (!others.tied_head.empty()) {
    const Param& embedding = table.params.front();
    if (!are_equal(folder, stored.find(embedding).name, others.tied_head, embedding.layout))
      refuse_folder(fmt::format(
          "{}: tie_word_embeddings is true, but `{}` and `{}`, two names for one tensor, hold other numbers",
          where, others.tied_head, stored.find(embedding).name));
    others.buffers.push_back(others.tied_head);
  }
  return others.buffers;
}

}  // namespace

void leave_out_missing_modules(ReadConfig& config, ckpt::TensorFolder& folder) {
  MtpSpec& mtp = config.model.mtp;
  if (mtp.num_layers == 0 ||
      folder.has(fmt::format("model.layers.{}.eh_proj.weight", config.model.num_layers)))
    return;
  config.notes.push_back(fmt::format(
      "num_nextn_predict_layers is {}, and the folder has no such layers: the model is without them",
      mtp.num_layers));
  mtp = {};
}

FolderModel::FolderModel(FileSystem& fs, const std::string& name, bool takes_tokenizer)
    : path(folder_name(name)) {
  ReadConfig config = read_model_config(config_of(fs, path), path + "/config.json");
  tensors = ckpt::TensorFolder::open(fs, path);
  leave_out_missing_modules(config, *tensors);
  if (takes_tokenizer) tokenizer = tokenizer_in(fs, path, config.model.vocab_size);
  job = job_of_model(config.model, tokenizer, path);
  table = parameter_table(job.job.model, job.job.optimizer, job.job.parallelism.cut_for_tensor());
  stored.emplace(table, *tensors, path);
  for (const Param& param : table.params) stored->find(param);
  left_out = check_others(*stored, *tensors, table, path);
  notes = std::move(config.notes);
}

TrainedModel folder_model(FileSystem& fs, const std::string& name, bool takes_tokenizer) {
  FolderModel model(fs, name, takes_tokenizer);
  model.stored.reset();  // refers to the table
  return {model.path, std::move(model.job.job), 0, std::move(model.tensors), std::move(model.notes)};
}

}  // namespace trainctl
