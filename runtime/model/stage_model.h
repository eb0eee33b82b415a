// StageModel is the part of the model on one rank: its virtual stages, with the embedding on the first and
// the head on the last, and the memory of the micro-batches in flight.
//
// The head computes its gradients in the forward pass: logits, loss, their gradient and the head's weight
// gradient, while the logits of a micro-batch exist. So every schedule holds the logits of only one
// micro-batch at a time.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/model/batch.h"
#include "runtime/model/stage_uses.h"

namespace trainctl {

/// The memory of StageModel by purpose, in bytes.
struct StageBytes {
  size_t activations = 0;   ///< of all micro-batches in flight
  size_t shared = 0;        ///< what one micro-batch at a time uses, and converted biases
  size_t tensor_sums = 0;   ///< TensorParallel::scratch_bytes
  size_t positions = 0;     ///< the rotary table
  size_t context = 0;       ///< parallel::context_index_bytes
  size_t margins = 0;       ///< StageModel::margins
  size_t host = 0;          ///< Life::host: of the host's memory
  size_t scratch() const { return shared + tensor_sums + positions + context + margins; }
};

/// The largest shapes of the ops of a rank. optimizer_*: of the chunks whose state the rank holds.
kernels::ScratchShape scratch_shape(const ModelTables& tables, const parallel::ShardingBytes& optimizer);

/// Other ranks that compute the same layers; null: there are none.
struct StagePeers {
  parallel::Communicator* context = nullptr;  ///< they have parts of the same sequences
  parallel::Communicator* experts = nullptr;  ///< they share experts
  std::function<void()> check = {};           ///< LayerContext::check_exchanges
  const bool* rehearses = nullptr;            ///< LayerContext::rehearses
};

class StageModel {
 public:
  /// slots[virtual_stage]: micro-batches in flight at once of each local virtual stage. split_backward: the
  /// weight half may run later than the input half (zero-bubble); otherwise both run together (backward).
  /// loss_scale: 1 / targets of a step.
  struct Options {
    std::vector<int> slots;
    bool split_backward = false;
    float loss_scale = 1;
    bool masks_targets = false;  ///< targets may be below 0, which have no loss
  };
  StageModel(StageUses uses, Options options, parallel::ShardedParams& params, parallel::TensorParallel& tp,
             kernels::Backend& backend, kernels::Stream& stream, StagePeers peers = {});
  ~StageModel();

  static StageBytes plan(const StageUses& uses, const Options& options);

  /// Call it when the compute copies change: every part must then call take_weights again.
  void weights_changed();

  /// Of each layer with experts, in the order of the local virtual stages, and behind those of the last one
  /// of each module of multi-token prediction: how many there are, and of a micro-batch's sequences.
  struct ExpertCounts {
    int64_t layers = 0, sequences = 0, experts = 0;
    /// How many neighbouring sequences are a source, of which an expert takes `capacity` slots at most; 0:
    /// all.
    int64_t of_source = 1, capacity = 0;
    int64_t of_micro_batch() const { return layers * sequences * experts; }
  };
  static ExpertCounts expert_counts(const StageUses& uses);
  /// Each training forward pass of micro-batch i writes the slots of each expert to host[i]: i32 [layers,
  /// sequences, experts] of host memory (allocate_host) that outlives the model, once the stream has come
  /// that far.
  void watch_experts(int32_t* host);

  /// Each training forward pass of micro-batch i writes the losses of the head's targets to host[i]: f32
  /// [rows], as CrossEntropyCombine has them, of host memory that outlives the model, once the stream has
  /// come that far.
  void watch_losses(float* host);

  /// Of each layer whose experts' biases follow from them, what training has counted since they were cleared.
  std::span<const Margins> margins() const;
  void clear_margins();

  /// How many sums of the head's losses forward gives of a micro-batch: one of each context block here.
  int losses() const;
  /// All sums that training gives of a micro-batch: those, then as many of each module of multi-token
  /// prediction.
  int loss_sums() const;
  int mtp_modules() const;

  /// The stream on which its work is enqueued.
  kernels::Stream& stream();

  // Buffers at the virtual stage's edges, [Ml, C] contiguous; a pipeline fills or sends them.
  // Inputs are received into buffers of which a virtual stage has one more than slots, so that the next one
  // can come while all slots are in use.
  kernels::Matrix input(int virtual_stage,
                        int input);   ///< to fill before forward (not the first virtual stage)
  /// Sets the input buffer of the micro-batch in `slot` until its backward is done. Call it before forward
  /// (not on the first virtual stage). Without a call, a slot uses the input buffer with its own number.
  void use_input(int virtual_stage, int slot, int input);
  kernels::Matrix output(int virtual_stage, int slot);   ///< after forward (not the last virtual stage)
  kernels::Matrix output_gradient(int virtual_stage,
                                  int slot);   ///< to fill before backward_input (not the last virtual stage)
  kernels::Matrix input_gradient(int virtual_stage,
                                 int slot);   ///< after backward_input (not the first virtual stage)

  /// Copies what one virtual stage of this rank made to where the other one reads it.
  void pass(const kernels::Matrix& from, const kernels::Matrix& to);

  /// A virtual stage is computed in parts (StagePart). `part`: one part, or kAllParts. The parts of one
  /// micro-batch are computed in order, without another computation between them.
  int parts(int virtual_stage) const;
  const StagePart& part(int virtual_stage, int part) const;
  /// Waits for the part's compute copies and packs them for products. Call it after every change of the
  /// weights, before the part is computed; where parts take turns in the memory for weights, after each
  /// gather.
  void take_weights(int virtual_stage, int part);
  /// The part is not computed until take_weights is called again.
  void release_weights(int virtual_stage, int part);

  /// train = false: no loss gradient is taken. On the last virtual stage `*loss` (host memory, from
  /// allocate_host or the call waits) gets the sums of the micro-batch's token losses (losses(), with `train`
  /// loss_sums()) once the stream has come that far. The head's gradients are made here.
  void forward(int virtual_stage, int slot, const MicroBatch& mb, bool train, double* loss,
               int part = parallel::kAllParts);
  /// Copies the losses of the targets of the micro-batch whose forward was the newest of the last virtual
  /// stage; of targets below 0 any number where the job does not mask targets.
  ///   losses  f32 [rows], host memory (allocate_host), once the stream has come that far
  void copy_losses(float* losses);
  /// Runs both halves; with split_backward call the halves separately. The weight half merges the gradients
  /// of complete lanes.
  void backward(int virtual_stage, int slot, const MicroBatch& mb, int part = parallel::kAllParts);
  void backward_input(int virtual_stage, int slot, const MicroBatch& mb, int part = parallel::kAllParts);
  void backward_weight(int virtual_stage, int slot, const MicroBatch& mb, int part = parallel::kAllParts);

  // Of sequences of at most seq_len tokens, without training (one stage, one tp rank).

  /// Logits f32 [count - first, V] of the tokens from `first` on.
  void logits(std::span<const int32_t> tokens, int64_t first, std::span<float> logits);
  /// Tokens of a sequence, which follow those that its cache holds; it holds them afterwards.
  struct Behind {
    KeyValueCache* cache;
    std::span<const int32_t> tokens;
  };
  /// Logits f32 [sequences, V] behind the last token of each sequence, in one pass over the tokens of all of
  /// them, together at most the rows of a micro-batch. Computes these alone (as `logits`; on a device that computes queries
  /// behind keys).
  void logits_behind(std::span<const Behind> sequences, std::span<float> logits);
  /// The loss of each target in nats; 0 where it is below 0.
  ///   document_start   as in a batch (kBatchRows); empty: the sequence is one document
  std::vector<float> losses(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                            std::span<const int32_t> document_start = {});

 private:
  /// Returns when the device has done it.
  void forward_alone(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                     std::span<const int32_t> document_start);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainctl
