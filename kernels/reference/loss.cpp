#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {

namespace {

double formed(const LogitForm& form, double logit) {
  return form.cap > 0 ? form.cap * std::tanh(form.scale * logit / form.cap) : form.scale * logit;
}

/// The derivative at a logit whose form is `value`.
double slope_of(const LogitForm& form, double value) {
  return form.cap > 0 ? form.scale * (1.0 - value / form.cap * (value / form.cap)) : form.scale;
}

}  // namespace

void compute(const FormLogits& op) {
  for (int64_t m = 0; m < op.logits.rows; ++m) {
    for (int64_t c = 0; c < op.logits.cols; ++c) {
      put(op.logits, m, c, formed(op.form, get(op.logits, m, c)));
    }
  }
}

void compute(const CrossEntropyStats& op) {
  for (int64_t m = 0; m < op.logits.rows; ++m) {
    float max = -INFINITY;
    for (int64_t c = 0; c < op.logits.cols; ++c) {
      max = std::max(max, float(formed(op.form, get(op.logits, m, c))));
    }
    double sum = 0;
    for (int64_t c = 0; c < op.logits.cols; ++c) {
      sum += std::exp(formed(op.form, get(op.logits, m, c)) - max);
    }
    const int64_t target = op.targets[m] - op.vocab_begin;
    const bool here = op.targets[m] >= 0 && target >= 0 && target < op.logits.cols;
    op.stats[3 * m] = max;
    op.stats[3 * m + 1] = float(sum);
    op.stats[3 * m + 2] = here ? float(formed(op.form, get(op.logits, m, target))) : 0.0f;
  }
}

void compute(const CrossEntropyCombine& op) {
  for (int64_t row = 0; row < op.m; ++row) {
    double max = -INFINITY, sum = 0, target = 0;
    for (int part = 0; part < op.parts; ++part) {
      max = std::max(max, double(op.stats[3 * (part * op.m + row)]));
    }
    for (int part = 0; part < op.parts; ++part) {
      const float* s = op.stats + 3 * (part * op.m + row);
      sum += s[1] * std::exp(s[0] - max);
      target += s[2];
    }
    const double lse = max + std::log(sum);
    const double of_sum = op.z_loss != 0 ? op.z_loss * lse * lse : 0.0;
    op.lse[row] = float(lse);
    op.loss[row] = float((lse - target + of_sum) * (op.weights ? op.weights[row] : 1.0f));
    if (op.targets && op.targets[row] < 0) op.loss[row] = 0;
  }
}

void compute(const CrossEntropyBackward& op) {
  for (int64_t m = 0; m < op.logits.rows; ++m) {
    const int64_t target = op.targets[m] - op.vocab_begin;
    const double of_p = 1.0 + 2.0 * op.z_loss * op.lse[m];
    const double of_row = double(op.scale) * (op.weights ? op.weights[m] : 1.0f);
    for (int64_t c = 0; c < op.logits.cols; ++c) {
      if (op.targets[m] < 0) {
        put(op.logits, m, c, 0);
        continue;
      }
      const double value = formed(op.form, get(op.logits, m, c)), p = std::exp(value - op.lse[m]);
      put(op.logits, m, c, (p * of_p - (c == target ? 1.0 : 0.0)) * of_row * slope_of(op.form, value));
    }
  }
}

}  // namespace trainctl::kernels::reference
