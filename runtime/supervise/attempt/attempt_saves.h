// AttemptSaves answers the saves of one attempt: it takes the receipts of the ranks, publishes the checkpoint
// on a thread of its own, and sends the ranks the result.
//
// One thread calls it: the thread of the attempt. Only publishing runs beside it.
#pragma once
#include <functional>
#include <future>
#include <utility>
#include <vector>

#include "runtime/run/record/save_collector.h"
#include "runtime/run/wire/protocol.h"
#include "runtime/supervise/attempt/run_log.h"

namespace trainctl {

class AttemptSaves {
 public:
  /// What the saves need from their attempt. All are called on its thread, within a call of this class.
  struct Attempt {
    std::function<void(const protocol::Down&)> send_ranks;  ///< to every rank
    std::function<void(int rank, const protocol::Down&)> send_rank;
    std::function<void()> progressed;             ///< a save ended: the ranks are not stuck
    std::function<void(int64_t step)> published;  ///< a checkpoint of this step is complete
  };

  /// `attach`: the ranks ran before this supervisor, which may have missed parts of a save.
  AttemptSaves(FileSystem& fs, Clock& clock, RunLog& log, SaveCollector::Options options, bool attach,
               Attempt attempt);
  /// Waits for the thread that publishes.
  ~AttemptSaves();
  AttemptSaves(const AttemptSaves&) = delete;
  AttemptSaves& operator=(const AttemptSaves&) = delete;

  /// Readable when a save has been published: turn() then takes its result.
  int fd() const { return published_fd_; }

  /// A rank has connected, perhaps again: repeats the answers that it may have missed.
  void hello(int rank);
  void begin(const protocol::Begin& begin);
  void hand_in(int rank, protocol::Shard&& shard);
  /// Takes what has happened meanwhile, and keeps the ranks waiting as long as a save is under way. Call it
  /// in each turn of the attempt. Throws RunTaken if another supervisor has taken the run.
  void turn();
  /// Waits for the save that is being published, and gives up one that is not complete. Throws like turn().
  void end();

 private:
  void adopt_published(const protocol::Begin& begin, const SaveOutcome& outcome);
  void answer_late(int rank, const protocol::Shard& shard);
  void take_early();
  void take_result(bool wait);
  void keep_ranks_waiting();

  Clock& clock_;
  RunLog& log_;
  const bool attach_;
  const Attempt attempt_;
  const double started_s_;
  SaveCollector collector_;
  int published_fd_ = -1;
  int64_t number_ = 0;  // of the save under way
  double began_s_ = 0, alive_s_ = 0;
  std::vector<protocol::Down> begun_;                   // every answer to begin so far
  std::vector<std::pair<int, protocol::Shard>> early_;  // shards that came before their save was known
  std::future<SaveOutcome> publishing_;                 // its thread uses collector_ and published_fd_
};

}  // namespace trainctl
