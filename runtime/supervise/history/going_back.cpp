#include "runtime/supervise/history/going_back.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/checkpoint.h"
#include "ckpt/contest.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/run/record/journal.h"

namespace trainctl {

int64_t set_aside_beyond(FileSystem& fs, const RunDirectory& run, const CheckpointSpec& checkpoint,
                         const GoingBack& back, Console& console) {
  const std::string checkpoints = run.checkpoints(checkpoint);
  // Also when nothing lies beyond the step: a supervisor that was stopped in a save must not publish it later.
  const auto identity = read_identity(fs, run);
  const ckpt::EpochBegin begin{identity ? identity->run_id : "", back.epoch, back.step};
  const bool is_here = back.source == ckpt::step_directory(checkpoints, back.step);
  const ckpt::Superseded aside =
      is_here ? ckpt::supersede_from_here(fs, checkpoints, begin) : ckpt::supersede(fs, checkpoints, begin);
  if (!aside.steps.empty())
    console.note(
        fmt::format("   {} beyond step {} ({}) moved to {}: removed once {} new ones are saved; to keep "
                    "them, move them out of {}",
                    count_of(int64_t(aside.steps.size()), "checkpoint"), back.step, size_text(aside.bytes),
                    aside.path, std::max(checkpoint.keep_last, 2), checkpoints));
  const std::string metrics = run.file(fmt::format("metrics.superseded-e{}.jsonl", back.epoch).c_str());
  return supersede_metrics(fs, run.metrics(), back.step, metrics);
}

}  // namespace trainctl
