// CareThread runs a Caretaker on a thread of its own, behind everything else: at the lowest priority for
// cores and disk.
//
// Thread-safe by itself; its calls come from the supervisor's thread. No call waits for a disk or a network
// for long: pause(), finish() and the destructor interrupt what is under way, which usually takes one request
// of the store (about a second) or one read of a chunk. A thread that hangs in a call of a file system is
// left to itself after patience_s, and this is reported; when its call returns, it does nothing more.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/supervise/care/caretaker.h"

namespace trainctl {

class CareThread {
 public:
  /// Sets `go_on`, `report` and, if it is empty, `open_store` of the options. `fs` and `clock` outlive it and
  /// the threads that it leaves to themselves: they live as long as the program. So does what
  /// options.must_hold refers to.
  CareThread(FileSystem& fs, Clock& clock, CareOptions options, double patience_s = 10);
  ~CareThread();

  /// Caretaker::begin; also ends a pause. The first call starts the thread.
  void begin(uint64_t epoch, int64_t step);
  void published();
  void keep_upto(int64_t step);  ///< Caretaker::keep_upto; call it before begin(), too
  void doubt(int64_t step);  ///< Caretaker::doubt; done after begin()
  /// Nothing more is read, removed or copied from the return of this call until begin() or end_pause().
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
  std::string silence_text() const;
  void leave();
  FileSystem& fs_;
  Clock& clock_;
  const CareOptions options_;
  const double patience_s_;
  std::shared_ptr<Thread> thread_;
};

}  // namespace trainctl
