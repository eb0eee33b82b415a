// BlockBackend runs the ops of a rank that has several context blocks of each sequence as ranks with one
// block each would run them: products and sums over rows block by block, each block's gradients into a lane
// of its own. So a run's bits do not depend on how many ranks share a sequence.
#pragma once
#include <memory>

#include "kernels/backend.h"
#include "parallel/sharded_params.h"

namespace trainctl {

/// A device whose ops are those of `device`. rows: of a micro-batch, `blocks` times as many as of a block.
/// Ops that compute each row apart run as they are; so do all that have another number of rows. A sum over
/// all rows (kernels::Sum) becomes `blocks` numbers, one after another.
std::unique_ptr<kernels::Backend> make_block_backend(kernels::Backend& device,
                                                     const parallel::ShardedParams& params, int64_t rows,
                                                     int blocks);

}  // namespace trainctl
