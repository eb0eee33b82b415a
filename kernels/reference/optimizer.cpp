#include "kernels/reference/reference_backend.h"

namespace trainctl::kernels::reference {

void ReferenceBackend::adamw(Stream&, std::span<const AdamWBox> boxes, const AdamWStep& s) {
  for (const AdamWBox& box : boxes) {
    ENSURE(is_activation(box.param.dtype));
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

void ReferenceBackend::sum_squares(Stream&, std::span<const Matrix> boxes, double* out) {
  for (size_t i = 0; i < boxes.size(); ++i) {
    ENSURE(boxes[i].dtype == DType::f32);
    out[i] = 0;
    for (int64_t r = 0; r < boxes[i].rows; ++r) {
      for (int64_t c = 0; c < boxes[i].cols; ++c) {
        const double x = get(boxes[i], r, c);
        out[i] += x * x;
      }
    }
  }
}

void ReferenceBackend::sum(Stream&, const float* x, int64_t n, double* out) {
  *out = 0;
  for (int64_t i = 0; i < n; ++i) {
    *out += x[i];
  }
}

}  // namespace trainctl::kernels::reference
