// Compares two specs: which changes a resume may make, and which a branch (a new run from a checkpoint) may
// make. The field table gives the class of each field.
#pragma once
#include <string>
#include <vector>

#include "runtime/spec/fields/change.h"
#include "runtime/spec/parse.h"

namespace trainctl {

/// A field that differs between two specs.
struct FieldChange {
  std::string path, before, now;   ///< "data.train.0.weight"; JSON texts of both values, "": not given
  Change change = Change::free;
  BitsBy bits_by = BitsBy::change;
  SpecPart part = SpecPart::top;
};
/// All differences in the order of the field table, then the fields that only `before` has.
std::vector<FieldChange> changed_fields(const ParsedJob& before, const ParsedJob& now);

/// The most serious class of the changes; free if there are none.
Change most_serious(const std::vector<FieldChange>& changes);

/// "schedule.lr 0.003 → 0.001".
std::string describe(const FieldChange& change);

/// E0602 for each change that a resume must not make. `command`: the command that makes the changes in a
/// branch.
std::vector<Diagnostic> refused_on_resume(const ParsedJob& before, const ParsedJob& now, const std::string& command);

/// E0605 if the lanes differ: a resume makes that change only where it is allowed explicitly.
std::vector<Diagnostic> refused_other_lanes(const ParsedJob& before, const ParsedJob& now);

/// E0603 for each change that a branch must not make.
std::vector<Diagnostic> refused_on_branch(const ParsedJob& before, const ParsedJob& now);

}  // namespace trainctl
