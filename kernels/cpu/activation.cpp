#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

void CpuBackend::compute(const ActivationForward& op) { over_elements(op, kernels_.activation_forward); }
void CpuBackend::compute(const ActivationBackward& op) { over_elements(op, kernels_.activation_backward); }
void CpuBackend::compute(const GatedForward& op) { over_elements(op, kernels_.gated_forward); }
void CpuBackend::compute(const GatedBackward& op) { over_elements(op, kernels_.gated_backward); }
void CpuBackend::compute(const SigmoidGateForward& op) { over_elements(op, kernels_.sigmoid_gate_forward); }
void CpuBackend::compute(const SigmoidGateBackward& op) { over_elements(op, kernels_.sigmoid_gate_backward); }

}  // namespace trainctl::kernels::cpu
