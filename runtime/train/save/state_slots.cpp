#include "runtime/train/save/state_slots.h"

#include <fmt/format.h>

#include "ckpt/pieces.h"
#include "runtime/base/error.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

uint64_t slot_file_bytes(const parallel::ShardedParams& params, const SlotsWanted& wanted) {
  uint64_t bytes = 0;
  size_t chunks = 0;
  for (const auto& chunk : params.state_chunks()) {
    if (!chunk.saved_here) continue;
    bytes += 3 * uint64_t(chunk.box.count()) * sizeof(float);
    chunks += 3;
  }
  return ckpt::memory_for_pieces(bytes, chunks, wanted.tensors, wanted.text_bytes);
}

int ranks_on_node_of(const SlotsWanted& wanted) {
  for (const NodeRanks& node : wanted.nodes)
    if (wanted.rank >= node.first && wanted.rank < node.first + node.count) return node.count;
  return wanted.job.mesh().world_size();
}

std::unique_ptr<ckpt::NodeMemory> open_own_slots(const SlotsWanted& wanted, uint64_t bytes) {
  const std::string& folder = wanted.memory_folder;
  if (folder.empty()) throw Error(ErrorCode::kIo, "this node has no folder in /dev/shm for the run");
  const auto ranks = uint64_t(ranks_on_node_of(wanted));
  const uint64_t available = system_memory().available_bytes, need = ranks * (bytes + wanted.planned_bytes);
  if (wanted.job.checkpoint.memory == MemoryCopies::automatic && available > 0 && need > available)
    throw Error(
        ErrorCode::kIo,
        fmt::format("two copies of the state and the ranks here would take {} of memory, and {} are free",
                    brief_memory_text(need), brief_memory_text(available)));
  return ckpt::shared_memory(
      folder + "/" + ckpt::piece_file_name(wanted.rank, wanted.job.mesh().world_size()), bytes);
}

}  // namespace

std::unique_ptr<ckpt::NodeMemory> open_slots(const SlotsWanted& wanted, const parallel::ShardedParams& params,
                                             const SumOverRanks& sum, std::string& why) {
  const MemoryCopies mode = wanted.job.checkpoint.memory;
  if (mode == MemoryCopies::off) return nullptr;
  std::unique_ptr<ckpt::NodeMemory> slots;
  try {
    slots = open_own_slots(wanted, slot_file_bytes(params, wanted));
  } catch (const Error& error) {
    // An agent that has no folder says why itself.
    if (mode == MemoryCopies::on || !wanted.memory_folder.empty()) why = error.what();
  }
  std::vector<double> without{slots ? 0.0 : 1.0};
  sum(without);
  if (without[0] == 0) return slots;
  if (mode == MemoryCopies::on)
    throw Error(ErrorCode::kIo, fmt::format("checkpoint.memory is on, and {}; set it to auto or off",
                                            why.empty() ? "another rank has no memory for its copies" : why));
  return nullptr;
}

}  // namespace trainctl
