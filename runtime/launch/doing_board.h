// Where every rank of one machine writes what it is doing, in shared memory: readable after the rank was killed
// or stopped, and up to the microsecond, where a heartbeat is up to a second old.
#pragma once
#include <memory>
#include <string>

namespace trainctl {

/// One slot a rank. Each slot has one writer, any number of readers, in any process. Texts are cut at 500
/// bytes.
class DoingBoard {
 public:
  /// The supervisor's: makes the file. Null if it cannot be made (then heartbeats must do).
  static std::unique_ptr<DoingBoard> create(const std::string& path, int ranks);
  /// A rank's: null where there is no such file, as on another machine.
  static std::unique_ptr<DoingBoard> open(const std::string& path);
  ~DoingBoard();
  DoingBoard(const DoingBoard&) = delete;
  DoingBoard& operator=(const DoingBoard&) = delete;

  /// Cheap: a copy, no system call. Ranks outside the board are ignored.
  void write(int rank, const std::string& text);
  std::string read(int rank) const;

 private:
  struct Slot;
  DoingBoard(Slot* slots, int count) : slots_(slots), count_(count) {}
  static std::unique_ptr<DoingBoard> map(int fd, int count);
  Slot* slots_;
  int count_;
};

}  // namespace trainctl
