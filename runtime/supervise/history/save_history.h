// Reads from events.jsonl what earlier attempts of a run tell about failures and saves, so that the next
// attempt decides how often to save. Pure.
#pragma once
#include <string>
#include <vector>

#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/run_status.h"
#include "runtime/train/save/save_interval.h"

namespace trainctl {

struct PastSaves {
  std::vector<SaveHistory> tiers;       ///< the directory, and each tier with an interval
  std::vector<SaveInterval> intervals;  ///< the newest of each tier
};

/// `lines`: of events.jsonl, in order; damaged ones are passed over. An attempt counts from its event `start`
/// to its last event. A failure is one after all ranks were up; an attempt without an end (its supervisor was
/// killed) that no other supervisor took over has failed, too. Ends on request, regroups and restarts that
/// never trained are no failures.
PastSaves past_saves(const std::vector<std::string>& lines);

}  // namespace trainctl
