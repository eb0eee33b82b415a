// `trainctl export`: the weights of a checkpoint as a folder that Hugging Face's transformers load.
//
//     DIR/model.safetensors                    one file, or
//         model-00001-of-00004.safetensors ... several, with model.safetensors.index.json
//         config.json generation_config.json   with the fields of transformers 4 and 5
//         tokenizer files                      if the tokenizer is known (runtime/exchange/tokenizer_files.h)
//
// Memory: two pieces of a tensor and some buffers (150 MiB), whatever the size of the model; --check-forward
// holds the whole model as training does, about 20 bytes a parameter. The folder is read again before it gets
// its name (runtime/exchange/new_folder.h).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "data/tokenizer_choice.h"
#include "runtime/model/hugging_face.h"

namespace trainctl {

/// A tensor of the export and the file that holds it.
struct ExportTensor {
  int param = 0;  ///< index into ParamTable::params
  StoredParam stored;
  DType dtype = DType::f32;
  uint64_t bytes = 0;
  /// Of a tensor of all experts: its parameters; those of one expert lie one after another, in the order of
  /// experts.
  std::vector<int> joined = {};
};
struct ExportFile {
  std::string name;
  std::vector<ExportTensor> tensors;
  uint64_t bytes = 0;  ///< of the tensors
};
/// The files of an export: tensors in the order of the table, as many as `most_bytes` allows in each, at
/// least one. Pure.
std::vector<ExportFile> export_files(const ParamTable& table, DType dtype, uint64_t most_bytes);
/// model.safetensors.index.json. Pure.
std::string export_index_json(const std::vector<ExportFile>& files);

struct ExportRequest {
  std::string checkpoint, out;
  DType dtype = DType::bf16;  ///< f32 or bf16
  uint64_t shard_bytes = 5'000'000'000;
  bool averages = false;            ///< --ema: the averages of the weights instead of them
  int64_t check_tokens = 0;         ///< --check-forward; 0: no check
  data::TokenizerChoice tokenizer;  ///< none: the one of the run
  int threads = 1;
};

/// The result of --check-forward, in logits.
struct ForwardCheck {
  int64_t tokens = 0;
  double largest = 0;      ///< the largest absolute difference to the checkpoint's weights as `dtype`
  double from_master = 0;  ///< likewise to the checkpoint's own weights
};

struct ExportReport {
  std::string out;
  int64_t step = 0;
  Family family = Family::gpt2;
  DType dtype = DType::bf16;
  std::vector<std::string> files;  ///< all of the folder, sorted
  uint64_t tensors = 0, shards = 0, bytes = 0;
  int64_t modules_left_out = 0;  ///< of multi-token prediction, which the family's files do not have
  double largest_rounding = 0;  ///< the largest absolute difference of a weight to its float32 value
  std::string tokenizer;        ///< "": none is known
  std::optional<ForwardCheck> forward;
  std::string text() const;
  std::string to_json() const;
};

/// Error(kUsage): `out` is not free. Error(kCheckpoint): the checkpoint is damaged, or the written folder
/// does not read back. Error(kData): the tokenizer does not fit. Error(kIo): e.g. the disk is full. After
/// an Error nothing is left.
ExportReport export_checkpoint(FileSystem& fs, const ExportRequest& request);

}  // namespace trainctl
