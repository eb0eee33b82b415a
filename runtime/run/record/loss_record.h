// The record of what a run decided about its loss: loss.json. A decision is durable there before anything
// follows from it; attempt.json has the remedies of those that an attempt began with. What is in the first
// and not in the second is a rollback that was cut off, and the next supervisor finishes it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/run/record/loss_monitor.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/train/control/remedies.h"

namespace trainctl {

/// The run goes back for its loss: one number of samples is left out, or the rate is lowered.
struct LossDecision {
  LossIncident incident;
  LossPolicy policy = LossPolicy::skip;
  int64_t back_to = 0;     ///< the run goes on from a state of this step or before
  SkippedSamples skipped;  ///< policy skip
  LoweredRate rate;        ///< policy lower_rate
  double unix_s = 0;
  std::string text() const;  ///< one sentence
  static void fields(auto& f, auto& r) {
    f("incident", r.incident);
    f("policy", r.policy);
    f("back_to", r.back_to);
    f.when(r.policy == LossPolicy::skip, "skipped", r.skipped);
    f.when(r.policy == LossPolicy::lower_rate, "rate", r.rate);
    f("t", r.unix_s);
  }
};

struct LossRecord {
  std::vector<LossDecision> decisions;  ///< in the order in which they were made
  std::vector<LossIncident> unanswered;  ///< no state was left to go back to
  /// What they come to; ranges and rates in the same order.
  Remedies remedies() const;
  int64_t skipped_samples() const;
  static void fields(auto& f, auto& r) {
    f.written("v", 1);
    f("decisions", r.decisions);
    f.when(!r.unanswered.empty(), "unanswered", r.unanswered);
  }
};

/// The decision that follows from an incident, by numbers that are the same on every mesh; nullopt: none
/// does, or its samples are left out already. Pure.
/// A spike among steps whose rate is lowered already is no reason to lower it again, but a divergence is.
///   global_sequences   samples of a step
std::optional<LossDecision> decision_on(const LossIncident& incident, const LossMonitorSpec& spec,
                                        int64_t global_sequences, const LossRecord& before);

/// Empty where the run has none. Error(kIo): the file is damaged.
LossRecord read_loss_record(FileSystem& fs, const RunDirectory& run);
/// Replaces the file durably.
void write_loss_record(FileSystem& fs, const RunDirectory& run, const LossRecord& record);

/// Whether a decision is recorded with which no attempt has begun yet.
bool goes_back(const LossRecord& record, const Remedies& of_attempt);

}  // namespace trainctl
