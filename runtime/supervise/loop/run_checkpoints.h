// RunCheckpoints is what the supervisor does with the checkpoints of its run: the care of those that were saved
// (care_thread.h), whose results go to records and console and for which the end of the run waits, and the
// search for the one to go on from. One thread.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/care/care_thread.h"
#include "runtime/supervise/decide/recovery.h"
#include "runtime/supervise/loop/lock_watch.h"
#include "runtime/supervise/loop/supervise_plan.h"

namespace trainctl {

class RunCheckpoints {
 public:
  /// The arguments must outlive this object.
  RunCheckpoints(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Clock& clock,
                 RunLog& log, const LockWatch& lock);

  /// A new attempt begins at `step`, before its event; or (attach) goes on.
  void begin(uint64_t epoch, int64_t step);
  void attach(uint64_t epoch);
  /// A check of replicas behind this step agreed: the newest checkpoint up to it is kept.
  void verified(int64_t step) { thread_.keep_upto(step); }
  void pause() { thread_.pause(); }
  void published() { thread_.published(); }
  /// Call it in every turn of a loop.
  void turn();
  /// That the state of the run is not finite, since so many checkpoints that it will not become so again.
  Problem lost_state() const;
  /// At the orderly end of a run: waits until every checkpoint is where it should be, at most `limit_s`, and
  /// says what is not. `in_haste`: the job's time is nearly over. `is_given_up` is asked meanwhile.
  void finish(double limit_s, bool in_haste, const std::function<bool()>& is_given_up);

  /// The checkpoint that answers `find`: the newest that opens or can be repaired from the store, and is not
  /// suspect. If there is none, one from the store is copied into the folder. `serve` is called meanwhile, ten
  /// times a second; if it returns false the search ends without a result.
  struct Found {
    std::unique_ptr<ckpt::Checkpoint> checkpoint;           ///< null: there is none
    std::vector<int64_t> skipped;                           ///< steps of those that do not open
    bool from_store = false;                                ///< it was copied from the store by this call
    std::vector<std::pair<EventKind, std::string>> events;  ///< of the search; are recorded already
  };
  Found find(const FindCheckpoint& find, const std::function<bool()>& serve);

 private:
  struct Meanwhile;
  void keep_way_back(std::vector<std::string> events);
  void find_here(const FindCheckpoint& find, Found& found, const Meanwhile& meanwhile);
  bool fetch(std::optional<int64_t> at_most, Found& found, const Meanwhile& meanwhile);
  const SupervisePlan& plan_;
  const RunDirectory& run_;
  FileSystem& fs_;
  Clock& clock_;
  RunLog& log_;
  const std::string run_id_, store_;
  CareProgress progress_;
  CareThread thread_;
};

}  // namespace trainctl
