// The vectorised kernels of one instruction set. Each source in this folder is compiled for x86-64-v2, v3 and
// v4. The backend chooses one table when it is made. Every function runs its whole op on the calling thread;
// callers divide the work.
#pragma once
#include "kernels/ops.h"
#include "kernels/weight_rounding.h"

namespace trainctl::kernels::cpu {

/// One task of an attention call: the sequence, the head, and the rows of queries.
struct AttentionTask {
  int64_t batch = 0, head = 0;          ///< backward: head is the key/value head
  int64_t first_query = 0, queries = 0; ///< forward only; at most kQueryBlock
};
constexpr int64_t kQueryBlock = 64;
constexpr int64_t kKeyBlock = 64;
constexpr int64_t kColumnSums = 256;

/// `count` matrices of out's size in f32, one part_size numbers behind the other.
struct PartialSums {
  const float* parts = nullptr;
  int64_t count = 0, part_size = 0;
  int64_t stride = 0;  ///< of the rows of each
  Matrix out;
  bool accumulate = false;
};

/// 16 rows at most of an operand of QuantizeFp4, from its row `first` on.
struct Fp4Band {
  Matrix x, y;
  Fp8Groups groups = Fp8Groups::rows;
  bool mixes = false;
  uint32_t signs = 0;
  float power = 1;  ///< of two, of the operand
  bool draws = false;
  RoundingKey key = {};
  int64_t first = 0;
};

struct KernelTable {
  void (*copy)(const Copy&);
  void (*add)(const Add&);  ///< any two activation dtypes; sum in f32, rounded once
  /// dst = scale * src, dst += scale * src; any two activation dtypes, in f32, rounded once to dst's.
  void (*scaled_copy)(const Copy&, float scale);
  void (*add_times)(const Add&, float scale);
  void (*combine_rows)(const CombineRows&);
  /// Computes out[begin, begin + n) of the balanced tree sum.
  void (*tree_sum)(const void* const* inputs, size_t input_count, void* out, DType dtype, int64_t begin, int64_t n);
  /// out (+)= their sum, in order in f32, rounded once.
  void (*sum_parts)(const PartialSums&);
  void (*add_rounded)(const AddRounded&);
  void (*scaled_add)(const ScaledAdd&);
  void (*norm_forward)(const NormForward&);
  void (*norm_apply)(const NormApply&);
  /// Overwrites dweight and dbias, which are not empty, with the sums over the rows of x.
  void (*norm_backward)(const NormBackward&);
  void (*group_norm_sums)(const GroupNormSums&);
  void (*group_norm_apply)(const GroupNormApply&);
  void (*group_norm_dots)(const GroupNormDots&);
  /// Overwrites dweight with the sums over the rows of x.
  void (*group_norm_backward)(const GroupNormBackward&);
  /// out[c] (+)= sum over rows, in blocks of fixed height.   x.cols <= kColumnSums
  void (*column_sums)(const Matrix& x, float* out, bool accumulate);
  void (*activation_forward)(const ActivationForward&);
  void (*activation_backward)(const ActivationBackward&);
  void (*gated_forward)(const GatedForward&);
  void (*gated_backward)(const GatedBackward&);
  void (*sigmoid_gate_forward)(const SigmoidGateForward&);
  void (*sigmoid_gate_backward)(const SigmoidGateBackward&);
  /// Row r of x has position (first_position + r) mod seq_len.
  void (*rope)(const Rope&, int64_t first_position);
  void (*attention_forward)(const AttentionForward&, const AttentionTask&, float* scratch);
  void (*attention_backward)(const AttentionBackward&, const AttentionTask&, float* scratch);
  /// sums[h] = of `count` rows from `first` on.
  void (*head_scalar_sums)(const HeadScalarBackward&, int64_t first, int64_t count, float* sums);
  size_t (*attention_scratch_floats)(const AttentionShape&, bool backward);
  void (*form_logits)(const FormLogits&);
  void (*cross_entropy_stats)(const CrossEntropyStats&);
  void (*cross_entropy_backward)(const CrossEntropyBackward&);
  // With moments in f32.
  void (*adamw)(const UpdateBox& box, const AdamWStep& step);
  void (*lion)(const UpdateBox& box, const LionStep& step);
  void (*sgd)(const UpdateBox& box, const SgdStep& step);
  // A block of moments in bf16 or int8, to and from kMomentBlock floats; those from block.n on have no
  // meaning.
  void (*read_moments)(const MomentBlock& block, float* out);
  void (*write_moments)(const MomentBlock& block, float* values, uint32_t update);
  // Rounds n weights at random, of a parameter's elements with this key from `index` on, and reads bf16.
  void (*round_weights)(const float* values, int64_t n, const RoundingKey& key, uint32_t index, bf16* out);
  void (*widen_weights)(const bf16* values, int64_t n, float* out);
  double (*sum_squares)(const Matrix& x);
  uint64_t (*digest)(const DigestBox& box);
  float (*largest_finite)(const Matrix& x);  ///< of sizes; 0: none
  void (*quantize_group)(const Quantize&, float largest);
  void (*quantize_rows)(const Quantize&);
  void (*quantize_columns)(const Quantize&);  ///< of one group of each column
  float (*fp4_largest)(const Fp4Band&);       ///< finite size of what products see, where it is not rounded
  void (*fp4_round)(const Fp4Band&);
};

namespace v2 {
extern const KernelTable kTable;
}
namespace v3 {
extern const KernelTable kTable;
}
namespace v4 {
extern const KernelTable kTable;
}

}  // namespace trainctl::kernels::cpu
