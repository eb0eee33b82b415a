// RunCheckpoints is what the supervisor does with the checkpoints of its run: the care of those that were saved
// (care_thread.h), whose results go to records and console and for which the end of the run waits, and the
// search for the one to go on from. One thread.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/care/care_thread.h"
#include "runtime/supervise/loop/lock_watch.h"
#include "runtime/supervise/loop/supervisor.h"

namespace trainctl {

class RunCheckpoints {
 public:
  /// The arguments must outlive this object.
  RunCheckpoints(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Clock& clock,
                 RunLog& log, const LockWatch& lock);

  void begin(uint64_t epoch, int64_t step) { thread_.begin(epoch, step); }
  void pause() { thread_.pause(); }
  void published() { thread_.published(); }
  /// Call it in every turn of a loop.
  void turn();
  /// At the orderly end of a run: waits until every checkpoint is where it should be, for a limited time, and
  /// says what is not. `in_haste`: the job's time is nearly over. `is_given_up` is asked meanwhile.
  void finish(bool in_haste, const std::function<bool()>& is_given_up);

  /// The newest checkpoint of a step up to `at_most` that opens and is not suspect. If there is none at all, one
  /// from the store is copied into the folder first; `serve` is called meanwhile, ten times a second.
  struct Found {
    std::unique_ptr<ckpt::Checkpoint> checkpoint;  ///< null: there is none
    int skipped = 0;                               ///< how many do not open
    bool from_store = false;                       ///< it was copied from the store by this call
  };
  Found find(std::optional<int64_t> at_most, const std::function<void()>& serve);

 private:
  void find_here(int64_t at_most, Found& found);
  bool fetch(const std::function<void()>& serve);
  const SupervisePlan& plan_;
  const RunDirectory& run_;
  FileSystem& fs_;
  Clock& clock_;
  RunLog& log_;
  const std::string run_id_, store_;
  CareThread thread_;
};

}  // namespace trainctl
