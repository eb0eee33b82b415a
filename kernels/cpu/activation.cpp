#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

void CpuBackend::compute(const GeluForward& op) { over_elements(op, kernels_.gelu_forward); }
void CpuBackend::compute(const GeluBackward& op) { over_elements(op, kernels_.gelu_backward); }
void CpuBackend::compute(const SwigluForward& op) { over_elements(op, kernels_.swiglu_forward); }
void CpuBackend::compute(const SwigluBackward& op) { over_elements(op, kernels_.swiglu_backward); }

}  // namespace trainctl::kernels::cpu
