#include "runtime/supervise/start/replay.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/train/state_info.h"

namespace trainctl {

ReplayRange choose_replay(std::vector<int64_t> saved, const ReplayWish& wish) {
  std::sort(saved.begin(), saved.end());
  ReplayRange range;
  if (saved.empty()) {
    range.problem = "the run has no checkpoint: there is nothing to verify";
    return range;
  }
  range.to = wish.to.value_or(saved.back());
  const auto to = std::find(saved.begin(), saved.end(), range.to);
  if (to == saved.end()) {
    range.problem =
        fmt::format("the run has no checkpoint of step {}; trainctl inspect-ckpt lists them", range.to);
    return range;
  }
  // The newest that is so many steps older; else the oldest.
  const auto older = std::upper_bound(saved.begin(), to, range.to - wish.steps);
  if (older != saved.begin()) {
    range.from = *(older - 1);
  } else if (wish.steps >= range.to && wish.begins_with_weights) {
    range.from.reset();
  } else if (to != saved.begin()) {
    range.from = saved.front();
    range.note = fmt::format("{} steps were asked for, and the oldest checkpoint is of step {}", wish.steps,
                             saved.front());
  } else {
    range.problem =
        fmt::format("there is no checkpoint older than that of step {} to begin from{}", range.to,
                    wish.begins_with_weights ? fmt::format("; --steps {} begins at the run's start", range.to)
                                             : "; checkpoint.keep_last = 2 keeps one");
  }
  return range;
}

std::vector<std::string> replay_overrides(const std::string& folder, const std::string& id) {
  return {"observability.run_dir=" + folder,
          "observability.run_id=" + id,
          "observability.save_gradients=false",
          "observability.loss_monitor.policy=off",
          "observability.alerts.webhook=",
          "observability.alerts.command=[]",
          "checkpoint.dir=",
          "checkpoint.store=",
          "checkpoint.memory=off",
          "checkpoint.interval=given",
          "checkpoint.every_steps=0",
          "checkpoint.every_seconds=0",
          "checkpoint.on_exit=false",
          "fault_tolerance.max_restarts=0"};
}

std::optional<uint64_t> saved_digest(const ckpt::StateInfo& info) {
  const auto digest = digest_of(info);
  return digest ? std::optional(digest->value) : std::nullopt;
}

Remedies recorded_remedies(const ckpt::StateInfo& info) { return training_state(info, false).remedies; }

std::string why_not_same_bits(const ckpt::StateInfo& recorded, const JobSpec& replay,
                              const std::string& numerics) {
  if (recorded.numerics != numerics)
    return fmt::format("the run was computed with other numerics ({}, here {})",
                       recorded.numerics.empty() ? "not recorded" : recorded.numerics, numerics);
  const Json extra = try_parse_json(recorded.extra_json);
  const int tensor = extra.is_object() && extra.contains("mesh") ? extra["mesh"].value("tensor", 0) : 0;
  if (tensor != 0 && tensor != replay.mesh().tp)
    return fmt::format("tensor parallelism of {} rounds other sums than the run's, of {}", replay.mesh().tp,
                       tensor);
  return "";
}

}  // namespace trainctl
