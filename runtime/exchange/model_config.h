// config.json: the shape of a model as Hugging Face's transformers 4 and 5 write and read it. One table for
// each family, used in both directions. Pure.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/json.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// The config.json of a model whose tensors are stored as `dtype`. `end_of_text`: the id that begins and ends
/// documents; nullopt: unknown.
std::string model_config_json(const ModelSpec& model, DType dtype, std::optional<int32_t> end_of_text);
/// The generation_config.json for it.
std::string generation_config_json(std::optional<int32_t> end_of_text);

struct ReadConfig {
  ModelSpec model;
  std::vector<std::string> notes;  ///< what trainctl does otherwise, e.g. no dropout
};
/// Reads a config.json of either version. Error(kData), one sentence that names the key, if it describes a
/// model that trainctl cannot compute, or has a key whose meaning trainctl does not know. `file`: for
/// messages. The numbers' ranges are left to the checks of the job spec.
ReadConfig read_model_config(const Json& config, const std::string& file);

/// A field of a model, and its value there and in a config.json, as JSON.
struct ModelDifference {
  std::string field, here, there;
};
/// Where the two compute something else from the same weights; empty: nowhere.
std::vector<ModelDifference> model_differences(const ModelSpec& here, ModelSpec there);

}  // namespace trainctl
