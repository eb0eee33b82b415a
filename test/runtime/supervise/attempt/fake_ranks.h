// Ranks that misbehave on order, and a launcher for them that behaves like mpirun. A test program that links
// this is the launcher when it starts with FAKE=launcher in its environment, and a rank with FAKE=rank; then
// no test runs.
//
// Variables: FAKE_RUN is the run directory; FAKE_PLAN is "what rank step [epochs]", what one rank does when it
// gets to a step, in the first `epochs` epochs (default 1); "": all do well. A rank takes no step before all
// ranks are there.
#pragma once
#include <cstdint>

namespace trainctl::test {

inline constexpr int kFakeRanks = 3;
inline constexpr int64_t kFakeSteps = 30, kFakeSaveEvery = 10;

}  // namespace trainctl::test
