// A Hugging Face folder with random weights, written by the test alone: names, shapes and layout as
// transformers' save_pretrained writes them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"

namespace trainctl::test {

struct HubTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;  ///< as bf16 keeps them, if the folder is in bf16
  bool operator==(const HubTensor&) const = default;
};

/// The model that a test changes before it is written.
struct HubModel {
  Json config;
  std::map<std::string, HubTensor> tensors;
};
HubModel gpt2_model(bool tied);
HubModel llama_model(bool tied);

/// Writes config.json and `files` files of tensors, with an index if there are several.
void write_hub_folder(FileSystem& fs, const std::string& folder, const HubModel& model, DType dtype,
                      size_t files = 1);

/// The bytes of every tensor of a folder by name, read by the test alone; CHECKs that the dtype is `dtype`.
std::map<std::string, std::pair<std::vector<int64_t>, std::string>> tensors_of(FileSystem& fs,
                                                                               const std::string& folder,
                                                                               const std::string& dtype);

}  // namespace trainctl::test
