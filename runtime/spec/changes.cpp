#include "runtime/spec/changes.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/spec/resolution.h"

namespace trainctl {
namespace {

const EffectiveValue* value_at(const ParsedJob& job, const std::string& path) {
  const auto found = std::find_if(job.values.begin(), job.values.end(), [&](const EffectiveValue& v) { return v.path == path; });
  return found == job.values.end() ? nullptr : &*found;
}

FieldChange change_of(const std::string& path, const std::string& before, const std::string& now,
                      const JobSpec& job) {
  const spec::Field* field = spec::find_field(path);
  ENSURE(field, "{} is not in the field table", path);
  const bool learned = job.model.position.type == PositionKind::learned;
  const bool shape = learned && field->where_learned == spec::WhereLearned::part_of_shape;
  return {path, before, now, shape ? Change::never : field->change, field->bits_by, field->part};
}

/// The field that gave `path` its value: itself, or its alternative in another unit.
std::string giver_in_job(const ParsedJob& job, const std::string& path) {
  for (const spec::Alternatives& pair : spec::alternatives())
    if (pair.second == path && !job.places.count(path) && job.places.count(pair.first)) return pair.first;
  return path;
}

Diagnostic refusal(const ParsedJob& now, const FieldChange& change, const std::string& code, const std::string& message,
                   const std::string& help) {
  Diagnostic diagnostic = diagnostic_at(now, giver_in_job(now, change.path), code, message);
  diagnostic.notes = {fmt::format("in the run: {}, now: {}", change.before.empty() ? "not given" : change.before,
                                  change.now.empty() ? "not given" : change.now)};
  diagnostic.help = {help};
  return diagnostic;
}

constexpr const char* kOtherMoments =
    "keep it, or export the weights and begin a new run with model.init.from";
constexpr const char* kAnotherShape =
    "no checkpoint of the run fits a model of another shape: launch a new run without --from";

}  // namespace

std::vector<FieldChange> changed_fields(const ParsedJob& before, const ParsedJob& now) {
  std::vector<FieldChange> changes;
  for (const EffectiveValue& value : now.values) {
    const EffectiveValue* old = value_at(before, value.path);
    if (old && old->value == value.value) continue;
    changes.push_back(change_of(value.path, old ? old->value : "", value.value, now.job));
  }
  for (const EffectiveValue& old : before.values)
    if (!value_at(now, old.path)) changes.push_back(change_of(old.path, old.value, "", now.job));
  return changes;
}

Change most_serious(const std::vector<FieldChange>& changes) {
  Change most = Change::free;
  for (const FieldChange& change : changes) most = std::max(most, change.change);
  return most;
}

std::string describe(const FieldChange& change) {
  return fmt::format("{} {} → {}", change.path, change.before.empty() ? "none" : change.before,
                     change.now.empty() ? "none" : change.now);
}

std::vector<Diagnostic> refused_on_resume(const ParsedJob& before, const ParsedJob& now, const std::string& command) {
  std::vector<Diagnostic> refused;
  for (const FieldChange& change : changed_fields(before, now))
    if (change.change >= Change::branch)
      refused.push_back(refusal(
          now, change, "E0602", fmt::format("`{}` is fixed for the life of a run", change.path),
          change.change == Change::never && change.part == SpecPart::optimizer ? kOtherMoments
          : change.change == Change::never                                     ? kAnotherShape
                                           : "a new run may begin from a checkpoint with it: " + command));
  return refused;
}

std::vector<Diagnostic> refused_other_lanes(const ParsedJob& before, const ParsedJob& now) {
  const int64_t had = before.job.parallelism.lanes, wanted = now.job.parallelism.lanes;
  if (had == wanted) return {};
  Diagnostic diagnostic = diagnostic_at(
      now, "parallelism.lanes", "E0605",
      fmt::format(
          "parallelism.lanes = {} instead of the run's {} adds the gradients in another order, so that from "
          "here on the bits are others",
          wanted, had));
  diagnostic.help = {
      fmt::format("allow it with --allow-other-bits, or stay with lanes = {}, which any "
                  "parallelism.data from 1 to {} fits",
                  had, had)};
  return {diagnostic};
}

std::vector<Diagnostic> refused_on_branch(const ParsedJob& before, const ParsedJob& now) {
  std::vector<Diagnostic> refused;
  for (const FieldChange& change : changed_fields(before, now))
    if (change.change == Change::never && change.part == SpecPart::model)
      refused.push_back(refusal(now, change, "E0603",
                                fmt::format("`{}` is part of the model's shape, which a checkpoint fixes", change.path), kAnotherShape));
    else if (change.change == Change::never)
      refused.push_back(refusal(now, change, "E0603",
                                fmt::format("`{}` decides what the state of a checkpoint means", change.path),
                                kOtherMoments));
  return refused;
}

}  // namespace trainctl
