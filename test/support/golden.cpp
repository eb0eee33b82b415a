#include "test/support/golden.h"

#include <cmath>

#include "ckpt/safetensors.h"

namespace trainctl::test {
namespace {

double relative_difference(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
    norm += double(want[i]) * want[i];
  }
  return std::sqrt(difference / (norm + 1e-30));
}

}  // namespace

WorstTensor compare_with_golden(const std::string& checkpoint, ckpt::Role role,
                                const std::string& golden_file) {
  FileSystem& fs = real_file_system();
  const auto saved = ckpt::Checkpoint::open(fs, checkpoint);
  const auto golden = ckpt::TensorFolder::open(fs, golden_file);
  WorstTensor worst;
  worst.expected = golden->names().size();
  for (const ckpt::Tensor& t : saved->tensors()) {
    if (t.role != role) continue;
    const std::vector<float> want = golden->read_f32(t.name);
    std::vector<float> got(want.size());
    saved->read(t.name, role, {0, t.shape[0], 0, t.shape.size() == 2 ? t.shape[1] : 1}, got.data());
    const double difference = relative_difference(got, want);
    if (!(difference <= worst.relative)) worst.relative = difference, worst.name = t.name;
    ++worst.compared;
  }
  return worst;
}

}  // namespace trainctl::test
