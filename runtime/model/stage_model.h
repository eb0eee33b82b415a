// The part of the model that one rank computes: its chunks of layers, with the embedding on the first and the
// head on the last, and the memory of the micro-batches in flight.
//
// The head works in the forward half: logits, loss, their gradient and the head's weight gradient are taken
// while the logits of a micro-batch exist, so that logits are held for one micro-batch at a time under every
// schedule.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "runtime/model/stage_uses.h"

namespace trainctl {

/// A micro-batch as this rank counts them: its number within the step, its lane among the rank's lanes.
struct MicroBatch {
  int index = 0, lane = 0;
  bool first_of_lane = true, last_of_lane = true;
  const int32_t* tokens = nullptr;    ///< device [M], where the first chunk stands; unchanged until backward is done
  const int32_t* targets = nullptr;   ///< device [M], where the last chunk stands
};

/// The memory that StageModel takes, each by itself.
struct StageBytes {
  size_t activations = 0;   ///< of all micro-batches in flight
  size_t shared = 0;        ///< what one micro-batch at a time uses, and converted biases
  size_t tensor_sums = 0;   ///< TensorParallel::scratch_bytes
  size_t positions = 0;     ///< the rotary table
  size_t scratch() const { return shared + tensor_sums + positions; }
};

/// The largest shapes that the ops of a rank of `job` see; optimizer: of the chunks whose state it holds.
kernels::ScratchShape scratch_shape(const JobSpec& job, int64_t optimizer_elements, int64_t optimizer_boxes);

class StageModel {
 public:
  /// slots[chunk]: micro-batches in flight at once of each local chunk. split_backward: the weight half may run later than the
  /// input half (zero-bubble); otherwise both run together (backward). loss_scale: 1 / targets of a step.
  struct Options {
    std::vector<int> slots;
    bool split_backward = false;
    float loss_scale = 1;
  };
  StageModel(const JobSpec& job, StageUses uses, Options options, parallel::ShardedParams& params,
             parallel::TensorParallel& tp, kernels::Backend& backend, kernels::Stream& stream);
  ~StageModel();

  static StageBytes plan(const JobSpec& job, const StageUses& uses, const Options& options);

  /// The compute copies change: every part is to take its weights again.
  void weights_changed();

  /// Where its work is enqueued.
  kernels::Stream& stream();

  // Buffers at the chunk's edges, [Ml, C] contiguous; a pipeline fills or sends them.
  // Inputs are received into buffers of which a chunk has one more than slots, so that the next one can come while all slots are in use.
  kernels::Matrix input(int chunk, int input);           ///< to fill before forward (not the first chunk)
  /// The micro-batch in `slot` has its input there, from now on until its backward is done; before forward (not the first chunk).
  /// A slot that never had one uses the input of its own number.
  void use_input(int chunk, int slot, int input);
  kernels::Matrix output(int chunk, int slot);           ///< after forward (not the last chunk)
  kernels::Matrix output_gradient(int chunk, int slot);  ///< to fill before backward_input (not the last chunk)
  kernels::Matrix input_gradient(int chunk, int slot);   ///< after backward_input (not the first chunk)

  /// A chunk is computed in parts (ChunkPart). `part`: one of them, or kAllParts; the parts of one
  /// micro-batch come in their order, and no other computation between them.
  int parts(int chunk) const;
  const ChunkPart& part(int chunk, int part) const;
  /// Waits for the part's compute copies and brings them into the form that products take; after every
  /// change, before the part is computed.
  void take_weights(int chunk, int part);

  /// train = false: no loss gradient is taken. On the last chunk `*loss` (host memory, from allocate_host or the call waits) gets the sum
  /// of the micro-batch's token losses once the stream has come that far. The head's gradients are made here.
  void forward(int chunk, int slot, const MicroBatch& mb, bool train, double* loss,
               int part = parallel::kAllParts);
  /// Both halves; with split_backward they are calls of their own. The half of the weights merges the
  /// gradients of lanes that are complete.
  void backward(int chunk, int slot, const MicroBatch& mb, int part = parallel::kAllParts);
  void backward_input(int chunk, int slot, const MicroBatch& mb, int part = parallel::kAllParts);
  void backward_weight(int chunk, int slot, const MicroBatch& mb, int part = parallel::kAllParts);

  /// Logits f32 [V] of the last token of a sequence of `count` tokens (one stage, one tp rank; for generation).
  void last_logits(const int32_t* tokens, int64_t count, std::span<float> logits);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainctl
