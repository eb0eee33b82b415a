// What a plan says of the rows of experts: what their way home takes, and what few rows cost.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/report.h"

namespace trainctl {

/// Of `ranks` that share `experts`, neighbours on each, how many have at least one of a token's `top_k`, in
/// the mean over routers that choose evenly: among all, or first `top_groups` of `groups` of neighbours.
struct ChosenExperts {
  int64_t experts = 0, top_k = 0, groups = 1, top_groups = 1;
  double ranks_met(int64_t ranks) const;
};

std::vector<std::string> expert_notes(const PlanReport& report);

}  // namespace trainctl
