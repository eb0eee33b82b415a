// A model in Hugging Face's form: a folder with config.json and safetensors, as import takes it and as sample
// and eval run it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/safetensors.h"
#include "data/tokenizer_choice.h"
#include "runtime/base/file_system.h"
#include "runtime/model/hugging_face.h"
#include "runtime/spec/parse.h"
#include "runtime/train/generate/trained_model.h"

namespace trainctl {

struct ReadConfig;
/// Takes the modules of multi-token prediction out of a model whose folder does not have them, as
/// transformers save it, and notes it.
void leave_out_missing_modules(ReadConfig& config, ckpt::TensorFolder& folder);

/// A folder whose tensors are those of the model that its config.json describes.
struct FolderModel {
  /// Error(kUsage): `name` is no folder. Error(kData): config.json or the tokenizer is unknown, by the name
  /// of the part. Error(kCheckpoint): tensors are missing, unknown or under two names. `takes_tokenizer`:
  /// false: the folder's tokenizer is not looked at.
  FolderModel(FileSystem& fs, const std::string& name, bool takes_tokenizer);
  FolderModel(const FolderModel&) = delete;

  std::string path;
  ParsedJob job;  ///< the model and the tokenizer; the rest is the default
  data::TokenizerChoice tokenizer;
  ParamTable table;
  std::unique_ptr<ckpt::TensorFolder> tensors;
  std::optional<StoredModel> stored;  ///< refers to the two above
  std::vector<std::string> left_out;  ///< tensors of the folder that are no parameters
  std::vector<std::string> notes;
};

/// The model of a folder, to be run as it lies there. Errors as above.
TrainedModel folder_model(FileSystem& fs, const std::string& name, bool takes_tokenizer);

}  // namespace trainctl
