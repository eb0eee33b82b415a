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
#include "runtime/supervise/loop/supervise_plan.h"

namespace trainctl {

class RunSource {
 public:
  /// `plan` must outlive it.
  RunSource(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, RunLog& log);

  /// Step 0, or the checkpoint of the run's parent.
  void begin_at_start();
  /// Finds the newest state that `find` allows and tells `recovery`. `newest_step`: no later one is taken from
  /// memory. It is at most the last step that the run has reported, because those after it are missing in its
  /// records, and less than the run's last step, which must become a checkpoint.
  ///   found    the newest checkpoint of the directory that `find` allows
  ///   events   lines of events.jsonl, for suspect states; those in memory that are passed over are recorded
  void find(const FindCheckpoint& find, RunCheckpoints::Found found, std::vector<NodePieces> memory,
            int64_t newest_step, const std::vector<std::string>& events, Recovery& recovery);

  int64_t step() const { return step_; }
  const std::string& folder() const { return folder_; }  ///< "": a fresh start, or a state in memory
  const std::optional<Source>& memory() const { return memory_; }
  /// Whether it is the checkpoint of the run's parent.
  bool at_start() const { return plan_.start && folder_ == plan_.start->checkpoint; }
  /// "step 41, from the memory of 1 node", "checkpoint step 40"
  std::string text() const;
  /// "memory", "directory", "store" for a checkpoint that was copied from there for this attempt; "" for a
  /// fresh start.
  std::string tier() const;
  /// Whether the ranks of an attempt reach the state: on one machine always, else if every node that holds
  /// a part of it is there.
  bool is_reachable(const Fleet& fleet) const;
  /// Where ranks on several nodes read it; empty if it is not in memory, or on one machine.
  std::vector<wire::PieceHolder> holders(const Fleet& fleet) const;
  /// The newest step that is durable.
  int64_t durable_step() const;
  /// Fills in what the ranks of the attempt in `file` load. file.epoch is set.
  void put_into(AttemptFile& file) const;

 private:
  void record_suspects(const SourceChoice& choice, const std::vector<Suspect>& suspects,
                       const RunCheckpoints::Found& found) const;
  const SupervisePlan& plan_;
  const RunDirectory run_;
  FileSystem& fs_;
  RunLog& log_;
  std::string folder_;
  bool from_store_ = false;
  std::optional<Source> memory_;
  int64_t step_ = 0;
};

/// The beginnings of the run's epochs so far, from attempt.json.
std::vector<Beginning> beginnings_of(FileSystem& fs, const RunDirectory& run);

/// Has the nodes of the attempt remove what they keep of other numbers of ranks, or of ranks elsewhere.
void forget_other_meshes(Fleet& fleet, const std::vector<AttemptOptions::Node>& places, uint64_t epoch);

/// Asks every agent that is connected for the pieces in its memory and waits for the answers, at most
/// `limit_s`. `handler` hears of nodes meanwhile and is the fleet's handler afterwards. `turn` is called in
/// each turn of the wait.
std::vector<NodePieces> ask_for_pieces(Fleet& fleet, Clock& clock, double limit_s,
                                       const Fleet::Handler& handler, const std::function<void()>& turn);
/// The pieces that this machine keeps of the run, which has no other nodes.
NodePieces pieces_here(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs);

}  // namespace trainctl
