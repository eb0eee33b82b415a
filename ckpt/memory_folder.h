// MemoryFolder: the folder of a run on a node's memory file system, in which ranks keep pieces of the state
// (ckpt/pieces.h). It outlives ranks and attempts.
//
//     /dev/shm/trainctl-<uid>-<hash of run directory and node>/    mode 0700
//         run                          the run directory, one line; its owner holds a lock on this file
//         alive                        when its owner was alive last, on the monotonic clock of the machine
//         rank-00003-of-00008.slots    pieces of one rank
//
// The agent of the node owns it: it takes the folder at the first start of ranks and removes it when it ends
// by order or is abandoned. An agent that is killed leaves the folder, and its successor takes it. What is
// left by a run without a supervisor is listed by stray_memory and removed by sweep_memory.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trainctl::ckpt {

/// The path of that folder; pure except for the user's id.
std::string memory_folder_path(const std::string& run_directory, const std::string& node);

class MemoryFolder {
 public:
  /// Makes the folder, or takes the one that is there. Error(kIo) if it cannot be made, belongs to another
  /// user or another process owns it.
  static std::unique_ptr<MemoryFolder> take(const std::string& run_directory, const std::string& node);
  /// Takes the folder if it is there; null if not.
  static std::unique_ptr<MemoryFolder> find(const std::string& run_directory, const std::string& node);
  /// Gives up ownership; the folder stays.
  ~MemoryFolder();
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;
  const std::string& path() const { return path_; }
  /// Leaves a sign of life, which counts for a sweep after the owner's death. Does not throw.
  void note_alive() noexcept;
  /// Removes the folder with all that is in it. Does not throw: what cannot be removed is a stray.
  void remove() noexcept;

 private:
  MemoryFolder(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  std::string path_;
  int lock_fd_ = -1;
};

/// A folder that no agent owns.
struct StrayMemory {
  std::string path, run_directory;
  uint64_t bytes = 0;
  /// Since the newest sign of life: of the run (status.json), or of the folder's last owner, whose time no
  /// change of the system's clock touches. Infinite if the run is gone.
  double idle_s = 0;
};
/// Those of this user, in order of path. `now_unix_s`: the time of the system.
std::vector<StrayMemory> stray_memory(double now_unix_s);
/// So long the memory of a run that lost its supervisor and agents is kept for a `trainctl resume`.
inline constexpr double kStrayMemoryKeptS = 3600;
/// Removes strays that have been idle for longer than kStrayMemoryKeptS. Returns how many.
int sweep_memory(double now_unix_s);

}  // namespace trainctl::ckpt
