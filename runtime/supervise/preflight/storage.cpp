#include "runtime/supervise/preflight/storage.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/model/params.h"

namespace trainctl {

namespace {

/// The largest number of saves before the end.
int64_t most_saves(const CheckpointSpec& c, int64_t steps) {
  if (c.interval == SaveIntervalChoice::automatic || c.every_seconds > 0) return steps;
  const int64_t milestones = c.keep_every_steps > 0 ? steps / c.keep_every_steps : 0;
  return (c.every_steps > 0 ? steps / c.every_steps : 0) + milestones;
}

}  // namespace

SpaceNeed space_need(const JobSpec& job, int64_t present) {
  const int64_t steps = job.schedule.total_steps;
  // The newest verified ones, milestones that are never removed, one that is not verified yet, and the one
  // being written meanwhile; never more than the run writes.
  const int64_t kept = std::max(job.checkpoint.keep_last, 2),
                milestones = job.checkpoint.keep_every_steps > 0 ? steps / job.checkpoint.keep_every_steps : 0,
                written = most_saves(job.checkpoint, steps) + 1;
  SpaceNeed need;
  for (const ckpt::Tensor& tensor : checkpoint_tensors(parameter_table(job.model, job.optimizer))) {
    uint64_t bytes = size_of(tensor.dtype);
    for (const int64_t size : tensor.shape) bytes *= uint64_t(size);
    need.checkpoint += bytes;
  }
  need.at_once = std::min(kept + milestones + 2, written);
  need.present = present;
  return need;
}

Problem space_refusal(const SpaceNeed& need, std::optional<uint64_t> free_bytes,
                      const std::string& directory) {
  if (!free_bytes || *free_bytes >= need.bytes()) return Problem::none();
  const std::string there = need.present > 0 ? fmt::format(", {} of them there already", need.present) : "";
  return Problem(fmt::format(
      "the checkpoints of this run need {} more in {} ({} of {} each at once{}), and {} are free; make room, "
      "lower checkpoint.keep_last, or choose another folder with -s checkpoint.dir=DIR",
      size_text(need.bytes()), directory, need.at_once, size_text(need.checkpoint), there,
      size_text(*free_bytes)));
}

void check_checkpoint_folder(FileSystem& fs, SpaceNeed need, const std::string& directory, int64_t step) {
  try {
    fs.make_directories(directory);
    ckpt::try_saving(fs, directory);
  } catch (const Error& error) {
    throw Error(ErrorCode::kPreflight,
                fmt::format("a checkpoint cannot be saved in {}: {}; choose another folder with -s checkpoint.dir=DIR",
                            directory, error.what()));
  }
  // Later ones are set aside: they take room in addition to what the run writes.
  const std::vector<int64_t> steps = ckpt::list_steps(fs, directory);
  need.present = std::count_if(steps.begin(), steps.end(), [&](int64_t s) { return s <= step; });
  if (const Problem refusal = space_refusal(need, fs.free_bytes(directory), directory); refusal.exists())
    throw Error(ErrorCode::kPreflight, refusal.text());
}

}  // namespace trainctl
