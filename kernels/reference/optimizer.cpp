#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {

void compute(const AdamW& op) {
  const AdamWStep& s = op.step;
  for (const UpdateBox& box : op.boxes) {
    for (int64_t r = 0; r < box.param.rows; ++r) {
      for (int64_t c = 0; c < box.param.cols; ++c) {
        const int64_t i = r * box.param.cols + c;
        const float g = box.grad[r * box.grad_stride + c] * s.grad_scale;
        const float m = s.beta1 * box.first_moment[i] + (1.0f - s.beta1) * g;
        const float v = s.beta2 * box.second_moment[i] + (1.0f - s.beta2) * (g * g);
        float w = box.master[i];
        w = w - (s.lr * box.weight_decay) * w;
        w = w - (s.lr * (m / s.bias_correction1)) / (std::sqrt(v / s.bias_correction2) + s.eps);
        box.first_moment[i] = m;
        box.second_moment[i] = v;
        box.master[i] = w;
        put(box.param, r, c, w);
      }
    }
  }
}

void compute(const Lion& op) {
  const LionStep& s = op.step;
  for (const UpdateBox& box : op.boxes) {
    for (int64_t r = 0; r < box.param.rows; ++r) {
      for (int64_t c = 0; c < box.param.cols; ++c) {
        const int64_t i = r * box.param.cols + c;
        const float g = box.grad[r * box.grad_stride + c] * s.grad_scale;
        const float direction = s.beta1 * box.first_moment[i] + (1.0f - s.beta1) * g;
        const float u = direction > 0 ? 1.0f : direction < 0 ? -1.0f : 0.0f;
        float w = box.master[i];
        w = w - (s.lr * box.weight_decay) * w;
        w = w - s.lr * u;
        box.first_moment[i] = s.beta2 * box.first_moment[i] + (1.0f - s.beta2) * g;
        box.master[i] = w;
        put(box.param, r, c, w);
      }
    }
  }
}

void compute(const Sgd& op) {
  const SgdStep& s = op.step;
  for (const UpdateBox& box : op.boxes) {
    for (int64_t r = 0; r < box.param.rows; ++r) {
      for (int64_t c = 0; c < box.param.cols; ++c) {
        const int64_t i = r * box.param.cols + c;
        const float g = box.grad[r * box.grad_stride + c] * s.grad_scale;
        const float m = s.momentum * box.first_moment[i] + g;
        float w = box.master[i];
        w = w - (s.lr * box.weight_decay) * w;
        w = w - s.lr * m;
        box.first_moment[i] = m;
        box.master[i] = w;
        put(box.param, r, c, w);
      }
    }
  }
}

void compute(const SumSquares& op) {
  for (size_t i = 0; i < op.boxes.size(); ++i) {
    op.out[i] = 0;
    for (int64_t r = 0; r < op.boxes[i].rows; ++r) {
      for (int64_t c = 0; c < op.boxes[i].cols; ++c) {
        const double x = get(op.boxes[i], r, c);
        op.out[i] += x * x;
      }
    }
  }
}

void compute(const Sum& op) {
  *op.out = 0;
  for (int64_t i = 0; i < op.n; ++i) {
    *op.out += op.x[i];
  }
}

}  // namespace trainctl::kernels::reference
