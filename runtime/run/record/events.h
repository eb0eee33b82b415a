// The events that the program itself reads again, as records; people and other programs read all of
// events.jsonl.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/record_fields.h"
#include "runtime/run/record/run_status.h"
#include "runtime/train/control/event_kind.h"

namespace trainctl {

/// An attempt begins.
struct StartEvent {
  static constexpr EventKind kKind = EventKind::start;
  uint64_t epoch = 0;
  int ranks = 0;
  int64_t from_step = 0;
  std::string tier;        ///< "memory", "directory" or "store"; "": no state is loaded
  std::string checkpoint;  ///< its folder; "" for tier memory
  std::string numerics;
  int64_t superseded_steps = 0;
  /// How long no attempt ran because nodes or storage were waited for; nullopt: an older version wrote this.
  std::optional<double> waited_s;
  static void fields(auto& f, auto& r) {
    f("epoch", r.epoch);
    f.when(!r.tier.empty(), "tier", r.tier);
    f.later("ranks", r.ranks);
    f.later("from_step", r.from_step);
    f.later("checkpoint", r.checkpoint);
    f.later("numerics", r.numerics);
    f.later("superseded_steps", r.superseded_steps);
    f.maybe("waited_s", r.waited_s);
  }
};

/// Another attempt follows one that failed.
struct RestartEvent {
  static constexpr EventKind kKind = EventKind::restart;
  int restart = 0;
  int64_t from_step = 0, lost_steps = 0;
  std::vector<std::string> nodes;
  int data = 0;  ///< the data-parallel width
  std::string reason;
  static void fields(auto& f, auto& r) {
    f("restart", r.restart);
    f.later("from_step", r.from_step);
    f.later("lost_steps", r.lost_steps);
    f.later("nodes", r.nodes);
    f.later("data", r.data);
    f("reason", r.reason);
  }
};

/// The supervisor has ended.
struct EndEvent {
  static constexpr EventKind kKind = EventKind::end;
  RunState state = RunState::failed;
  int64_t step = 0;
  int exit_code = 1;
  std::string reason;
  std::optional<double> waited_s;  ///< as StartEvent has it, after the last attempt
  static void fields(auto& f, auto& r) {
    f("state", r.state);
    f.later("step", r.step);
    f("exit_code", r.exit_code);
    f.later("reason", r.reason);
    f.maybe("waited_s", r.waited_s);
  }
};

/// A checkpoint is public.
struct CheckpointEvent {
  static constexpr EventKind kKind = EventKind::checkpoint;
  int64_t step = -1;
  double seconds = 0;
  uint64_t bytes = 0;
  double cpu_seconds = 0;  ///< time of the cores that the ranks' saving threads used, all together
  std::string root_hash;
  static void fields(auto& f, auto& r) {
    f("step", r.step);
    f.later("seconds", r.seconds);
    f.later("bytes", r.bytes);
    f.later("cpu_seconds", r.cpu_seconds);
    f.later("root_hash", r.root_hash);
  }
};

}  // namespace trainctl
