#include "runtime/train/save/state_slots.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

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

NodeRanks node_of(const SlotsWanted& wanted) {
  for (const NodeRanks& node : wanted.nodes)
    if (wanted.rank >= node.first && wanted.rank < node.first + node.count) return node;
  return {.first = 0, .count = wanted.job.mesh().world_size()};
}

/// Looks before any rank takes its slots: they would count as missing memory for those that look later.
void require_room(const SlotsWanted& wanted, uint64_t bytes) {
  const std::string& folder = wanted.memory_folder;
  if (folder.empty()) throw Error(ErrorCode::kIo, "this node has no folder in /dev/shm for the run");
  if (wanted.job.checkpoint.memory != MemoryCopies::automatic) return;
  const NodeRanks here = node_of(wanted);
  const auto ranks = uint64_t(here.count);
  const uint64_t taken = std::min(wanted.planned_bytes, peak_resident_bytes());
  const MemoryRoom room{.available = system_memory().available_bytes,
                        .held = held_slots(folder, here, wanted.job.mesh().world_size(), bytes),
                        .slots = ranks * bytes,
                        .planned = ranks * (wanted.planned_bytes - taken)};
  if (room.is_enough()) return;
  throw Error(ErrorCode::kIo,
              fmt::format("two copies of the state and the ranks here would take {} of memory, and {} are free",
                          brief_memory_text(room.slots + room.planned),
                          brief_memory_text(room.available + room.held)));
}

}  // namespace

uint64_t held_slots(const std::string& folder, const NodeRanks& here, int ranks, uint64_t bytes) {
  uint64_t held = 0;
  for (int rank = here.first; rank < here.first + here.count; ++rank) {
    struct stat s;
    const std::string path = folder + "/" + ckpt::piece_file_name(rank, ranks);
    if (::stat(path.c_str(), &s) == 0 && uint64_t(s.st_size) == bytes)
      held += std::min(bytes, uint64_t(s.st_blocks) * 512);
  }
  return held;
}

std::unique_ptr<ckpt::NodeMemory> open_slots(const SlotsWanted& wanted, const parallel::ShardedParams& params,
                                             const AnyRank& any_rank, std::string& why) {
  const MemoryCopies mode = wanted.job.checkpoint.memory;
  if (mode == MemoryCopies::off) return nullptr;
  const uint64_t bytes = slot_file_bytes(params, wanted);
  std::unique_ptr<ckpt::NodeMemory> slots;
  const auto all_can = [&](const std::function<void()>& act) {
    bool cannot = false;
    try {
      act();
    } catch (const Error& error) {
      cannot = true;
      // An agent that has no folder says why itself.
      if (mode == MemoryCopies::on || !wanted.memory_folder.empty()) why = error.what();
    }
    return !any_rank(cannot);
  };
  const auto open = [&] {
    slots = ckpt::shared_memory(
        wanted.memory_folder + "/" + ckpt::piece_file_name(wanted.rank, wanted.job.mesh().world_size()), bytes);
  };
  if (all_can([&] { require_room(wanted, bytes); }) && all_can(open)) return slots;
  if (mode == MemoryCopies::on)
    throw Error(ErrorCode::kIo, fmt::format("checkpoint.memory is on, and {}; set it to auto or off",
                                            why.empty() ? "another rank has no memory for its copies" : why));
  return nullptr;
}

}  // namespace trainctl
