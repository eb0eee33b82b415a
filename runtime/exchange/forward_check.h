// Compares what a written folder computes with what its checkpoint computes.
#pragma once
#include "runtime/exchange/export.h"

namespace trainctl {

/// Computes logits of `tokens` pseudo-random tokens (the same every time), in float32 and in sequences of the
/// run's length, with the weights of the folder, read as model.init.from reads them, and with those of the
/// checkpoint. Holds the whole model, twice one after the other. Error(kCheckpoint) if the folder's logits
/// are not finite or not those of the checkpoint's weights as `dtype`, bit for bit.
ForwardCheck check_forward(FileSystem& fs, const JobSpec& job, ckpt::Checkpoint& checkpoint,
                           const std::string& folder, DType dtype, int64_t tokens, int threads);

}  // namespace trainctl
