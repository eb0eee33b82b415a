#include "kernels/reference/reference_backend.h"

namespace trainctl::kernels::reference {

namespace {
const double kSqrt2OverPi = std::sqrt(2.0 / 3.14159265358979323846);
constexpr double kCubic = 0.044715;

double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }
}  // namespace

void ReferenceBackend::gelu_forward(Stream&, Matrix x, Matrix y) {
  check_same(x, y);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; ++c) {
      const double v = get(x, r, c);
      put(y, r, c, 0.5 * v * (1.0 + std::tanh(kSqrt2OverPi * (v + kCubic * v * v * v))));
    }
  }
}

void ReferenceBackend::gelu_backward(Stream&, Matrix x, Matrix dy, Matrix dx) {
  check_same(x, dy);
  check_same(x, dx);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; ++c) {
      const double v = get(x, r, c);
      const double t = std::tanh(kSqrt2OverPi * (v + kCubic * v * v * v));
      const double inner = kSqrt2OverPi * (1.0 + 3.0 * kCubic * v * v);
      put(dx, r, c, get(dy, r, c) * (0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * inner));
    }
  }
}

void ReferenceBackend::swiglu_forward(Stream&, Matrix gate, Matrix up, Matrix y) {
  check_same(gate, up);
  check_same(gate, y);
  for (int64_t r = 0; r < y.rows; ++r) {
    for (int64_t c = 0; c < y.cols; ++c) {
      const double z = get(gate, r, c);
      put(y, r, c, z * sigmoid(z) * get(up, r, c));
    }
  }
}

void ReferenceBackend::swiglu_backward(Stream&, Matrix gate, Matrix up, Matrix dy, Matrix dgate, Matrix dup) {
  check_same(gate, up);
  check_same(gate, dy);
  check_same(gate, dgate);
  check_same(gate, dup);
  for (int64_t r = 0; r < dy.rows; ++r) {
    for (int64_t c = 0; c < dy.cols; ++c) {
      const double z = get(gate, r, c), u = get(up, r, c), d = get(dy, r, c), s = sigmoid(z);
      put(dgate, r, c, d * u * s * (1.0 + z * (1.0 - s)));
      put(dup, r, c, d * z * s);
    }
  }
}

}  // namespace trainctl::kernels::reference
