// AttemptSaves answers the saves of one attempt: it takes what the ranks hand in, publishes a checkpoint on a
// thread of its own when all ranks have handed in, and sends the ranks the result. Several saves may be under
// way.
//
// One thread calls it: the thread of the attempt. No call waits for the file system of the checkpoints,
// except hand_in() after an attach.
#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <vector>

#include "runtime/run/saves/save_publisher.h"
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

  /// Readable when a save has been published: turn() then takes its result.
  int fd() const { return publisher_.fd(); }

  /// A rank has connected, perhaps again: repeats the answers that it may have missed.
  void hello(int rank);
  /// Of more than kMostUnpublishedSaves saves the oldest is given up.
  void hand_in(int rank, protocol::Shard&& shard);
  /// The ranks of a node have got this answer from the supervisor before, which may have died before those of
  /// all nodes had it. They will not hand in again: the others get the same answer.
  void answered_before(const protocol::Down& answer);
  /// Takes what has happened meanwhile, and keeps the ranks waiting as long as a save is under way. Call it
  /// in each turn of the attempt. Throws RunTaken if another supervisor has taken the run.
  void turn();
  /// No rank is left: gives up the saves that are not complete. The others are published, then the files of
  /// those that are not are removed.
  void finish();
  /// Whether the thread that publishes is at work.
  bool is_busy() const { return publisher_.is_busy(); }
  /// Seconds since the file system last answered it; 0: it is not at work.
  double quiet_s() const { return publisher_.quiet_s(); }
  /// Gives up what that thread does, and all saves that are not published. What they have left is removed
  /// before the next epoch begins. Throws like turn().
  void give_up();

 private:
  void answer(int64_t number, const SaveOutcome& outcome);
  void send_answer(const protocol::Down& down);
  bool is_complete(int64_t number) const;
  void give_up_oldest();
  void publish_next();
  void take_result();
  void ended(const SaveOutcome& outcome);
  void report_silence();
  void keep_ranks_waiting();

  Clock& clock_;
  RunLog& log_;
  const bool attach_;
  const Attempt attempt_;
  SaveCollector collector_;
  SavePublisher publisher_;
  double alive_s_ = 0;
  std::map<int64_t, double> began_s_;          // of each save under way, by number
  std::list<CollectedSave> complete_;          // to be published
  int64_t publishing_ = -1;    // the number of the save that is being published; -1: files are removed
  double answered_s_ = 0;      // when the file system last answered, as far as is reported
  bool said_silence_ = false;  // of what is under way
  bool has_ranks_ = true, removes_the_rest_ = false;  // when nothing is left to publish
  std::map<int64_t, protocol::Down> answers_;  // the newest, by number
  std::map<int64_t, protocol::Down> answers_before_;  // of the supervisor before; the newest, by number
  int64_t oldest_known_ = 0;  // answers to saves of smaller numbers are forgotten
  std::vector<ckpt::StateInfo> given_up_;  // whose files are removed before the next save is published
};

}  // namespace trainctl
