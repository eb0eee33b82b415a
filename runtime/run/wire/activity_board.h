// ActivityBoard holds the activities of all ranks of one machine in shared memory. It can be read after a
// rank was killed or stopped, and it is current, while a heartbeat may be a second old.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/activity.h"

namespace trainctl {

/// Two slots per rank: the activity of its host thread and of its device. Each slot has one writer and any
/// number of readers, in any process.
class ActivityBoard {
 public:
  /// Makes the file; used by the node's agent. Null if the file cannot be made; then only heartbeats report
  /// activities.
  static std::unique_ptr<ActivityBoard> create(const std::string& path, int ranks);
  /// Opens the file; used by a rank. Null if the file does not exist.
  static std::unique_ptr<ActivityBoard> open(const std::string& path);
  ~ActivityBoard();
  ActivityBoard(const ActivityBoard&) = delete;
  ActivityBoard& operator=(const ActivityBoard&) = delete;

  /// Cheap: a copy, no system call. Ranks outside the board are ignored.
  void write(int rank, const Activity& activity);
  void write_device(int rank, const Activity& activity);
  /// The activity of host and device together (with_device); nullopt if the rank has written none.
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
