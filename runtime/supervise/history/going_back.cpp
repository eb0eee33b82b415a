#include "runtime/supervise/history/going_back.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/run/record/journal.h"

namespace trainctl {

int64_t set_aside_beyond(FileSystem& fs, const RunDirectory& run, const JobSpec& job, int64_t step,
                         uint64_t epoch, Console& console) {
  const int64_t moved = supersede_metrics(
      fs, run.metrics(), step, run.file(fmt::format("metrics.superseded-e{}.jsonl", epoch).c_str()));
  const std::string checkpoints = run.checkpoints(job);
  // Also when nothing lies beyond the step: a supervisor that was stopped in a save must not publish it later.
  const auto identity = read_identity(fs, run);
  const ckpt::Superseded aside = ckpt::supersede(
      fs, checkpoints, {.run_id = identity ? identity->run_id : "", .epoch = epoch, .step = step});
  if (!aside.steps.empty())
    console.note(
        fmt::format("   {} beyond step {} ({}) moved to {}: removed once {} new ones are saved; to keep "
                    "them, move them out of {}",
                    count_of(int64_t(aside.steps.size()), "checkpoint"), step, size_text(aside.bytes),
                    aside.path, std::max(job.checkpoint.keep_last, 2), checkpoints));
  return moved;
}

}  // namespace trainctl
