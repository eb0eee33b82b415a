// Between a rank's parameters and checkpoints: what this rank writes, and how it loads what any mesh wrote.
#pragma once
#include <functional>

#include "ckpt/checkpoint.h"
#include "ckpt/safetensors.h"
#include "parallel/sharded_params.h"
#include "runtime/train/control.h"
#include "runtime/model/params.h"
#include "runtime/train/device_copies.h"
#include "runtime/train/schedule.h"

namespace trainctl {

/// A rank's parameters and the device they are on.
struct RankState {
  parallel::ShardedParams& params;
  kernels::Backend& backend;
  kernels::Stream& stream;
  StateStaging& staging;
  /// Called while state is loaded, with the bytes that are there and all there will be; may be empty.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
};

/// Of master weights and moments on this rank's device.
size_t state_bytes(const parallel::ShardedParams& params);

/// Fills master weights by the table's init (Philox on the parameter's name and global index) and zeroes the moments,
/// on `threads` threads.
void initialise(const ParamTable& table, uint64_t seed, int threads, const RankState& state);

/// Fills master weights from Hugging Face-named tensors; GPT-2 weights may be stored [in, out] (as Hugging Face does) or
/// [out, in]. Error(kCheckpoint) naming the first tensor that is missing or of another shape.
void import_weights(const ParamTable& table, ckpt::TensorFolder& folder, const RankState& state);

/// Where the data go on after that checkpoint; `new_data`: they begin at their start.
DataPosition data_position(const ckpt::StateInfo& state, bool new_data);

/// Loads master weights and moments. Error(kCheckpoint) if the tensors are not this model's, or damaged.
void load_state(const ParamTable& table, ckpt::Checkpoint& checkpoint, const RankState& state);

/// The chunks of this rank where they are on its device, as write_shard takes them with a DeviceChunks; `tensors` is
/// checkpoint_tensors(table).
std::vector<ckpt::ChunkData> state_chunk_data(const RankState& state);
/// Publishes the gradients of all ranks below `directory` in the format of a checkpoint. Collective over `world`.
void save_gradients(parallel::Communicator& world, FileSystem& fs, const std::string& directory, const ckpt::StateInfo& description,
                    const ParamTable& table, const RankState& state);

}  // namespace trainctl
