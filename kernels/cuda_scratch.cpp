#include "kernels/cuda/scratch.h"

#include "kernels/device.h"

namespace trainctl::kernels {

size_t cuda_scratch_bytes(const ScratchShape& s) {
  size_t bytes = 0;
  for (const size_t op :
       {cuda::norm_backward_scratch(s.rows, s.widest), cuda::column_sum_scratch(s.rows, s.widest),
        cuda::attention_backward_scratch(s.attention), cuda::embedding_backward_scratch(s.rows, s.embedding_rows, s.embedding_cols),
        cuda::sum_scratch(s.rows)})
    bytes = std::max(bytes, (op + 255) / 256 * 256);
  return bytes;
}

}  // namespace trainctl::kernels
