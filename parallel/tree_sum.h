// The tree sum for more inputs than one op accepts.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/limits.h"

namespace trainctl::parallel {

/// out[i] = Backend::tree_sum of inputs[0..n)[i] in f32, for any n, with the same bits. May overwrite inputs;
/// `out` may be one of them. `at_once`, a power of two, is the number of inputs of one op. Aligned blocks of
/// that size are whole subtrees, so the tree over their sums is the top of the tree.
inline void tree_sum_of_any(kernels::Backend& backend, kernels::Stream& stream, std::span<float* const> inputs, float* out, int64_t count,
                            size_t at_once = kernels::kTreeSumInputs) {
  std::vector<float*> level(inputs.begin(), inputs.end());
  while (level.size() > at_once) {
    std::vector<float*> sums;
    for (size_t begin = 0; begin < level.size(); begin += at_once) {
      const size_t n = std::min(at_once, level.size() - begin);
      const std::vector<const void*> block(level.begin() + ptrdiff_t(begin), level.begin() + ptrdiff_t(begin + n));
      if (n > 1) backend.tree_sum(stream, block, level[begin], DType::f32, count);
      sums.push_back(level[begin]);
    }
    level = std::move(sums);
  }
  const std::vector<const void*> top(level.begin(), level.end());
  backend.tree_sum(stream, top, out, DType::f32, count);
}

}  // namespace trainctl::parallel
