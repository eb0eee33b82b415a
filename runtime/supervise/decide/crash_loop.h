// CrashLoop decides whether the failures of a run are a crash loop: attempts in a row that made no progress
// and failed alike (same code, same newest step, same place), or three times as many that failed
// differently. Pure.
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
};

class CrashLoop {
 public:
  /// `limit`: so many attempts that fail alike are a loop.
  explicit CrashLoop(int limit) : limit_(limit) {}
  void count(const AttemptFailure& failure, bool made_progress);
  /// A node was put out: one more attempt shows whether it was the cause.
  void allow_one_more();
  bool is_reached() const { return alike_ >= limit_ || idle_ >= kIdleFactor * limit_; }
  /// "3 attempts in a row made no progress and failed alike".
  std::string text() const;

 private:
  /// So many times the limit in a row without progress are a crash loop, however they failed.
  static constexpr int kIdleFactor = 3;
  int limit_;
  int alike_ = 0, idle_ = 0;
  std::optional<AttemptFailure> last_;
};

}  // namespace trainctl
