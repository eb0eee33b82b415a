// The selection biases that a checkpoint holds.
#pragma once
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/base/file_system.h"
#include "runtime/model/params.h"
#include "runtime/spec/fields/job.h"

namespace trainctl::test {

/// [layers with biases][experts].
inline std::vector<std::vector<float>> biases_by_layer(const JobSpec& job, const std::string& checkpoint) {
  const auto opened = ckpt::Checkpoint::open(real_file_system(), checkpoint);
  std::vector<std::vector<float>> layers;
  for (const Param& p : parameter_table(job.model, job.optimizer).params) {
    if (p.role != ParamRole::selection_bias) continue;
    std::vector<float>& biases = layers.emplace_back(size_t(p.count()));
    const ckpt::BoxRead read{.name = p.layout.name,
                             .role = ckpt::Role::master,
                             .box = {0, p.layout.rows, 0, 1},
                             .out = biases.data()};
    opened->read_all({&read, 1}, [](uint64_t) {});
  }
  return layers;
}

/// Of all layers, one after another.
inline std::vector<float> biases_in(const JobSpec& job, const std::string& checkpoint) {
  std::vector<float> all;
  for (const std::vector<float>& layer : biases_by_layer(job, checkpoint))
    all.insert(all.end(), layer.begin(), layer.end());
  return all;
}

}  // namespace trainctl::test
