#include <cstring>

#include "kernels/reference/compute.h"
#include "kernels/weight_rounding.h"

namespace trainctl::kernels::reference {

namespace {

bf16 rounded(const UpdateBox& box, int64_t row, int64_t col, float w, uint32_t number) {
  const auto index = uint64_t(box.first + row * box.row_step + col);
  return rounded_weight(w, weight_noise(rounding_key(box.rounding, number, index), uint32_t(index)));
}

/// rule(w, m, v, g): the new master weight and moments of one element; v means nothing where the rule keeps
/// one moment.
template <typename Rule>
void update(const UpdateBox& box, float grad_scale, float decay, uint32_t number, Rule rule) {
  const int64_t cols = box.param.cols, count = box.param.count();
  float m[kMomentBlock], v[kMomentBlock];
  for (int64_t begin = 0; begin < count; begin += kMomentBlock) {
    const int64_t n = std::min(kMomentBlock, count - begin);
    const MomentBlock first{box.first_moment, box.first_scales, box.moments, {.has_sign = true}, begin, n};
    const MomentBlock second{
        box.second_moment, box.second_scales, box.moments, {.has_sign = false}, begin, n};
    first.read(m);
    if (box.second_moment) second.read(v);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t r = (begin + i) / cols, c = (begin + i) % cols;
      const float g = box.grad[r * box.grad_stride + c] * grad_scale;
      float own = box.master ? 0.0f : get(box.param, r, c);
      float& w = box.master ? box.master[begin + i] : own;
      w = rule(w, decay * w, m[i], v[i], g);
      if (box.master || box.param.dtype == DType::f32)
        put(box.param, r, c, w);
      else
        box.param.as<bf16>()[r * box.param.stride + c] = rounded(box, r, c, w, number);
    }
    first.write(m, number);
    if (box.second_moment) second.write(v, number);
  }
}

}  // namespace

void compute(const AdamW& op) {
  const AdamWStep& s = op.step;
  for (const UpdateBox& box : op.boxes) {
    const float lr = s.lr * box.lr_scale;
    update(box, s.grad_scale, lr * box.weight_decay, s.update,
           [&](float w, float decayed, float& m, float& v, float g) {
             m = s.beta1 * m + (1.0f - s.beta1) * g;
             v = s.beta2 * v + (1.0f - s.beta2) * (g * g);
             w = w - decayed;
             return w - (lr * (m / s.bias_correction1)) / (std::sqrt(v / s.bias_correction2) + s.eps);
           });
  }
}

void compute(const Lion& op) {
  const LionStep& s = op.step;
  for (const UpdateBox& box : op.boxes) {
    const float lr = s.lr * box.lr_scale;
    update(box, s.grad_scale, lr * box.weight_decay, s.update,
           [&](float w, float decayed, float& m, float&, float g) {
             const float direction = s.beta1 * m + (1.0f - s.beta1) * g;
             const float u = direction > 0 ? 1.0f : direction < 0 ? -1.0f : 0.0f;
             m = s.beta2 * m + (1.0f - s.beta2) * g;
             w = w - decayed;
             return w - lr * u;
           });
  }
}

void compute(const Sgd& op) {
  const SgdStep& s = op.step;
  for (const UpdateBox& box : op.boxes) {
    const float lr = s.lr * box.lr_scale;
    update(box, s.grad_scale, lr * box.weight_decay, s.update,
           [&](float w, float decayed, float& m, float&, float g) {
             m = s.momentum * m + g;
             w = w - decayed;
             return w - lr * m;
           });
  }
}

void compute(const Balance& op) {
  for (const UpdateBox& box : op.boxes)
    for (int64_t r = 0; r < box.param.rows; ++r)
      for (int64_t c = 0; c < box.param.cols; ++c) {
        float& w = box.master[r * box.param.cols + c];
        w = w + balance_change(op.step, box.grad[r * box.grad_stride + c]);
        put(box.param, r, c, w);
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

void compute(const Digest& op) {
  for (size_t i = 0; i < op.boxes.size(); ++i) {
    const auto& [data, tensor, first, row_step] = op.boxes[i];
    const size_t size = size_of(data.dtype);
    op.out[i] = 0;
    for (int64_t r = 0; r < data.rows; ++r)
      for (int64_t c = 0; c < data.cols; ++c) {
        uint32_t bits = 0;
        std::memcpy(&bits, static_cast<const char*>(data.data) + size_t(r * data.stride + c) * size, size);
        op.out[i] += digest_element(digest_row(tensor, first + r * row_step), c, bits);
      }
  }
}

}  // namespace trainctl::kernels::reference
