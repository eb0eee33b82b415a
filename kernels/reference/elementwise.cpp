#include <cstring>

#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {

void compute(const FillZero& op) { std::memset(op.data, 0, op.size); }

void compute(const Copy& op) {
  for (int64_t r = 0; r < op.src.rows; ++r) {
    for (int64_t c = 0; c < op.src.cols; ++c) {
      put(op.dst, r, c, get(op.src, r, c));
    }
  }
}

void compute(const Add& op) {
  for (int64_t r = 0; r < op.src.rows; ++r) {
    for (int64_t c = 0; c < op.src.cols; ++c) {
      put(op.dst, r, c, get(op.dst, r, c) + get(op.src, r, c));
    }
  }
}

void compute(const TreeSum& op) {
  const Matrix result = vector(op.out, op.dtype, op.count);
  std::vector<float> level(op.inputs.size());
  for (int64_t i = 0; i < op.count; ++i) {
    for (size_t j = 0; j < op.inputs.size(); ++j) {
      level[j] = get(vector(const_cast<void*>(op.inputs[j]), op.dtype, op.count), 0, i);
    }
    for (size_t width = op.inputs.size(); width > 1; width = (width + 1) / 2) {
      for (size_t j = 0; j < width / 2; ++j) {
        level[j] = level[2 * j] + level[2 * j + 1];
      }
      if (width % 2 == 1) {
        level[width / 2] = level[width - 1];
      }
    }
    put(result, 0, i, level[0]);
  }
}

void compute(const AddRounded& op) {
  for (int64_t r = 0; r < op.out.rows; ++r) {
    for (int64_t c = 0; c < op.out.cols; ++c) {
      put(op.out, r, c, float(bf16(get(op.left, r, c))) + float(bf16(get(op.right, r, c))));
    }
  }
}

void compute(const ScaledAdd& op) {
  for (int64_t r = 0; r < op.out.rows; ++r) {
    for (int64_t c = 0; c < op.out.cols; ++c) {
      const float scaled = op.alpha * get(op.x, r, c);
      put(op.out, r, c, op.beta == 0 ? scaled : scaled + op.beta * get(op.out, r, c));
    }
  }
}

}  // namespace trainctl::kernels::reference
