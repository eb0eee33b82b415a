// CareThread runs a Caretaker on a thread of its own, behind everything else: at the lowest priority for
// cores and disk.
//
// Thread-safe by itself; its calls come from the supervisor's thread. No call waits for a disk or a network
// for long, except pause() and the destructor, which interrupt what is under way: they wait for one request
// of the store (about a second) or one read of a chunk.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/supervise/care/caretaker.h"

namespace trainctl {

class CareThread {
 public:
  /// Sets `go_on`, `report` and, if it is empty, `open_store` of the options. `fs` and `clock` outlive it.
  CareThread(FileSystem& fs, Clock& clock, CareOptions options);
  ~CareThread();

  /// Caretaker::begin; also ends a pause. The first call starts the thread.
  void begin(uint64_t epoch, int64_t step);
  void published();
  /// Nothing is read, removed or copied from the return of this call until begin() or end_pause().
  void pause();
  void end_pause();
  /// What happened since the last call, in order.
  std::vector<CareReport> take_reports();
  CareProgress progress() const;

  /// Lets everything due be done without a limit of speed, for at most `limit_s` seconds and until
  /// `is_given_up` returns true, which is asked ten times a second. Returns Caretaker::left_over. After it
  /// nothing is done any more.
  Problem finish(double limit_s, const std::function<bool()>& is_given_up);

 private:
  struct Thread;
  const std::unique_ptr<Thread> thread_;
};

}  // namespace trainctl
