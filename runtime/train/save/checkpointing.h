// Saves a rank's state to checkpoints, and loads it from a checkpoint of any mesh.
#pragma once
#include <functional>

#include "ckpt/checkpoint.h"
#include "ckpt/safetensors.h"
#include "parallel/sharded_params.h"
#include "runtime/model/params.h"
#include "runtime/train/save/device_copies.h"

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

/// Fills the weights (master weights, or compute copies that have none) by the table's init (Philox on the
/// parameter's name and global index) and zeroes the moments, on `threads` threads.
void initialise(const ParamTable& table, uint64_t seed, int threads, const RankState& state);

/// Sets the same weights from tensors with Hugging Face names. GPT-2's linear weights may be stored as
/// [in, out] (as by Hugging Face) or [out, in]. Error(kCheckpoint) with the name of the first tensor that is
/// missing or has another shape.
void import_weights(const ParamTable& table, ckpt::TensorFolder& folder, const RankState& state);

/// Loads the same weights, moments and averages. Error(kCheckpoint) if the tensors are damaged or of another
/// model.
void load_state(const ParamTable& table, ckpt::Checkpoint& checkpoint, const RankState& state);

/// Sets the compute copies of parameters that have no state (ShardingOptions::weights_alone). Errors as above.
void load_weights(const ParamTable& table, ckpt::Checkpoint& checkpoint, const RankState& state);
void load_weights(const ParamTable& table, ckpt::TensorFolder& folder, const RankState& state);

/// The chunks that this rank saves, in the memory of its device, some with rows that lie apart. Pass them to
/// write_shard with a DeviceChunks and checkpoint_tensors(table).
std::vector<ckpt::ChunkData> state_chunk_data(const ParamTable& table, const RankState& state);
/// Saves the gradients of all ranks, times `factor`, below `directory`, in the format of a checkpoint.
/// Collective over `world`.
void save_gradients(parallel::Communicator& world, FileSystem& fs, const std::string& directory,
                    const ckpt::StateInfo& description, const ParamTable& table, const RankState& state,
                    double factor);

}  // namespace trainctl
