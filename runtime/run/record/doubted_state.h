// A state of the run that loads but misbehaves (runtime/supervise/history/suspects.h).
#pragma once
#include <cstdint>
#include <string>

namespace trainctl {

/// What epochs before `epoch` computed of `step`.
struct DoubtedState {
  int64_t step = 0;
  uint64_t epoch = 0;
  std::string why;  ///< one sentence
};

}  // namespace trainctl
