// To which state a run goes back when a rank was found to compute wrongly: the newest one that was saved
// before the last check in which all replicas agreed. What was trained since may be wrong, on all ranks
// alike. Pure.
//
// Verified are the step of a check that agreed, and the state from which an attempt began that followed a
// doubt: it was chosen by such a limit, and the lines of the checks behind it are set aside. With neither,
// what the doubted attempt began from is all that is known not to be its work.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

struct BackToVerified {
  int64_t at_most = 0;           ///< Recovery::go_back
  int64_t doubt = 0;             ///< the step behind which the check differed
  bool may_begin_again = false;  ///< the attempt began where the run did, and no checkpoint is so early
  std::string why;               ///< one sentence
  bool operator==(const BackToVerified&) const = default;
};
/// Of the attempt that began last; nullopt: no rank of it was put out, or in doubt, by what it computed.
/// events, steps: the lines of events.jsonl and metrics.jsonl; `steps` is called only where there is a doubt.
std::optional<BackToVerified> back_to_verified(const std::vector<std::string>& events,
                                               const std::function<std::vector<std::string>()>& steps);

/// What is said where no state so early is left: one sentence.
std::string not_verified_text(const BackToVerified& back);

/// The step of a line of metrics.jsonl behind which all replicas agreed; nullopt: they did not, or none was
/// compared.
std::optional<int64_t> agreed_step(const std::string& line);

/// To which step the attempt that began last would go back at a doubt behind its newest step. agreed: that of
/// the last line which has one.
int64_t way_back(const std::vector<std::string>& events, std::optional<int64_t> agreed);

/// Whether ranks of the attempt that began last differed, and which of them is wrong is not decided: its
/// failure says nothing of the node whose rank failed first.
bool is_undecided(const std::vector<std::string>& events);

}  // namespace trainctl
