#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {

namespace {
const double kSqrt2OverPi = std::sqrt(2.0 / 3.14159265358979323846);
constexpr double kCubic = 0.044715;

double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }
}  // namespace

void compute(const GeluForward& op) {
  for (int64_t r = 0; r < op.x.rows; ++r) {
    for (int64_t c = 0; c < op.x.cols; ++c) {
      const double v = get(op.x, r, c);
      put(op.y, r, c, 0.5 * v * (1.0 + std::tanh(kSqrt2OverPi * (v + kCubic * v * v * v))));
    }
  }
}

void compute(const GeluBackward& op) {
  for (int64_t r = 0; r < op.x.rows; ++r) {
    for (int64_t c = 0; c < op.x.cols; ++c) {
      const double v = get(op.x, r, c);
      const double t = std::tanh(kSqrt2OverPi * (v + kCubic * v * v * v));
      const double inner = kSqrt2OverPi * (1.0 + 3.0 * kCubic * v * v);
      put(op.dx, r, c, get(op.dy, r, c) * (0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * inner));
    }
  }
}

void compute(const SwigluForward& op) {
  for (int64_t r = 0; r < op.y.rows; ++r) {
    for (int64_t c = 0; c < op.y.cols; ++c) {
      const double z = get(op.gate, r, c);
      put(op.y, r, c, z * sigmoid(z) * get(op.up, r, c));
    }
  }
}

void compute(const SwigluBackward& op) {
  for (int64_t r = 0; r < op.dy.rows; ++r) {
    for (int64_t c = 0; c < op.dy.cols; ++c) {
      const double z = get(op.gate, r, c), u = get(op.up, r, c), d = get(op.dy, r, c), s = sigmoid(z);
      put(op.dgate, r, c, d * u * s * (1.0 + z * (1.0 - s)));
      put(op.dup, r, c, d * z * s);
    }
  }
}

}  // namespace trainctl::kernels::reference
