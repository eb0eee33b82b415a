#include "runtime/train/start_state.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "ckpt/folders.h"
#include "ckpt/open_part.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl {

bool loads_state(const RankOptions& options) { return options.memory || !options.resume_from.empty(); }

namespace {

std::vector<ckpt::WantedBox> boxes_of(const WantedState& wanted) {
  std::vector<ckpt::WantedBox> boxes;
  for (const parallel::ShardedParams::StateChunk& chunk : wanted.params.state_chunks())
    for (const parallel::StateRow& row : chunk.rows)
      if (row.saved)
        boxes.push_back({wanted.table.params[size_t(chunk.param)].layout.name, row.role, chunk.box_of(row)});
  return boxes;
}

bool holds(const ckpt::Checkpoint& checkpoint, const std::vector<ckpt::WantedBox>& boxes) {
  return std::all_of(boxes.begin(), boxes.end(), [&](const ckpt::WantedBox& wanted) {
    return checkpoint.has(wanted.name, wanted.role, wanted.box);
  });
}

/// The ranks of `set` whose pieces are not among `found`; those near `rank` first, because they hold what it
/// loads: on the same mesh its own part, else parts of its stage.
std::vector<int> missing_ranks(const std::vector<ckpt::FoundPiece>& found, const ckpt::PieceSet& set,
                               int rank) {
  std::set<int> here;
  for (const ckpt::FoundPiece& one : found)
    if (one.piece && one.ranks == set.ranks && one.step == set.step && one.piece->state.epoch == set.epoch)
      here.insert(one.rank);
  std::vector<int> missing;
  for (int other = 0; other < set.ranks; ++other)
    if (!here.contains(other)) missing.push_back(other);
  std::stable_sort(missing.begin(), missing.end(),
                   [&](int a, int b) { return std::abs(a - rank) < std::abs(b - rank); });
  return missing;
}

/// Opens pieces of this node and, until they hold all that the rank loads, of other nodes: one, two, four, ...
/// of them at a time.
std::unique_ptr<ckpt::Checkpoint> open_from_memory(const RankOptions& options, const WantedState& wanted,
                                                   FileSystem& fs) {
  const MemoryLoad& load = *options.memory;
  std::vector<ckpt::FoundPiece> found = ckpt::list_pieces(fs, options.memory_folder);
  if (!load.elsewhere) return ckpt::open_pieces(found, load.set, ckpt::Pieces::all);
  const std::vector<int> missing = missing_ranks(found, load.set, wanted.rank);
  const std::vector<ckpt::WantedBox> boxes = boxes_of(wanted);
  size_t next = 0;
  for (size_t batch = 1; next < missing.size(); batch *= 2) {
    if (int(missing.size()) < load.set.ranks || next > 0)
      if (auto some = ckpt::open_pieces(found, load.set, ckpt::Pieces::those_here, load.elsewhere); holds(*some, boxes))
        return some;
    for (size_t i = 0; i < batch && next < missing.size(); ++i, ++next)
      for (ckpt::FoundPiece& piece : load.elsewhere(missing[next], 0)) found.push_back(std::move(piece));
  }
  return ckpt::open_pieces(found, load.set, ckpt::Pieces::all, load.elsewhere);
}

}  // namespace

std::unique_ptr<ckpt::Checkpoint> open_start(const RankOptions& options, const WantedState& wanted,
                                             FileSystem& fs, RankActivity& activity) {
  activity.enter(RunPhase::loading, -1, options.memory ? options.memory_folder : options.resume_from);
  if (!options.memory)
    return ckpt::open_part(ckpt::stored_folder(fs, options.resume_from), boxes_of(wanted),
                           options.resume_manifest);
  try {
    return open_from_memory(options, wanted, fs);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
    // Another state is tried then.
    throw Error(ErrorCode::kCheckpoint, error.what());
  }
}

void report_loaded(const RankOptions& options, const LoadedState& loaded,
                   const parallel::ShardedParams& params, parallel::Communicator& world, Control& control) {
  if (!loads_state(options)) return;
  std::array<int64_t, 2> bytes = {0, options.memory ? int64_t(*options.memory->read_elsewhere) : 0};
  for (const auto& chunk : params.state_chunks()) bytes[0] += int64_t(chunk.saved_bytes());
  parallel::all_sum(world, bytes);
  if (world.rank() != 0) return;
  const char* tier = options.memory ? "memory" : options.from_store ? "store" : "directory";
  Json event = {{"step", loaded.step},
                {"tier", tier},
                {"bytes", {{tier, bytes[0]}}},
                {"seconds", std::round(loaded.seconds * 1e3) / 1e3}};
  if (bytes[1] > 0) event["bytes"]["other_nodes"] = bytes[1];
  control.event(EventKind::loaded, dump_json(event));
}

}  // namespace trainctl
