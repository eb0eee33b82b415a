// Which state a resume goes on from: one that the ranks left in memory, the newest usable checkpoint of the
// run's folder, or one that is copied from the store first.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/run/record/console.h"
#include "runtime/supervise/care/run_store.h"
#include "runtime/supervise/decide/source.h"
#include "runtime/supervise/start/start.h"

namespace trainctl {

/// Where a branch begins again while it has no checkpoint of its own; nothing for other runs.
std::optional<SupervisePlan::Start> start_of(const RunIdentity& identity);

/// What a search needs; all of it outlives the search.
struct BeginSearch {
  const ResumeRequest& request;
  const RunIdentity& identity;
  FileSystem& fs;
  Clock& clock;
  Console& console;
  std::function<bool()> is_given_up;  ///< asked again and again; true ends the search
};

/// The state to go on from.
struct BeginState {
  std::unique_ptr<ckpt::Checkpoint> checkpoint;  ///< null: there is none yet
  std::optional<Source> memory;                  ///< where it is, if it is in the memory of this machine
  std::optional<Fetched> fetched;                ///< it, or a newer one, was copied from the store
  std::vector<std::pair<EventKind, std::string>> events;  ///< of the search for it
  std::vector<int64_t> doubted;  ///< steps of checkpoints that did not open
  bool was_saved = false;        ///< the run's records say that it saved one
  double opened_in_s = 0;
};
/// Copies a checkpoint out of the store first if the folder has none, or older ones. A store that cannot be
/// used is an error only where the run cannot go on without it. Error(kCheckpoint): there are checkpoints, but
/// none is usable. Error(kStopped): is_given_up.
///   living   the ranks of the run may be alive: the store is asked only where the folder has none at all
BeginState find_begin(const BeginSearch& search, bool living);

/// What --from-scratch asks for: the run's own start, whatever was saved. Error(kUsage): the store has
/// checkpoints of the run, which those of a new beginning would replace.
BeginState begin_at_start(const BeginSearch& search);

/// A run whose records say that it saved does not begin again because nothing was found: what was lost may be
/// a mount. Error(kCheckpoint) if `checkpoint` is none of its own.
void refuse_to_begin_again(const ckpt::Checkpoint* checkpoint, const BeginSearch& search);

/// The folder may be one given anew (checkpoint.dir): another run's checkpoints must not be taken for ours,
/// and an empty one must not make a run with saved steps begin again. Error(kCheckpoint) if so.
void check_belongs(const ckpt::Checkpoint* checkpoint, const BeginSearch& search);

}  // namespace trainctl
