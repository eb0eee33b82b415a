// The ops of the reference backend: plain single-threaded loops with double accumulation that define each op.
// Tests compare the other backends with it.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops.h"

namespace trainctl::kernels::reference {

/// Element (r, c) of a matrix in an activation's dtype.
inline float get(const Matrix& m, int64_t r, int64_t c) {
  const int64_t i = r * m.stride + c;
  return m.dtype == DType::f32   ? m.as<float>()[i]
         : m.dtype == DType::f16 ? float(m.as<f16>()[i])
                                 : float(m.as<bf16>()[i]);
}

/// Stores `value` rounded to the matrix's dtype.
inline void put(const Matrix& m, int64_t r, int64_t c, double value) {
  const int64_t i = r * m.stride + c;
  if (m.dtype == DType::f32) {
    m.as<float>()[i] = float(value);
  } else if (m.dtype == DType::f16) {
    m.as<f16>()[i] = f16(float(value));
  } else {
    m.as<bf16>()[i] = bf16(float(value));
  }
}

/// Weight c of a norm with the offset of its weights. One of 0 changes no bit, not even the sign of a zero.
inline double norm_weight(const auto& op, int64_t c) {
  const double weight = get(op.weight, 0, c);
  return op.weight_offset == 0 ? weight : weight + op.weight_offset;
}

void compute(const FillZero& op);
void compute(const Copy& op);
void compute(const Add& op);
void compute(const TreeSum& op);
void compute(const AddRounded& op);
void compute(const ScaledAdd& op);
void compute(const EmbeddingForward& op);
void compute(const EmbeddingBackward& op);
void compute(const AddPosition& op);
void compute(const AddPositionBackward& op);
void compute(const NormForward& op);
void compute(const NormBackward& op);
void compute(const NormApply& op);
void compute(const GroupNormSums& op);
void compute(const GroupNormApply& op);
void compute(const GroupNormDots& op);
void compute(const GroupNormBackward& op);
void compute(const Pack& op);
void compute(const LinearForward& op);
void compute(const LinearBackwardInput& op);
void compute(const LinearBackwardWeight& op);
void compute(const ActivationForward& op);
void compute(const ActivationBackward& op);
void compute(const GatedForward& op);
void compute(const GatedBackward& op);
void compute(const SigmoidGateForward& op);
void compute(const SigmoidGateBackward& op);
void compute(const Rope& op);
void compute(const AttentionForward& op);
void compute(const AttentionBackward& op);
void compute(const FormLogits& op);
void compute(const HeadScalarBackward& op);
void compute(const CrossEntropyStats& op);
void compute(const CrossEntropyCombine& op);
void compute(const CrossEntropyBackward& op);
void compute(const AdamW& op);
void compute(const Lion& op);
void compute(const Sgd& op);
void compute(const Balance& op);
void compute(const SumSquares& op);
void compute(const Sum& op);
void compute(const Digest& op);
void compute(const Route& op);
void compute(const RouteBackward& op);
void compute(const AddCounts& op);
void compute(const CountMargins& op);
void compute(const SortByExpert& op);
void compute(const TokensOfRanks& op);
void compute(const GatherRows& op);
void compute(const CombineRows& op);
void compute(const ScaleRows& op);
void compute(const ScaleRowsBackward& op);
void compute(const GateRows& op);
void compute(const GateRowsBackward& op);
void compute(const AddExpertBias& op);
void compute(const ExpertBiasBackward& op);
void compute(const ExpertBiasWeights& op);
void compute(const GroupedForward& op);
void compute(const GroupedBackwardInput& op);
void compute(const GroupedBackwardWeight& op);
void compute(const ExpandKeys& op);
void compute(const ExpandKeysBackward& op);
void compute(const Quantize& op);
void compute(const QuantizeWeight& op);
void compute(const QuantizeFp4& op);
/// Ops that a device may fuse.
template <typename O>
  requires requires(const O& op) { op.product(); }
void compute(const O& op) {
  compute(op.product());
  compute(op.activation());
}

}  // namespace trainctl::kernels::reference
