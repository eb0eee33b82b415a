// The activation memory of a rank: for each micro-batch in flight, and shared memory for one micro-batch at a
// time. One function lays it out; the plan calls it to measure, StageModel to place.
#pragma once
#include <map>
#include <vector>

#include "runtime/model/stage_model.h"

namespace trainctl::stage_memory {

using kernels::Matrix;

/// The tensors of one layer for one micro-batch, of each of its sublayers.
using LayerRecord = std::vector<Tensors>;

/// A module of multi-token prediction for one micro-batch.
struct MtpRecord {
  LayerRecord layer;
  Matrix embedded;  // [Ml, C] of the tokens ahead
  Matrix pair;      // [Ml, 2 C] norm of these; norm of what comes in
  Matrix sum;       // [Ml, C] behind the layer
  Matrix out;       // [Ml, C] its norm, which the head and the next module read
  Matrix gradient;  // [Ml, C] of out
  float *embedded_stats = nullptr, *hidden_stats = nullptr, *stats = nullptr;
};

/// Memory of one micro-batch in flight through one virtual stage.
struct Slot {
  std::vector<LayerRecord> layers;         // what is not kept for each micro-batch lies in Shared::layer
  Matrix entry;                            // what enters a virtual stage without layers
  Matrix output, output_gradient, input_gradient;
  Matrix embedding_gradient;               // [M, C] with split backward
  Matrix final_x, final_gradient;
  Matrix final_norm_weight, final_norm_bias;   // gradients, with split backward
  float* final_stats = nullptr;
  Matrix final_out;  // [Ml, C] the final norm, where modules read it
  std::vector<MtpRecord> mtp;
  /// What enters the virtual stage: the first layer's input.
  Matrix& input() { return layers.empty() ? entry : layers.front().front()[kInput]; }
};

/// Memory for one micro-batch at a time.
struct Shared {
  LayerScratch scratch;
  // Of each kind of layer: scratch; of layers that are computed again what a slot does not keep; gradients
  // without split backward. They share the memory.
  std::map<const LayerPlan*, LayerRecord> layer;
  Matrix ping, pong;                       // gradient between layers
  Matrix logits, head_input, head_input_gradient, embedding_gradient;
  float *stats = nullptr, *all_stats = nullptr, *lse = nullptr, *loss = nullptr;
  Matrix pair_gradient;                    // [Ml, 2 C] of MtpRecord::pair
  std::vector<Matrix> embedded_gradients;  // [module] of MtpRecord::embedded
};

struct Memory {
  std::vector<std::vector<Slot>> slots;    // [virtual_stage][slot]
  std::vector<std::vector<LayerRecord>> of_layers;   // [virtual_stage][layer]: Life::layer
  std::vector<LayerRecord> of_modules;               // [module]: likewise
  std::vector<std::vector<Matrix>>
      inputs;   // [virtual_stage][input]: of virtual stages that receive theirs, one more than slots
  Shared shared;
};

/// Rows of the vocabulary that this tp rank has of a virtual stage's head or embedding; begin: the first of
/// them.
int64_t vocab_rows(const StageUses& uses, const VirtualStageUses& virtual_stage, int tp_rank, int64_t* begin);

/// Of the table of a kind of rotary positions: f32 [T, channels].
inline size_t rotary_bytes(const Rotary& rotary, const LayerShape& s) {
  return size_t(s.seq_len * rotary.channels) * sizeof(float);
}

/// The part of `m` that a forward pass over the first `count` of a micro-batch's rows uses. One rank
/// of the tensor axis.
Memory first_rows(Memory m, const StageUses& uses, int64_t count);

/// The histograms of the layers whose biases follow from them; see StageModel::margins.
std::vector<Margins> take_margins(Arena& arena, const StageUses& uses);

/// Lays out all activation memory.
///   host   of Life::host
void take_all(Arena& arena, Arena& host, const StageUses& uses, const StageModel::Options& options,
              Memory& m);

}  // namespace trainctl::stage_memory
