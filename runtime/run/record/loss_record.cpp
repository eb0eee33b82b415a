#include "runtime/run/record/loss_record.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/record.h"
#include "runtime/base/text.h"

namespace trainctl {

std::string LossDecision::text() const {
  const std::string back =
      fmt::format("{}: back to step {}{}", incident.text(), back_to, back_to > 0 ? " or before" : "");
  if (policy == LossPolicy::skip)
    return fmt::format("{}, and {} from number {} on are left out of this pass over the data", back,
                       count_of(skipped.count, "sample"), skipped.first);
  return fmt::format("{}, and steps {} to {} have {:.3g} times the learning rate", back, rate.first_step,
                     rate.first_step + rate.steps - 1, rate.factor);
}

Remedies LossRecord::remedies() const {
  Remedies all;
  for (const LossDecision& decision : decisions) {
    if (decision.policy == LossPolicy::skip) all.skipped.push_back(decision.skipped);
    if (decision.policy == LossPolicy::lower_rate) all.rates.push_back(decision.rate);
  }
  return all;
}

int64_t LossRecord::skipped_samples() const {
  int64_t count = 0;
  for (const SkippedSamples& range : merged(remedies().skipped)) count += range.count;
  return count;
}

std::optional<LossDecision> decision_on(const LossIncident& incident, const LossMonitorSpec& spec,
                                        int64_t global_sequences, const LossRecord& before) {
  const bool skips = spec.policy == LossPolicy::skip, lowers = spec.policy == LossPolicy::lower_rate;
  if (!incident.decides() || (!skips && !lowers) || (skips && incident.sample < 0)) return std::nullopt;
  for (const LossDecision& decision : before.decisions)
    // A lower rate leaves the loss of its own first step as it was: that step may diverge again.
    if (decision.policy == LossPolicy::skip && decision.incident.same_as(incident)) return std::nullopt;
  for (const LossIncident& other : before.unanswered)
    if (other.same_as(incident)) return std::nullopt;
  if (lowers && incident.kind == LossTrouble::spike && before.remedies().rate_factor(incident.first) != 1)
    return std::nullopt;
  const int64_t lead = std::min(spec.lead_steps, incident.first - 1);
  LossDecision decision{.incident = incident, .policy = spec.policy, .back_to = incident.first - 1 - lead};
  if (skips) {
    const int64_t first = incident.lead_sample >= 0
                              ? incident.lead_sample
                              : std::max<int64_t>(0, incident.sample - lead * global_sequences);
    decision.skipped = {first, incident.sample_end - first};
  } else {
    decision.rate = {incident.first - lead, spec.rate_steps, spec.rate_factor};
  }
  return decision;
}

namespace {

std::string path_of(const RunDirectory& run) { return run.file("loss.json"); }

}  // namespace

LossRecord read_loss_record(FileSystem& fs, const RunDirectory& run) {
  const std::string path = path_of(run);
  return fs.exists(path) ? read_record<LossRecord>(fs.read_text(path), path) : LossRecord{};
}

void write_loss_record(FileSystem& fs, const RunDirectory& run, const LossRecord& record) {
  fs.replace_text(path_of(run), record_text(record, 1) + "\n");
}

bool goes_back(const LossRecord& record, const Remedies& of_attempt) {
  return int64_t(record.decisions.size()) > of_attempt.count();
}

}  // namespace trainctl
