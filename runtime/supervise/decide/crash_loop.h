// CrashLoop is the count of failures that ends a run: of attempts in a row without progress. Pure.
//
// An attempt makes progress if it finishes a step that none before it has finished, or saves a checkpoint
// newer than any that was saved before: a run that goes back saves the same ones again. Progress forgives all
// failures before it. In a row since then, these end the run:
//
//   - more than max_restarts failures. One whose node is out of the next attempt does not count: the node was
//     lost, or its device is broken
//   - three that are alike: same code, same newest step, same place. If a node was put out, one more shows
//     whether it was the cause
//   - nine of any kind, or max_restarts if that is more
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/error.h"

namespace trainctl {

/// A failed attempt, as far as one may be like another.
struct AttemptFailure {
  ErrorCode code = ErrorCode::kWorker;
  int64_t step = 0;      ///< the newest of the attempt
  bool stepped = false;  ///< it has finished a step
  bool lost = false;     ///< it has lost a node
  int rank = -1;         ///< the first rank that failed; -1: no particular rank
  std::string node;      ///< of that rank, or the lost one; "": no particular node
  bool is_out = false;   ///< the next attempt does without that node, which was the cause
};

class CrashLoop {
 public:
  struct Options {
    int alike = 3;  ///< so many that fail alike are a loop
    int max_restarts = 0;
  };
  explicit CrashLoop(const Options& options) : options_(options) {}
  /// The attempt that runs makes progress.
  void progressed();
  /// An attempt has failed. `made_progress`: before that.
  void count(const AttemptFailure& failure, bool made_progress);
  /// A node was put out.
  void allow_one_more() { is_put_out_ = true; }

  /// Failures that count against max_restarts since the last progress.
  int restarts() const { return restarts_; }
  bool is_out_of_restarts() const { return restarts_ > options_.max_restarts; }
  bool is_reached() const { return alike_ >= limit(options_.alike) || idle_ >= limit(most_idle()); }
  /// "3 attempts in a row made no progress and failed alike".
  std::string text() const;

 private:
  int limit(int attempts) const { return attempts + int(is_put_out_); }
  int most_idle() const;
  Options options_;
  int restarts_ = 0, alike_ = 0, idle_ = 0;
  bool is_put_out_ = false;  ///< a node, since the last progress
  std::optional<AttemptFailure> last_;
};

}  // namespace trainctl
