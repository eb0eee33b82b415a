// AttemptSaves answers the saves of one attempt: it takes what the ranks hand in, has a checkpoint published
// when all ranks have handed in, and sends the ranks the result. Several saves may be under way.
//
// One thread calls it: the thread of the attempt. No call waits for the file system of the checkpoints,
// except hand_in() after an attach.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/run/saves/save_publisher.h"
#include "runtime/run/wire/protocol.h"
#include "runtime/run/wire/save_answers.h"

namespace trainctl {

class AttemptSaves {
 public:
  /// What saves bring about. All are called on the thread of the attempt, within a call of AttemptSaves.
  class Effects {
   public:
    virtual ~Effects() = default;
    virtual void send_ranks(const protocol::Down& down) = 0;
    virtual void send_rank(int rank, const protocol::Down& down) = 0;
    virtual void save_progressed() = 0;             ///< the ranks that wait for a save are not stuck
    virtual void save_published(int64_t step) = 0;  ///< a checkpoint of this step is complete
    // For the records, as RunLog has them.
    virtual void save_ended(const SaveOutcome& outcome, double seconds) = 0;
    virtual void save_ended_before(const SaveOutcome& outcome) = 0;
    virtual void save_superseded(int64_t step, const std::string& why) = 0;
    virtual void save_hangs(const std::string& text) = 0;
  };

  /// All three must outlive it. `attach`: the ranks ran before this supervisor, which may have missed parts
  /// of a save.
  AttemptSaves(SavePublishing& publisher, Clock& clock, Effects& effects, int ranks, bool attach);

  /// A rank has connected, perhaps again: repeats the answers that it may have missed.
  void hello(int rank);
  /// Of more than kMostUnpublishedSaves saves the oldest is given up.
  void hand_in(int rank, protocol::Shard&& shard);
  /// The ranks of a node have got this answer from the supervisor before, which may have died before those of
  /// all nodes had it. They will not hand in again: the others get the same answer. So what is on the disk
  /// decides only where all ranks have handed in.
  void answered_before(const protocol::Down& answer);
  /// Takes what has happened meanwhile, and keeps the ranks waiting as long as a save is under way. Call it
  /// in each turn of the attempt. Throws RunTaken if another supervisor has taken the run.
  void turn();
  /// No rank is left: gives up the saves that are not complete. The others are published, then the files of
  /// those that are not are removed.
  void finish();
  /// Whether something is being published or removed.
  bool is_busy() const { return publisher_.is_busy(); }
  /// Seconds since the file system last answered it; 0: it is not at work.
  double quiet_s() const { return publisher_.quiet_s(); }
  /// Gives up what is being done there, and all saves that are not published. What they have left is removed
  /// before the next epoch begins. Throws like turn().
  void give_up();

 private:
  void complete(CollectedSave&& save);
  void answer_as_before(const protocol::Down& before, int64_t step);
  void answer(int64_t number, const SaveOutcome& outcome);
  void send_answer(const protocol::Down& down);
  bool is_complete(int64_t number) const;
  void give_up_oldest();
  void publish_next();
  void take_result();
  void ended(const SaveOutcome& outcome);
  void report_silence();
  void keep_ranks_waiting();

  SavePublishing& publisher_;
  Clock& clock_;
  Effects& effects_;
  const bool attach_;
  SaveCollector collector_;
  double alive_s_ = 0;
  std::map<int64_t, double> began_s_;          // of each save under way, by number
  std::list<CollectedSave> complete_;          // to be published
  int64_t publishing_ = -1;    // the number of the save that is being published; -1: files are removed
  double answered_s_ = 0;      // when the file system last answered, as far as is reported
  bool said_silence_ = false;  // of what is under way
  bool has_ranks_ = true, removes_the_rest_ = false;  // when nothing is left to publish
  SaveAnswers answers_;
  std::set<int64_t> unsent_;  // answers of the supervisor before that are in no record and went to no rank
  std::vector<ckpt::StateInfo> given_up_;  // whose files are removed before the next save is published
};

}  // namespace trainctl
