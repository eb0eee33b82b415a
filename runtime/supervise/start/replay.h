// A replay computes steps of a run again, from a checkpoint before them, as a branch of the run in a folder
// of its own, which saves nothing. What it records is compared with what the run recorded.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/supervise/start/launch.h"

namespace trainctl {

/// The steps to compute again: those after `from` up to `to`.
struct ReplayRange {
  std::optional<int64_t> from;  ///< of a checkpoint; nullopt: the run's start
  int64_t to = 0;
  std::string problem;  ///< why none can be, one sentence with what to do; "": they can
  std::string note;     ///< what is not as it was asked, one sentence; "": nothing
};

struct ReplayWish {
  int64_t steps = 1;                ///< so many at least, where there is an older checkpoint
  std::optional<int64_t> to;        ///< the step of a checkpoint; nullopt: of the newest
  bool begins_with_weights = true;  ///< false: the run began from another one's checkpoint
};
/// saved: the steps of the checkpoints. Pure.
ReplayRange choose_replay(std::vector<int64_t> saved, const ReplayWish& wish);

/// What is set in the job of a replay below `folder`: it saves nothing, leaves nothing elsewhere, decides
/// nothing about its loss and sends no alert.
std::vector<std::string> replay_overrides(const std::string& folder, const std::string& id);

/// The digest that a checkpoint has of its state; nullopt: it was saved without one.
std::optional<uint64_t> saved_digest(const ckpt::StateInfo& info);

/// What the run had decided about its loss by then: a checkpoint before that does not know it.
Remedies recorded_remedies(const ckpt::StateInfo& info);

/// What keeps the bits of a replay from being those of the run, one sentence; "": nothing does.
std::string why_not_same_bits(const ckpt::StateInfo& recorded, const JobSpec& replay,
                              const std::string& numerics);

}  // namespace trainctl
