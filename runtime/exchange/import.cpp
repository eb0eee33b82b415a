#include "runtime/exchange/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/exchange/model_config.h"
#include "runtime/exchange/new_folder.h"
#include "runtime/exchange/tokenizer_files.h"
#include "runtime/model/hugging_face.h"
#include "runtime/model/stage_uses.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/spec/parse.h"

namespace trainctl {
namespace {

/// Weights that are held at a time, in bytes (or one chunk, if that is more).
constexpr int64_t kHeldBytes = int64_t(128) << 20;
/// Floats that are compared at a time.
constexpr int64_t kComparedFloats = int64_t(1) << 20;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kCheckpoint, message); }

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
    refuse(fmt::format("{} holds one tensor under two names, `{}` and `{}`; remove one of them", where,
                       others.twice[0].first, others.twice[0].second));
  if (!others.unknown.empty())
    refuse(fmt::format(
        "{} holds {} that trainctl does not know, the first is `{}`; the model is not the one that "
        "its config.json describes",
        where, count_of(int64_t(others.unknown.size()), "tensor"), others.unknown[0]));
  for (const auto& [tensor, copy] : others.copies) {
    const Param& param = *std::find_if(table.params.begin(), table.params.end(),
                                       [&](const Param& p) { return stored.find(p).name == tensor; });
    if (!are_equal(folder, tensor, copy, param.layout))
      refuse(fmt::format("{}: `{}` is to be a copy of `{}`, which the module shares, and holds other numbers",
                         where, copy, tensor));
  }
  if (!others.tied_head.empty()) {
    const Param& embedding = table.params.front();
    if (!are_equal(folder, stored.find(embedding).name, others.tied_head, embedding.layout))
      refuse(fmt::format(
          "{}: tie_word_embeddings is true, but `{}` and `{}`, two names for one tensor, hold other numbers",
          where, others.tied_head, stored.find(embedding).name));
    others.buffers.push_back(others.tied_head);
  }
  return others.buffers;
}

void require_finite(const std::string& tensor, const parallel::Box& box, const std::vector<float>& values) {
  const auto odd = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
  if (odd == values.end()) return;
  const int64_t at = odd - values.begin();
  refuse(
      fmt::format("tensor `{}` holds {} at [{}, {}] (as [out, in]); weights that are not finite cannot be "
                  "trained: take a sound "
                  "copy of the folder",
                  tensor, std::isnan(*odd) ? "NaN" : "infinity", box.row_begin + at / box.cols(),
                  box.col_begin + at % box.cols()));
}

/// Writes all chunks of the model into shards, some at a time.
class StateWriter {
 public:
  StateWriter(FileSystem& fs, const std::string& directory, const ckpt::StateInfo& info,
              const ParamTable& table, const ChunkGrids& grids, StoredModel& stored)
      : fs_(fs),
        directory_(directory),
        info_(info),
        table_(table),
        tensors_(checkpoint_tensors(table)),
        stored_(stored) {
    int64_t held = 0;
    for (size_t p = 0; p < table.params.size(); ++p)
      for (const parallel::Box& box : grids.grids[p]) {
        const int64_t bytes = box.count() * int64_t(sizeof(float));
        if (groups_.empty() || held + bytes > kHeldBytes) {
          groups_.emplace_back();
          held = 0;
        }
        groups_.back().push_back({int(p), box});
        held += bytes;
        largest_ = std::max(largest_, box.count());
      }
  }

  std::string write() {
    const std::vector<float> zeros(
        static_cast<size_t>(largest_));  // of a state that is no weight, whatever its dtype
    std::vector<ckpt::ShardReceipt> receipts;
    ckpt::prepare_saving(fs_, directory_, info_);
    for (size_t g = 0; g < groups_.size(); ++g) receipts.push_back(write_group(g, zeros));
    return ckpt::publish(fs_, directory_, info_, tensors_, receipts);
  }

 private:
  struct Chunk {
    int param;
    parallel::Box box;
  };

  ckpt::ShardReceipt write_group(size_t g, const std::vector<float>& zeros) {
    std::vector<std::vector<float>> values;
    std::vector<ckpt::ChunkData> chunks;
    for (const Chunk& chunk : groups_[g]) {
      values.emplace_back(size_t(chunk.box.count()));
      const StoredParam stored = stored_.find(table_.params[size_t(chunk.param)]);
      stored_.read(stored, chunk.box, values.back().data());
      require_finite(stored.name, chunk.box, values.back());
      const Param& param = table_.params[size_t(chunk.param)];
      int tensor = param.first_tensor;
      for (const parallel::StateRow& row : param.states)
        if (row.saved)
          chunks.push_back(
              {tensor++, chunk.box, row.role == ckpt::Role::master ? values.back().data() : zeros.data()});
    }
    return ckpt::write_shard(fs_, ckpt::saving_directory(directory_, info_),
                             ckpt::shard_file_name(int(g), int(groups_.size())), info_, tensors_, chunks);
  }

  FileSystem& fs_;
  const std::string& directory_;
  const ckpt::StateInfo& info_;
  const ParamTable& table_;
  std::vector<ckpt::Tensor> tensors_;
  StoredModel& stored_;
  std::vector<std::vector<Chunk>> groups_;
  int64_t largest_ = 0;
};

ckpt::StateInfo state_of(const ParsedJob& job, const std::string& from) {
  ckpt::StateInfo info{.run_id = job.job.name,
                       .seed = job.job.seed,
                       .spec_hash = job.hash,
                       .program_version = TRAINCTL_VERSION};
  info.extra_json =
      dump_json(OrderedJson{{"samples", 0}, {"lanes", job.job.parallelism.lanes}, {"imported_from", from}});
  info.resolved_spec_json = job.resolved_json;
  return info;
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

ImportReport import_folder(FileSystem& fs, const ImportRequest& request) {
  const std::string from = folder_name(request.from), file = from + "/config.json";
  ReadConfig config = read_model_config(config_of(fs, from), file);
  const auto folder = ckpt::TensorFolder::open(fs, from);
  leave_out_missing_modules(config, *folder);
  const data::TokenizerChoice tokenizer =
      request.takes_tokenizer ? tokenizer_in(fs, from, config.model.vocab_size) : data::TokenizerChoice();
  const ParsedJob job = job_of_model(config.model, tokenizer, from);
  const ParamTable table =
      parameter_table(job.job.model, job.job.optimizer, job.job.parallelism.cut_for_tensor());
  StoredModel stored(table, *folder, from);
  for (const Param& param : table.params) stored.find(param);
  ImportReport report{.from = from,
                      .model = job.job.model,
                      .architecture = std::string(hugging_face(job.job.model.family).architecture),
                      .tensors = table.params.size(),
                      .parameters = uint64_t(table.total_count()),
                      .tokenizer = tokenizer.text(),
                      .left_out = check_others(stored, *folder, table, from),
                      .notes = config.notes};
  report.out = folder_name(request.out);
  make_new_folder(fs, request.out, [&](const std::string& partial) {
    const ckpt::StateInfo info = state_of(job, from);
    StateWriter writer(fs, partial, info, table, chunk_grids(table, job.job.checkpoint.chunk_mib), stored);
    report.root_hash = writer.write();
    return ckpt::step_directory(partial, 0);
  });
  return report;
}

std::string ImportReport::text() const {
  std::string text = fmt::format("✓ {} · step 0 of {} · {} · {} · {} parameters · state {}\n", out, from,
                                 architecture, count_of(int64_t(tensors), "tensor"),
                                 count_text(double(parameters)), root_hash.substr(0, 16));
  text += fmt::format("tokenizer   {}\n", tokenizer.empty() ? "none" : tokenizer);
  for (const std::string& name : left_out) text += fmt::format("left out    {}\n", name);
  for (const std::string& note : notes) text += fmt::format("note        {}\n", note);
  return text;
}

std::string ImportReport::to_json() const {
  return dump_json(OrderedJson{{"from", from},
                                {"out", out},
                                {"architecture", architecture},
                                {"family", std::string(word_of(model.family))},
                                {"tensors", tensors},
                                {"parameters", parameters},
                                {"root", root_hash},
                                {"tokenizer", tokenizer.empty() ? OrderedJson() : OrderedJson(tokenizer)},
                                {"left_out", left_out},
                                {"notes", notes}}) +
         "\n";
}

}  // namespace trainctl
