// The checkpoint that a run goes on from: the newest that opens, or that can be repaired so that it does, and
// that is not suspect.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/supervise/care/run_store.h"
#include "runtime/train/control/event_kind.h"

namespace trainctl {

struct UsableRequest {
  std::string directory, run_id;
  std::string store;                ///< that has copies; "": none
  std::vector<std::string> events;  ///< lines of events.jsonl
  std::optional<int64_t> at_most;   ///< the latest step; nullopt: any; < 0: none but the damaged one
  std::optional<int64_t> damaged;   ///< ranks could not load it: only if it can be repaired, and then first
  std::function<void(const std::string&)> say;  ///< lines for the console
  /// Asked again and again; true ends the search by CareInterrupted.
  std::function<bool()> is_given_up = [] { return false; };
};

struct Usable {
  std::unique_ptr<ckpt::Checkpoint> checkpoint;           ///< null: there is none
  std::vector<int64_t> skipped;                           ///< steps of newer ones that do not open
  std::vector<std::pair<EventKind, std::string>> events;  ///< for events.jsonl
};

/// Throws no Error.
Usable find_usable(const StoreAccess& access, const UsableRequest& request);

}  // namespace trainctl
