#include "runtime/train/start_state.h"

#include "runtime/base/json.h"

namespace trainctl {

bool loads_state(const RankOptions& options) { return options.memory || !options.resume_from.empty(); }

std::unique_ptr<ckpt::Checkpoint> open_start(const RankOptions& options, FileSystem& fs,
                                             RankActivity& activity) {
  activity.enter(RunPhase::loading, -1, options.memory ? options.memory_folder : options.resume_from);
  if (!options.memory) return ckpt::Checkpoint::open(fs, options.resume_from);
  const std::vector<ckpt::FoundPiece> found = ckpt::list_pieces(fs, options.memory_folder);
  return ckpt::open_pieces(found, options.memory->set, options.memory->need);
}

void report_loaded(const RankOptions& options, int64_t step, const parallel::ShardedParams& params,
                   parallel::Communicator& world, Control& control) {
  std::vector<double> bytes = {0};
  // Master weights and two moments.
  for (const auto& chunk : params.state_chunks()) bytes[0] += 3 * double(chunk.box.count()) * sizeof(float);
  parallel::all_reduce_f64(world, bytes);
  if (world.rank() != 0) return;
  const char* tier = options.memory ? "memory" : options.from_store ? "store" : "directory";
  const nlohmann::json event = {{"step", step}, {"tier", tier}, {"bytes", {{tier, uint64_t(bytes[0])}}}};
  control.event(EventKind::loaded, dump_json(event));
}

}  // namespace trainctl
