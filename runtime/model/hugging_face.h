// The names and layouts under which Hugging Face's transformers keep a model: one row for each family, used
// in both directions (model.init.from, `import`, `export`).
//
// A parameter's own name (params.h) is the one of the Hub. transformers put the family's prefix before it,
// except before the head's; a folder may have the names with the prefix or without it.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/safetensors.h"
#include "runtime/model/params.h"

namespace trainctl {

/// A family as transformers know it.
struct HuggingFaceFamily {
  std::string_view model_type, architecture;
  std::string_view prefix;  ///< of the base model in front of every name but the head's; "": none
  bool transposed;          ///< linear weights are stored as [in, out] (Conv1D), not [out, in]
  /// Ends of the names of tensors that are no parameters: buffers of older versions.
  std::span<const std::string_view> buffers;
  /// The weights of all experts of a layer are one tensor, and so are their biases (gpt-oss).
  bool joins_experts = false;
  /// Behind the last layer there may be others, which predict further tokens: modules of multi-token
  /// prediction, with copies of the embedding and the head.
  bool predicts_further = false;
  std::string_view other_type = "";  ///< a model_type under which files have the same class
  /// Its class computes with float32 weights and selection biases of routers in a model of bfloat16
  /// (_keep_in_fp32_modules_strict): an expert's rank may turn on their last bits.
  bool routes_in_f32 = false;
};
const HuggingFaceFamily& hugging_face(Family family);

/// Where and how a file keeps a parameter.
struct StoredParam {
  std::string name;
  std::vector<int64_t> shape;
  bool transposed = false;
  /// Of a tensor [experts, ...] of several parameters: element (row, col) of this one is number col * width +
  /// first + row * step of those of its expert. A file has a line of `width` numbers for each col.
  struct Part {
    int64_t expert = 0, lines = 0, width = 0, first = 0, step = 1;
  };
  std::optional<Part> part;
};

/// As transformers save it (save_pretrained), which every version loads.
StoredParam stored_param(const ParamTable& table, const Param& param);

/// Of its numbers in files of a model in `dtype`.
DType stored_dtype(const ParamTable& table, const Param& param, DType dtype);

/// The copies of the embedding and the head that files have of a module: a parameter each, and its other name.
std::vector<std::pair<int, std::string>> module_copies(const ParamTable& table);

/// Finds the parameters of a model in a folder that transformers, or an export, have written.
class StoredModel {
 public:
  /// `what`: the folder in messages, e.g. "model.init.from". Both outlive it.
  StoredModel(const ParamTable& table, ckpt::TensorFolder& folder, std::string what);
  /// The place of a parameter. Error(kCheckpoint) if the folder does not have it, or in another shape.
  StoredParam find(const Param& param) const;
  /// Reads a box of the parameter into out [box.count()], as [out, in]; holds a few MiB at a time.
  void read(const StoredParam& stored, const parallel::Box& box, float* out);
  /// What the folder holds besides.
  struct Others {
    std::vector<std::string> buffers;  ///< that may be left out
    std::vector<std::string> unknown;
    std::string tied_head;  ///< a head of its own, though the head is the embedding; "" without
    /// module_copies: the tensor and its copy.
    std::vector<std::pair<std::string, std::string>> copies;
    /// Parameters under two names.
    std::vector<std::pair<std::string, std::string>> twice;
  };
  Others others() const;

 private:
  void read_part(const StoredParam& stored, const parallel::Box& box, float* out);

  const ParamTable& table_;
  ckpt::TensorFolder& folder_;
  std::string what_, prefix_;
  bool transposed_ = false;
};

}  // namespace trainctl
