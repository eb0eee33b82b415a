#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/scratch.h"
#include "kernels/device.h"

namespace trainctl::kernels {

namespace cuda {

size_t op_scratch_bytes(const ScratchShape& s) {
  const int64_t boxes = s.optimizer_boxes, tiles = most_tiles(s.optimizer_elements, boxes);
  size_t squares = sum_squares_scratch(tiles, boxes);
  for (const BoxListShape& list : s.square_sums)
    squares = std::max(squares, sum_squares_scratch(most_tiles(list.elements, list.boxes), list.boxes));
  // Sums leave their result behind the partial ones until it is copied to the host.
  return aligned_part(std::max({norm_backward_scratch(s.rows, s.widest), column_sum_scratch(s.rows, s.widest),
                                product_bias_scratch(s.widest), attention_backward_scratch(s.attention),
                                s.embedding_rows > 0 ? embedding_backward_scratch(s.rows) : 0,
                                aligned_part(sum_scratch(s.rows)) + sizeof(double), squares}));
}

size_t optimizer_table_bytes(const ScratchShape& s) {
  if (s.optimizer_boxes == 0) return 0;
  const int64_t boxes = s.optimizer_boxes, tiles = most_tiles(s.optimizer_elements, boxes);
  size_t bytes =
      tile_table_bytes(sizeof(UpdateBox), tiles, boxes) + tile_table_bytes(sizeof(Matrix), tiles, boxes);
  for (const BoxListShape& list : s.square_sums)
    bytes += tile_table_bytes(sizeof(Matrix), most_tiles(list.elements, list.boxes), list.boxes);
  return bytes;
}

}  // namespace cuda

size_t cuda_scratch_bytes(const ScratchShape& s) {
  return cuda::op_scratch_bytes(s) + cuda::optimizer_table_bytes(s);
}

bool attention_on_tensor_cores(int64_t head_dim, DType activation) {
  return activation == DType::bf16 && cuda::has_tensor_tiles(head_dim);
}

size_t cuda_workspace_bytes() { return cuda::kProductWorkspaceBytes; }

}  // namespace trainctl::kernels
