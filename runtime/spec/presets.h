// Known models: the shape behind each value of model.preset. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace trainctl::spec {

struct Preset {
  std::string name, summary;
  int64_t parameters;  ///< distinct weights, tied ones counted once
  std::string model;   ///< JSON of the `model` section
  /// A mesh on which the starter spec fits H100 GPUs of 80 GB; test/runtime/plan_test.cpp holds each to it.
  int tensor = 1, pipeline = 1, data = 1;
  int gpus() const { return tensor * pipeline * data; }
};

/// Smallest first within each family.
const std::vector<Preset>& presets();
const Preset* find_preset(const std::string& name);

}  // namespace trainctl::spec
