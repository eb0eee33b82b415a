// RunSource: the state from which the next attempt of a run goes on. It finds the states that the run has
// in the memory of its nodes and in its directory, and takes the one that choose_source decides for.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/supervise/attempt/attempt.h"
#include "runtime/supervise/decide/source.h"
#include "runtime/supervise/history/suspects.h"
#include "runtime/supervise/loop/run_checkpoints.h"
#include "runtime/supervise/loop/supervised_run.h"

namespace trainctl {

class RunSource {
 public:
  /// `run` must outlive it.
  explicit RunSource(SupervisedRun& run);

  /// Step 0, or the checkpoint of the run's parent.
  void begin_at_start();
  /// Finds the newest state that `find` allows and tells `recovery`. `newest_step`: no later one is taken from
  /// memory. It is at most the last step that the run has reported, because those after it are missing in its
  /// records, and less than the run's last step, which must become a checkpoint.
  ///   found    the newest checkpoint of the directory that `find` allows
  ///   events   lines of events.jsonl, for suspect states; those in memory that are passed over are recorded
  void find(const FindCheckpoint& find, RunCheckpoints::Found found, std::vector<NodePieces> memory,
            int64_t newest_step, const std::vector<std::string>& events, Recovery& recovery);

  const BeginFrom& state() const { return state_; }
  int64_t step() const { return state_.step; }
  /// The newest step that is durable.
  int64_t durable_step() const;
  /// See AttemptFile.
  bool has_new_data() const { return state_.of_parent && run_.plan.start->new_data; }
  std::string manifest() const;

 private:
  BeginFrom checkpoint_in(std::string folder, int64_t step, bool from_store) const;
  void record_suspects(const SourceChoice& choice, const std::vector<Suspect>& suspects,
                       const RunCheckpoints::Found& found) const;
  SupervisedRun& run_;
  BeginFrom state_;
};

/// The beginnings of the run's epochs so far, from attempt.json.
std::vector<Beginning> beginnings_of(FileSystem& fs, const RunDirectory& run);

/// What choose_source must know of the run's records. The caller adds what there is to choose from.
///   newest_step   no later one is taken from memory
SourceQuestion source_question(FileSystem& fs, const RunDirectory& run, const std::string& run_id,
                               const std::vector<Suspect>& suspects, int64_t newest_step);

/// Has the nodes of the attempt remove what they keep of other numbers of ranks, or of ranks elsewhere.
void forget_other_meshes(Fleet& fleet, const std::vector<AttemptPlan::Node>& places, uint64_t epoch);

/// Asks every agent that is connected for the pieces in its memory and waits for the answers, at most
/// `limit_s`. `handler` hears of nodes meanwhile and is the fleet's handler afterwards. `turn` is called in
/// each turn of the wait.
std::vector<NodePieces> ask_for_pieces(Fleet& fleet, Clock& clock, double limit_s,
                                       const Fleet::Handler& handler, const std::function<void()>& turn);
/// The pieces that this machine keeps of the run, which has no other nodes.
NodePieces pieces_here(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs);

}  // namespace trainctl
