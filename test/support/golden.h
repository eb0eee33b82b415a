// Comparison with the golden files.
#pragma once
#include <string>

#include "ckpt/checkpoint.h"

namespace trainctl::test {

struct WorstTensor {
  double relative = 0;  ///< largest relative (Frobenius) difference over the tensors
  std::string name;
  size_t compared = 0, expected = 0;
};

/// Every tensor of `role` in a checkpoint against a golden safetensors file.
WorstTensor compare_with_golden(const std::string& checkpoint, ckpt::Role role,
                                const std::string& golden_file);

}  // namespace trainctl::test
