// The ops as CUDA kernels. Each function enqueues kernels on a queue; it checks no shape and allocates
// nothing. kernels/ops.h has the formulas, shapes and rules. CudaBackend checks arguments and provides
// scratch memory: scratch_bytes(op), where an op needs some. All kernels are deterministic: they use no float
// atomics, and no sum depends on the number of multiprocessors.
#pragma once
#include <span>
#include <vector>

#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/scratch.h"
#include "kernels/limits.h"
#include "kernels/ops.h"

namespace trainctl::kernels::cuda {

/// Whether there is nothing to compute.
inline bool is_empty(const auto& op) { return op.cost_shape().m * op.cost_shape().n == 0; }

// elementwise.cu
void enqueue(const Queue&, const Copy&);
void enqueue(const Queue&, const Add&);
/// The largest number of inputs of TreeSum.
constexpr int kMostTreeInputs = 2048;
void enqueue(const Queue&, const TreeSum&);
void enqueue(const Queue&, const AddRounded&);
void enqueue(const Queue&, const ScaledAdd&);

// embedding.cu
void enqueue(const Queue&, const EmbeddingForward&);
void enqueue(const Queue&, const EmbeddingBackward&, void* scratch);
inline size_t scratch_bytes(const EmbeddingBackward& op) { return embedding_backward_scratch(op.dout.rows); }
void enqueue(const Queue&, const AddPosition&);
/// By positions it is the gradient of an embedding: EmbeddingBackward.
void enqueue(const Queue&, const AddPositionBackward&);

// norm.cu, norm_backward.cu
void enqueue(const Queue&, const NormForward&);
void enqueue(const Queue&, const NormBackward&, void* scratch);
inline size_t scratch_bytes(const NormBackward& op) { return norm_backward_scratch(op.x.rows, op.x.cols); }
void enqueue(const Queue&, const NormApply&);

// group_norm.cu
void enqueue(const Queue&, const GroupNormSums&);
void enqueue(const Queue&, const GroupNormApply&);
void enqueue(const Queue&, const GroupNormDots&);
void enqueue(const Queue&, const GroupNormBackward&, void* scratch);
inline size_t scratch_bytes(const GroupNormBackward& op) {
  return group_norm_backward_scratch(op.x.rows, op.x.cols, op.group);
}

// activation.cu
void enqueue(const Queue&, const ActivationForward&);
void enqueue(const Queue&, const ActivationBackward&);
void enqueue(const Queue&, const GatedForward&);
void enqueue(const Queue&, const GatedBackward&);
void enqueue(const Queue&, const SigmoidGateForward&);
void enqueue(const Queue&, const SigmoidGateBackward&);

// rope.cu
void enqueue(const Queue&, const Rope&);

// attention.cu, attention_backward.cu: tensor cores for bf16 with head dimensions 64 and 128; plain kernels
// for everything else up to kMostHeadDim. Tiles: attention_tiles.h.
static_assert(kMostHeadDim == kMostPlainDim);
void enqueue(const Queue&, const AttentionForward&);
void enqueue(const Queue&, const AttentionBackward&, void* scratch);
inline size_t scratch_bytes(const AttentionBackward& op) { return attention_backward_scratch(op.shape); }
// attention_scalars.cu
void enqueue(const Queue&, const HeadScalarBackward&, void* scratch);
inline size_t scratch_bytes(const HeadScalarBackward& op) {
  return head_scalar_scratch(op.left().rows, op.heads());
}

// moe.cu
void enqueue(const Queue&, const Route&);
void enqueue(const Queue&, const RouteBackward&);
void enqueue(const Queue&, const AddCounts&);
void enqueue(const Queue&, const SortByExpert&);
// moe_ranks.cu
void enqueue(const Queue&, const TokensOfRanks&);
// margins.cu
void enqueue(const Queue&, const CountMargins&);
// moe_rows.cu
void enqueue(const Queue&, const GatherRows&);
void enqueue(const Queue&, const CombineRows&);
void enqueue(const Queue&, const ScaleRows&);
void enqueue(const Queue&, const ScaleRowsBackward&);
void enqueue(const Queue&, const GateRows&);
void enqueue(const Queue&, const GateRowsBackward&);
void enqueue(const Queue&, const AddExpertBias&);
void enqueue(const Queue&, const ExpertBiasBackward&);
void enqueue(const Queue&, const ExpertBiasWeights&);
// fp8.cu
void enqueue(const Queue&, const Quantize&);
void enqueue(const Queue&, const QuantizeWeight&);
/// Throws: NVFP4 is for study on CPUs (fp4.cpp).
void enqueue(const Queue&, const QuantizeFp4&);
// moe.cu
/// w: the experts' weights as one matrix.
void grouped_forward(const Queue&, const GroupedForward&, const Matrix& w);
void grouped_backward_input(const Queue&, const GroupedBackwardInput&, const Matrix& w);
void enqueue(const Queue&, const GroupedBackwardWeight&);

// latent.cu
void enqueue(const Queue&, const ExpandKeys&);
void enqueue(const Queue&, const ExpandKeysBackward&);

// loss.cu
void enqueue(const Queue&, const FormLogits&);
void enqueue(const Queue&, const CrossEntropyStats&);
void enqueue(const Queue&, const CrossEntropyCombine&);
void enqueue(const Queue&, const CrossEntropyBackward&);

// matmul.cu: bias gradients, which the library's products do not compute.
/// dbias (+)= column sums of dy [M, N] f32 or bf16.
void column_sum(const Queue&, Matrix dy, Matrix dbias, bool accumulate, void* scratch);

// optimizer.cu. Boxes of any shape are cut into tiles of about equal size. The host makes a table of tiles
// once; the table stays in device memory while the boxes do not change.
struct Tile {
  int32_t box = 0;
  int32_t rows = 0, cols = 0;      ///< size of the tile
  int64_t row = 0, col = 0;        ///< its first row and column in the box
};
/// The tiles of the boxes, in order. They depend only on the sizes of the boxes. Pure.
std::vector<Tile> tiles_of(std::span<const Matrix> boxes);
/// All boxes have their moments in one format; but for f32 the tiles are those of block_shape of each box.
void adamw(const Queue&, const UpdateBox* device_boxes, const Tile* device_tiles, int64_t tiles, Moments,
           const AdamWStep& step);
void lion(const Queue&, const UpdateBox* device_boxes, const Tile* device_tiles, int64_t tiles, Moments,
          const LionStep& step);
void sgd(const Queue&, const UpdateBox* device_boxes, const Tile* device_tiles, int64_t tiles, Moments,
         const SgdStep& step);
/// One launch for each box.
void enqueue(const Queue&, const Balance&);
/// A row for each block of a box's moments.
inline Matrix block_shape(const Matrix& box) {
  return {nullptr, DType::f32, moment_blocks(box.count()), kMomentBlock, kMomentBlock};
}
/// out[i] (device) = sum of squares of box i in double. partial: [tiles] doubles. first_tile: [boxes + 1]
/// indices into the tiles.
void sum_squares(const Queue&, const Matrix* device_boxes, int64_t boxes, const Tile* device_tiles, int64_t tiles,
                 const int64_t* device_first_tile, double* partial, double* out);
/// *out (device) = sum of x[0..n) in double, in an order fixed by n.
void sum(const Queue&, const float* x, int64_t n, double* out, void* scratch);

// digest.cu
/// Boxes of one launch.
constexpr size_t kDigestBoxes = 64;
/// Adds to out[i] (device) what box i of at most kDigestBoxes has of a digest.
void digest(const Queue&, std::span<const DigestBox> boxes, uint64_t* out);

}  // namespace trainctl::kernels::cuda
