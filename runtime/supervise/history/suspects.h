// Suspect states: each loaded twice, from a checkpoint or from memory, and both times a loss or gradient norm
// was not finite within a few steps. Their bytes are good, but what they hold may be wrong, so recovery passes
// them over while an older one is there.
//
// Found in events.jsonl: a step that is skipped in attempts that began elsewhere, too, says nothing against a
// state before it, and a step that was computed again and saved is another state.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/run/record/doubted_state.h"

namespace trainctl {

struct Suspect {
  int64_t step = 0;
  std::vector<uint64_t> epochs;  ///< the attempts that loaded it, two or more
  std::string text() const;      ///< one sentence
  DoubtedState doubted() const;  ///< for copies in memory: those that the attempts may have loaded
  std::string event_json() const;
};

/// Bad steps up to so many after a load count against the checkpoint.
inline constexpr int64_t kSuspectSteps = 10;

/// `events`: the lines of events.jsonl. Pure.
std::vector<Suspect> suspect_checkpoints(const std::vector<std::string>& events);

/// The same, as choose_source takes them.
std::vector<DoubtedState> doubted_states(const std::vector<Suspect>& suspects);

/// open_latest of ckpt/checkpoint.h with a step of `at_most` (nullopt: any; < 0: none), which passes over
/// suspects if an older checkpoint opens. `suspected` is called for each of them; `is_used`: it is the
/// result, since there is no older one.
std::unique_ptr<ckpt::Checkpoint> open_latest_trusted(
    FileSystem& fs, const std::string& directory, std::optional<int64_t> at_most,
    const std::vector<Suspect>& suspects,
    const std::function<void(const std::string&, const std::string&)>& skipped,
    const std::function<void(const Suspect&, bool is_used)>& suspected);

}  // namespace trainctl
