#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

void CpuBackend::gelu_forward(Stream&, Matrix x, Matrix y) {
  check_same(x, y);
  over_elements({x, y}, [&](const Matrix* m) { kernels_.gelu_forward(m[0], m[1]); });
}

void CpuBackend::gelu_backward(Stream&, Matrix x, Matrix dy, Matrix dx) {
  check_same(x, dy);
  check_same(x, dx);
  over_elements({x, dy, dx}, [&](const Matrix* m) { kernels_.gelu_backward(m[0], m[1], m[2]); });
}

void CpuBackend::swiglu_forward(Stream&, Matrix gate, Matrix up, Matrix y) {
  check_same(gate, up);
  check_same(gate, y);
  over_elements({gate, up, y}, [&](const Matrix* m) { kernels_.swiglu_forward(m[0], m[1], m[2]); });
}

void CpuBackend::swiglu_backward(Stream&, Matrix gate, Matrix up, Matrix dy, Matrix dgate, Matrix dup) {
  check_same(gate, up);
  check_same(gate, dy);
  check_same(gate, dgate);
  check_same(gate, dup);
  over_elements({gate, up, dy, dgate, dup},
                [&](const Matrix* m) { kernels_.swiglu_backward(m[0], m[1], m[2], m[3], m[4]); });
}

}  // namespace trainctl::kernels::cpu
