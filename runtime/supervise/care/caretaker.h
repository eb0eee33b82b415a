// Caretaker takes care of the checkpoints of a run after they were saved. Each new one is read again once
// (scrub) and repaired if it is damaged; one whose every byte is good is marked verified. Only verified ones
// count for retention, and only they are copied to checkpoint.store.
//
//   saved --scrub--> verified --retention--> older ones removed --upload--> copied --retention there
//            |
//            +--> damaged: repaired from the store, or from equal chunks next to it, or passed over
//            +--> not readable, for now: said, and tried again
//
// What was done survives the process in CheckpointMarks; what a crash interrupts is done again. No thread:
// CareThread (care_thread.h) calls work() on one of its own.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ckpt/places.h"
#include "ckpt/repair.h"
#include "ckpt/store.h"
#include "runtime/base/problem.h"
#include "runtime/supervise/care/marks.h"
#include "runtime/supervise/care/run_store.h"
#include "runtime/train/control/event_kind.h"

namespace trainctl {

/// Something that was done or failed, for events.jsonl and the console.
struct CareReport {
  EventKind kind;
  std::string json;  ///< fields of the event
  std::string note;  ///< line for the console; "": none
};

/// What status shows.
struct CareProgress {
  int64_t verified_step = -1, uploaded_step = -1;
  int64_t finite_step = -1;  ///< the newest verified one without a NaN or an infinity; -1: none
  int not_finite_saves = 0;  ///< verified by this process in a row, and newer, that have some
  bool operator==(const CareProgress&) const = default;
};

/// Thrown by Caretaker::work where CareOptions::must_hold threw. Not an Error, so that nothing takes it for a
/// failure of a disk.
struct CareTaken {};

struct CareOptions {
  std::string run_id;
  std::string directory;   ///< folder of the checkpoints
  std::string marks_path;  ///< of CheckpointMarks
  int keep_last = 2;
  int64_t keep_every_steps = 0;
  std::string store;  ///< name of the store, for messages; "": there is none
  /// Opens the store for the supervisor of this epoch; called again after a failure, since credentials may
  /// have changed. Error.
  std::function<ckpt::OpenPlace(uint64_t epoch)> open_store;
  int64_t store_every_steps = 0;
  bool store_rests =
      false;  ///< copying takes a quarter of the time at most; store_every_steps does not count
  double read_bytes_per_s = 0;              ///< of a scrub; 0: no limit
  std::function<void()> must_hold = [] {};  ///< throws an exception if another process has the run
  std::function<void()> go_on = [] {};      ///< asked often; throws CareInterrupted
  std::function<void(const CareReport&)> report = [](const CareReport&) {};
};

/// Whether a checkpoint of `step` is to be copied when the newest copy is of step `copied` (-1: none): a
/// multiple of `every` lies between, or is `step`; 0: each one.
bool is_copy_due(int64_t step, int64_t copied, int64_t every);

/// How long copying to the store rests after a copy that took so long: a copy costs training no time that is
/// measured, so the line and the disk are left to training for three quarters of the time.
double store_rest_s(double copy_s);

/// Seconds until the next try after so many failures in a row: 5, 10, 20, ... 600.
double care_retry_s(int failures);

class Caretaker {
 public:
  /// `fs` and `clock` outlive it. Reads the marks.
  Caretaker(FileSystem& fs, Clock& clock, CareOptions options);

  /// A new attempt begins at `step`: what is known of later steps is forgotten, and copies of them in the
  /// store do not count any more.
  void begin(uint64_t epoch, int64_t step);
  /// To a state of this step or before the run would go back: the newest such checkpoint is kept.
  void keep_upto(int64_t step) { keep_upto_ = step; }
  /// The checkpoint could not be opened or loaded: it does not count any more before it was read again.
  void doubt(int64_t step);
  /// A checkpoint was published.
  void published() { retain_due_ = true; }
  /// The run ends: the newest checkpoint is to be copied too, nothing is slowed down, and what fails is not
  /// waited for. Safe from any thread.
  void hurry() { is_last_ = true; }

  /// Does the next thing that is due. Returns the monotonic time of the next call; nullopt: there is nothing
  /// to do until published() or begin(). Failures of any kind are reported and tried again later. Throws only
  /// what go_on throws, and CareTaken.
  std::optional<double> work();

  CareProgress progress() const {
    return {newest_of(marks_.folder), newest_of(marks_.store), finite_step(), not_finite_saves_};
  }
  /// The checkpoints that are not where they should be.
  Problem left_over();

 private:
  std::optional<int64_t> next_to_scrub(bool with_milestones);
  std::optional<int64_t> next_to_copy();
  bool is_milestone(int64_t step) const;
  void scrub(int64_t step);
  enum class Repaired { yes, no, unread };
  Repaired repaired(ckpt::StoredFiles& files, const ckpt::VerifyReport& damage, double begin_s);
  void note_unread(int64_t step, const std::string& why);
  std::optional<double> sooner(std::optional<double> next_s) const;
  void retain_folder();
  std::optional<double> care_for_store();
  void copy(int64_t step);
  void tidy_store();
  void mark(std::vector<CheckpointMark>& marks, ckpt::StoredFiles& files, uint64_t not_finite = 0);
  int64_t finite_step() const;
  void keep_marks();
  void must_hold() const;
  void failed(const std::string& what);
  void store_failed(const std::string& what);
  std::unique_ptr<ckpt::StoredFiles> watched(std::unique_ptr<ckpt::StoredFiles> files, bool is_paced);
  ckpt::Store& store();
  ckpt::Retention retention(const std::vector<CheckpointMark>& marks) const;

  FileSystem& fs_;
  Clock& clock_;
  const CareOptions options_;
  const std::unique_ptr<ckpt::Store> folder_;
  CheckpointMarks marks_;
  std::set<std::string> damaged_;  ///< identities that a scrub found and could not repair
  /// Steps whose checkpoint cannot be read, for now: when each is tried again.
  struct Unread {
    double again_s = 0;
    int failures = 0;
  };
  std::map<int64_t, Unread> unread_;
  std::optional<ckpt::OpenPlace> place_;
  std::optional<ckpt::EpochBegin> set_aside_;  ///< to be said to the store
  uint64_t epoch_ = 0;
  std::optional<int64_t> keep_upto_;
  bool retain_due_ = true, store_retain_due_ = false, tried_last_ = false;
  bool is_stores_turn_ = false;  ///< a checkpoint was read again since the store was last cared for
  std::atomic<bool> is_last_ = false;
  int failures_ = 0, store_failures_ = 0, not_finite_saves_ = 0;
  double again_s_ = 0, store_again_s_ = 0;
  double store_rests_until_s_ = 0;
  std::shared_ptr<double> read_again_s_ = std::make_shared<double>(0);  ///< of the limited rate
  std::string store_failure_;
};

}  // namespace trainctl
