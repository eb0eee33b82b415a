// The ops as CUDA kernels. Each function enqueues kernels on a queue; it checks nothing and allocates
// nothing. kernels/backend.h has the formulas, shapes and rules. backend.cpp checks arguments and provides
// scratch memory (sizes: scratch.h). All kernels are deterministic: they use no float atomics, and no sum
// depends on the number of multiprocessors.
#pragma once
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/scratch.h"

namespace trainctl::kernels::cuda {

// elementwise.cu
void copy(const Queue&, Matrix src, Matrix dst);
void add(const Queue&, Matrix src, Matrix dst);
/// The largest number of inputs of tree_sum.
constexpr int kMostTreeInputs = 2048;
void tree_sum(const Queue&, std::span<const void* const> inputs, void* out, DType dtype, int64_t count);
void add_rounded(const Queue&, Matrix left, Matrix right, Matrix out);

// embedding.cu
void embedding_forward(const Queue&, const int32_t* ids, Matrix table, int64_t vocab_begin, Matrix out);
void embedding_backward(const Queue&, const int32_t* ids, Matrix dout, int64_t vocab_begin, Matrix dtable, void* scratch);
void add_position(const Queue&, Matrix table, int64_t first_row, int64_t seq_len, Matrix x);
void add_position_backward(const Queue&, Matrix dx, int64_t first_row, int64_t seq_len, Matrix dtable);

// norm.cu
void norm_forward(const Queue&, NormKind, Matrix x, Matrix delta, Matrix weight, Matrix bias, float eps, Matrix sum, Matrix y,
                  float* stats);
void norm_backward(const Queue&, NormKind, Matrix dy, Matrix x, Matrix weight, const float* stats, Matrix dresidual, Matrix dx,
                   Matrix dweight, Matrix dbias, bool accumulate, void* scratch);
void norm_apply(const Queue&, NormKind, Matrix x, const float* stats, Matrix weight, Matrix bias, Matrix y);

// activation.cu
void gelu_forward(const Queue&, Matrix x, Matrix y);
void gelu_backward(const Queue&, Matrix x, Matrix dy, Matrix dx);
void swiglu_forward(const Queue&, Matrix gate, Matrix up, Matrix y);
void swiglu_backward(const Queue&, Matrix gate, Matrix up, Matrix dy, Matrix dgate, Matrix dup);
void rope(const Queue&, Matrix x, int64_t head_dim, int64_t seq_len, const float* cos_sin, bool inverse);

// attention.cu, attention_backward.cu: tensor cores for bf16 with head dimensions 64 and 128; plain kernels
// for everything else up to kMostHeadDim. Tiles: attention_tiles.h.
constexpr int64_t kMostHeadDim = kMostPlainDim;
void attention_forward(const Queue&, const AttentionShape&, Matrix q, Matrix k, Matrix v, Matrix out, float* lse);
void attention_backward(const Queue&, const AttentionShape&, Matrix q, Matrix k, Matrix v, Matrix out, const float* lse, Matrix dout,
                        Matrix dq, Matrix dk, Matrix dv, void* scratch);

// loss.cu
void cross_entropy_stats(const Queue&, Matrix logits, const int32_t* targets, int64_t vocab_begin, float* stats);
void cross_entropy_combine(const Queue&, const float* stats, int parts, int64_t m, float* lse, float* loss);
void cross_entropy_backward(const Queue&, Matrix logits, const int32_t* targets, int64_t vocab_begin, const float* lse, float scale);

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
void adamw(const Queue&, const AdamWBox* device_boxes, const Tile* device_tiles, int64_t tiles, const AdamWStep& step);
/// out[i] (device) = sum of squares of box i in double. partial: [tiles] doubles. first_tile: [boxes + 1]
/// indices into the tiles.
void sum_squares(const Queue&, const Matrix* device_boxes, int64_t boxes, const Tile* device_tiles, int64_t tiles,
                 const int64_t* device_first_tile, double* partial, double* out);
/// *out (device) = sum of x[0..n) in double, in an order fixed by n.
void sum(const Queue&, const float* x, int64_t n, double* out, void* scratch);

}  // namespace trainctl::kernels::cuda
