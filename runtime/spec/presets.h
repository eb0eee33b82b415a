// The presets: known models, each with the shape for model.preset. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/spec/fields/job.h"

namespace trainctl::spec {

struct Preset {
  std::string name;
  Family family;
  std::string summary;
  int64_t parameters;  ///< number of weights; tied weights count once
  std::string shape;   ///< JSON of the `model` section without the family
  /// A mesh on which the starter spec fits into H100 GPUs with 80 GB. test/runtime/plan/plan_test.cpp checks it.
  int tensor = 1, pipeline = 1, data = 1;
  /// JSON of the `model` section.
  std::string model_json() const;
  int gpus() const { return tensor * pipeline * data; }
};

/// All presets, by family and then by size, smallest first.
const std::vector<Preset>& presets();
const Preset* find_preset(const std::string& name);

}  // namespace trainctl::spec
