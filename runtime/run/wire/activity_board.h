// Where every rank of one machine writes what it does, in shared memory: readable after the rank was killed or stopped, and up to
// the microsecond, where a heartbeat is up to a second old.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/activity.h"

namespace trainctl {

/// Two slots a rank, for what the rank and what its device does. Each slot has one writer, any number of readers, in any process.
class ActivityBoard {
 public:
  /// The supervisor's: makes the file. Null if it cannot be made (then heartbeats must do).
  static std::unique_ptr<ActivityBoard> create(const std::string& path, int ranks);
  /// A rank's: null where there is no such file, as on another machine.
  static std::unique_ptr<ActivityBoard> open(const std::string& path);
  ~ActivityBoard();
  ActivityBoard(const ActivityBoard&) = delete;
  ActivityBoard& operator=(const ActivityBoard&) = delete;

  /// Cheap: a copy, no system call. Ranks outside the board are ignored.
  void write(int rank, const Activity& activity);
  void write_device(int rank, const Activity& activity);
  /// Nothing if the rank has written nothing.
  std::optional<Activity> read(int rank) const;

 private:
  struct Slots {
    ActivitySlot host, device;
  };
  ActivityBoard(Slots* slots, int count) : slots_(slots), count_(count) {}
  static std::unique_ptr<ActivityBoard> map(int fd, int count);
  Slots* slots_;
  int count_;
};

}  // namespace trainctl
