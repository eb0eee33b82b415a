#include "runtime/exchange/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ckpt/folders.h"
#include "ckpt/view.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/exchange/export_writer.h"
#include "runtime/exchange/forward_check.h"
#include "runtime/exchange/model_config.h"
#include "runtime/exchange/new_folder.h"
#include "runtime/exchange/tokenizer_files.h"
#include "runtime/train/generate/sample.h"
#include "runtime/train/tasks/task_file.h"

namespace trainctl {
namespace {

/// Headers, configuration and tokenizer, roughly.
constexpr uint64_t kSmallFilesBytes = 16 << 20;

void check_space(FileSystem& fs, const ExportRequest& request, const std::string& partial, uint64_t bytes) {
  const auto free = fs.free_bytes(partial);
  if (!free || *free >= bytes + kSmallFilesBytes) return;
  throw Error(ErrorCode::kIo, fmt::format("the export needs {}, but the file system of {} has {} free; name "
                                          "another --out{}",
                                          size_text(bytes), request.out, size_text(*free),
                                          request.dtype == DType::f32 ? ", or use --dtype bf16" : ""));
}

}  // namespace

std::vector<ExportFile> export_files(const ParamTable& table, DType dtype, uint64_t most_bytes) {
  std::vector<ExportFile> files(1);
  const auto put = [&](int param, const StoredParam& stored) {
    ExportTensor tensor{param, stored, stored_dtype(table, table.params[size_t(param)], dtype)};
    tensor.bytes = size_of(tensor.dtype);
    for (const int64_t size : stored.shape) tensor.bytes *= uint64_t(size);
    if (!files.back().tensors.empty() && files.back().bytes + tensor.bytes > most_bytes) files.emplace_back();
    files.back().bytes += tensor.bytes;
    files.back().tensors.push_back(std::move(tensor));
  };
  for (size_t i = 0; i < table.params.size(); ++i) {
    const StoredParam stored = stored_param(table, table.params[i]);
    std::vector<ExportTensor>& before = files.back().tensors;
    if (stored.part && !before.empty() && before.back().stored.name == stored.name) {
      before.back().joined.push_back(int(i));
      continue;
    }
    put(int(i), stored);
    if (stored.part) files.back().tensors.back().joined.push_back(int(i));
  }
  for (const auto& [param, name] : module_copies(table)) {
    StoredParam copy = stored_param(table, table.params[size_t(param)]);
    copy.name = name;
    put(param, copy);
  }
  for (size_t i = 0; i < files.size(); ++i)
    files[i].name = files.size() == 1 ? "model.safetensors"
                                      : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  return files;
}

std::string export_index_json(const std::vector<ExportFile>& files) {
  uint64_t total = 0;
  Json names = Json::object();  // sorted, as transformers write it
  for (const ExportFile& file : files) {
    total += file.bytes;
    for (const ExportTensor& tensor : file.tensors) names[tensor.stored.name] = file.name;
  }
  return dump_json(Json{{"metadata", {{"total_size", total}}}, {"weight_map", names}}, 2) + "\n";
}

ExportReport export_checkpoint(FileSystem& fs, const ExportRequest& request) {
  auto checkpoint = ckpt::Checkpoint::open(fs, request.checkpoint);
  if (request.averages) checkpoint = ckpt::averages_of(std::move(checkpoint));
  JobSpec job = job_of(*checkpoint);
  const bool has_place = hugging_face(job.model.family).predicts_further;
  const int64_t modules = has_place ? 0 : std::exchange(job.model.mtp.num_layers, 0);
  const ParamTable table = parameter_table(job.model, job.optimizer);
  const std::vector<ExportFile> files = export_files(table, request.dtype, request.shard_bytes);
  const data::TokenizerChoice choice = tokenizer_for(fs, job.data, request.tokenizer);
  const TokenizerFiles tokenizer = tokenizer_files(fs, choice, job.model.vocab_size, job.model.max_seq_len);
  std::map<std::string, std::string> texts = tokenizer.texts;
  if (files.size() > 1) texts["model.safetensors.index.json"] = export_index_json(files);
  texts["config.json"] = model_config_json(job.model, request.dtype, tokenizer.end_of_text);
  texts["generation_config.json"] = generation_config_json(tokenizer.end_of_text);

  ExportReport report{.out = folder_name(request.out),
                      .step = checkpoint->state().step,
                      .family = job.model.family,
                      .dtype = request.dtype,
                      .tensors = table.params.size(),
                      .shards = files.size(),
                      .modules_left_out = modules,
                      .tokenizer = tokenizer.description};
  for (const ExportFile& file : files) report.bytes += file.bytes;
  make_new_folder(fs, request.out, [&](const std::string& partial) {
    check_space(fs, request, partial, report.bytes);
    std::map<std::string, WrittenTensor> written;
    for (const ExportFile& file : files)
      written.merge(write_export_file(fs, partial, file, table, *checkpoint));
    for (const auto& [name, tensor] : written)
      report.largest_rounding = std::max(report.largest_rounding, tensor.largest_rounding);
    for (const auto& [name, text] : texts) fs.write_new_text(partial + "/" + name, text);
    read_back(fs, partial, files, written);
    if (!tokenizer.file.empty()) require_same_tokens(fs, choice, partial + "/" + tokenizer.file);
    if (request.check_tokens > 0)
      report.forward =
          check_forward(fs, job, *checkpoint, partial, request.dtype, request.check_tokens, request.threads);
    report.files = fs.list(partial);
    return partial;
  });
  return report;
}

std::string ExportReport::text() const {
  std::string text =
      fmt::format("✓ {} · step {} · {} · {} in {} · {} as {} · read back, every hash matches\n", out, step,
                  hugging_face(family).architecture, count_of(int64_t(tensors), "tensor"),
                  count_of(int64_t(shards), "file"), size_text(bytes), name_of(dtype));
  if (dtype == DType::bf16) text += fmt::format("rounding    at most {:.3g} of a weight\n", largest_rounding);
  if (modules_left_out > 0)
    text += fmt::format("left out    {} of multi-token prediction: files of {} have none\n",
                        count_of(modules_left_out, "module"), hugging_face(family).architecture);
  text += fmt::format("tokenizer   {}\n", tokenizer.empty()
                                              ? "none: the run names none; --tokenizer FILE adds one"
                                              : tokenizer + " · read back, a probe text has the same ids");
  if (forward) {
    text += fmt::format("forward     logits of {} tokens equal those of the checkpoint's weights as {}",
                        forward->tokens, name_of(dtype));
    if (dtype == DType::bf16)
      text += fmt::format("; at most {:.3g} from those of its unrounded weights", forward->from_master);
    text += "\n";
  }
  return text;
}

std::string ExportReport::to_json() const {
  OrderedJson json{{"out", out},
                    {"step", step},
                    {"architecture", std::string(hugging_face(family).architecture)},
                    {"dtype", std::string(name_of(dtype))},
                    {"tensors", tensors},
                    {"shards", shards},
                    {"bytes", bytes},
                    {"largest_rounding", largest_rounding},
                    {"tokenizer", tokenizer.empty() ? OrderedJson() : OrderedJson(tokenizer)},
                    {"forward", OrderedJson()},
                    {"files", files}};
  if (forward)
    json["forward"] = {
        {"tokens", forward->tokens}, {"largest", forward->largest}, {"from_master", forward->from_master}};
  return dump_json(json) + "\n";
}

}  // namespace trainctl
