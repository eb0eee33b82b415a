// SavePublisher publishes saves on threads of its own, one at a time: a file system may take long, or never
// answer. A thread that does not come back is given up: it is left to itself, and does nothing more of its
// own accord when its file system answers after all. The rename under way then may still be done; an epoch
// that has begun meanwhile is safe from it (ckpt/contest.h).
//
// One thread calls it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/run/saves/save_collector.h"

namespace trainctl {

class SavePublisher {
 public:
  /// `fs` and `clock` must outlive it and the threads that it has given up: they live as long as the program.
  SavePublisher(FileSystem& fs, Clock& clock, SaveCollector::Options options);
  /// Gives up what is under way.
  ~SavePublisher();
  SavePublisher(const SavePublisher&) = delete;
  SavePublisher& operator=(const SavePublisher&) = delete;

  /// Readable when the save has ended and take() has not been called.
  int fd() const { return ended_fd_; }
  /// Publishes a complete save (SaveCollector::publish). Before that removes the files of the saves `remove`.
  /// Nothing may be under way.
  void publish(CollectedSave save, std::vector<ckpt::StateInfo> remove);
  /// Removes what is left of saves (SaveCollector::remove_all). Nothing may be under way.
  void remove_all();
  bool is_busy() const { return under_way_ != nullptr; }
  /// The outcome, once; of a removal that it has ended, at step -1; nullopt: nothing has ended since the last
  /// call.
  std::optional<SaveOutcome> take();
  /// When the file system last answered, on the clock; nullopt: nothing is under way.
  std::optional<double> answered_s() const;
  /// Seconds since then; 0: nothing is under way.
  double quiet_s() const;
  /// One sentence about that: "the file system of /run/ckpt has not answered for 12 s while publishing step
  /// 8".
  std::string quiet_text() const;
  /// Leaves what is under way to its thread. Returns its outcome, a failure.
  SaveOutcome give_up();

 private:
  struct UnderWay;
  void begin(int64_t step, std::function<SaveOutcome(const SaveCollector&)> work);
  FileSystem& fs_;
  Clock& clock_;
  const SaveCollector::Options options_;
  int ended_fd_ = -1;
  std::shared_ptr<UnderWay> under_way_;
};

}  // namespace trainctl
