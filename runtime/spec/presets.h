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
};

/// Smallest first within each family.
const std::vector<Preset>& presets();
const Preset* find_preset(const std::string& name);

}  // namespace trainctl::spec
