// What a burn-in found (runtime/machine/burn_in.h), as rows: what was checked, what came out, what was
// expected, and what to do. Pure.
//
// What is wrong fails: other bits than the reference or than the other places, memory or a file that reads
// otherwise than it was written, a GPU that says itself that it is broken or does not answer. What is slow,
// did not finish or could not be asked warns: other programs may be the cause.
#pragma once
#include <string>
#include <vector>

#include "runtime/machine/burn_in.h"
#include "runtime/observe/doctor.h"

namespace trainctl {

struct BurnInCheck {
  DoctorCheck check;                ///< its name, the verdict, the value, what to do
  std::string measures, expected;   ///< what it measures; what a machine in order has
  std::vector<BurnInPlace> places;  ///< that compute or remember wrongly, or are slow
};
struct BurnInReport {
  std::vector<BurnInCheck> checks;
  double seconds = 0;
  bool has_failed() const;
};
/// `node_cores`: that the node has, of which the result should have each; 0: not known.
BurnInReport judge(const BurnInResult& result, int node_cores = 0);

/// A copy of a place that is slower than this share of the median of all is slow. Fewer than
/// kLeastForMedian places have no median that says anything.
inline constexpr double kSlowShare = 1.0 / 3;
inline constexpr int kLeastForMedian = 3;
/// That the memory of a place gets, if there is time.
inline constexpr int kPatternsOfMemory = 8;

/// Why this node, or one of its GPUs, must not be used.
struct BurnInBlame {
  int gpu = -1;  ///< -1: the node
  bool is_slow = false;
  std::string cause;  ///< one sentence
};
/// One for each GPU and check that failed or is slow, and one for the node. A clock or a disk blames no
/// one: neither is the node's alone.
std::vector<BurnInBlame> blamed(const BurnInReport& report);

/// A line for each check, what was expected below it, and what to do if it is not ok.
std::string render_burn_in(const BurnInReport& report, bool color);
/// {"v": 1, "ok", "seconds", "checks": [...], "places": [...]}
std::string burn_in_json(const BurnInReport& report, const BurnInResult& result);

}  // namespace trainctl
