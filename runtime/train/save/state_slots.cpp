#include "runtime/train/save/state_slots.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ckpt/pieces.h"
#include "runtime/base/error.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

uint64_t slot_file_bytes(const parallel::ShardedParams& params, const SlotsWanted& wanted, int slots) {
  uint64_t bytes = 0;
  size_t chunks = 0;
  for (const auto& chunk : params.state_chunks()) {
    if (!chunk.saved_here) continue;
    bytes += chunk.saved_bytes();
    chunks += size_t(chunk.rows.saved());
  }
  return ckpt::memory_for_pieces(bytes, chunks, wanted.tensors, wanted.text_bytes, slots);
}

NodeRanks node_of(const SlotsWanted& wanted) {
  for (const NodeRanks& node : wanted.nodes)
    if (wanted.rank >= node.first && wanted.rank < node.first + node.count) return node;
  return {.first = 0, .count = wanted.ranks};
}

/// Looks before any rank takes its slots: they would count as missing memory for those that look later.
void require_room(const SlotsWanted& wanted, uint64_t bytes, int slots) {
  const std::string& folder = wanted.memory_folder;
  if (folder.empty()) throw Error(ErrorCode::kIo, "this node has no folder in /dev/shm for the run");
  if (wanted.mode != MemoryCopies::automatic) return;
  const NodeRanks here = node_of(wanted);
  const auto ranks = uint64_t(here.count);
  const uint64_t taken = std::min(wanted.planned_bytes, peak_resident_bytes());
  const MemoryRoom room{.available = system_memory().available_bytes,
                        .held = held_slots(folder, here, wanted.ranks, bytes),
                        .slots = ranks * bytes,
                        .planned = ranks * (wanted.planned_bytes - taken)};
  if (room.is_enough()) return;
  throw Error(ErrorCode::kIo,
              fmt::format("{} of the state and the ranks here would take {} of memory, and {} are free",
                          slots == 1 ? "a copy" : "two copies", brief_memory_text(room.slots + room.planned),
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

StateSlots open_slots(const SlotsWanted& wanted, const parallel::ShardedParams& params,
                      const AnyRank& any_rank) {
  const MemoryCopies mode = wanted.mode;
  StateSlots result;
  if (mode == MemoryCopies::off) return result;
  const std::string path = wanted.memory_folder + "/" + ckpt::piece_file_name(wanted.rank, wanted.ranks);
  const auto all_can = [&](const std::function<void()>& act) {
    bool cannot = false;
    try {
      act();
    } catch (const Error& error) {
      cannot = true;
      // An agent that has no folder says why itself.
      if (mode == MemoryCopies::on || !wanted.memory_folder.empty()) result.why = error.what();
    }
    return !any_rank(cannot);
  };
  const int most = mode == MemoryCopies::one ? 1 : 2, fewest = mode == MemoryCopies::on ? 2 : 1;
  for (int slots = most; slots >= fewest; --slots) {
    const uint64_t bytes = slot_file_bytes(params, wanted, slots);
    const auto open = [&] { result.memory = ckpt::shared_memory(path, bytes); };
    if (all_can([&] { require_room(wanted, bytes, slots); }) && all_can(open)) {
      result.slots = slots;
      return result;
    }
    // The others need the room, before any of them tries it with less.
    if (std::exchange(result.memory, nullptr)) ::unlink(path.c_str());
  }
  if (mode == MemoryCopies::automatic) return result;
  const bool is_on = mode == MemoryCopies::on;
  throw Error(ErrorCode::kIo,
              fmt::format("checkpoint.memory is {}, and {}; set it to {}auto or off", is_on ? "on" : "one",
                          result.why.empty() ? "another rank has no memory for its copies" : result.why,
                          is_on ? "one, " : ""));
}

}  // namespace trainctl
