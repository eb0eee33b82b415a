#include "runtime/exchange/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/exchange/folder_model.h"
#include "runtime/exchange/new_folder.h"
#include "runtime/model/hugging_face.h"
#include "runtime/model/stage_uses.h"

namespace trainctl {
namespace {

/// Weights that are held at a time, in bytes (or one chunk, if that is more).
constexpr int64_t kHeldBytes = int64_t(128) << 20;
[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kCheckpoint, message); }

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
      for (const parallel::StateRow& row : param.states) {
        if (!row.saved) continue;
        const bool is_weight = row.role == ckpt::Role::master;
        ENSURE(!is_weight || row.dtype == DType::f32);  // by default, as all of FolderModel::job
        chunks.push_back({tensor++, chunk.box, is_weight ? values.back().data() : zeros.data()});
      }
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

ImportReport import_folder(FileSystem& fs, const ImportRequest& request) {
  FolderModel model(fs, request.from, request.takes_tokenizer);
  const ParsedJob& job = model.job;
  const ParamTable& table = model.table;
  ImportReport report{.from = model.path,
                      .model = job.job.model,
                      .architecture = std::string(hugging_face(job.job.model.family).architecture),
                      .tensors = table.params.size(),
                      .parameters = uint64_t(table.total_count()),
                      .tokenizer = model.tokenizer.text(),
                      .left_out = model.left_out,
                      .notes = model.notes};
  report.out = folder_name(request.out);
  make_new_folder(fs, request.out, [&](const std::string& partial) {
    const ckpt::StateInfo info = state_of(job, model.path);
    StateWriter writer(fs, partial, info, table, chunk_grids(table, job.job.checkpoint.chunk_mib),
                       *model.stored);
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
