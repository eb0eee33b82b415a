// What may change in the spec of a run that exists: on a resume, or in a new run that begins from one of its checkpoints. Each field's
// class is declared once, in the field table.
#pragma once
#include <string>
#include <vector>

#include "runtime/spec/fields/change.h"
#include "runtime/spec/parse.h"

namespace trainctl {

/// A field that differs between two specs.
struct FieldChange {
  std::string path, before, now;   ///< "data.train.0.weight"; JSON texts, "" where it is not given
  Change change = Change::free;
};
/// Every difference, in the order of the field table.
std::vector<FieldChange> changed_fields(const ParsedJob& before, const ParsedJob& now);

/// The most serious class among them; free if there are none.
Change most_serious(const std::vector<FieldChange>& changes);

/// "schedule.lr 0.003 → 0.001".
std::string describe(const FieldChange& change);

/// E0602 for each change from `before` to `now` that a resume may not make; `command` makes them in a new run instead.
std::vector<Diagnostic> refused_on_resume(const ParsedJob& before, const ParsedJob& now, const std::string& command);

/// E0603 for each that not even a new run from a checkpoint may make.
std::vector<Diagnostic> refused_on_branch(const ParsedJob& before, const ParsedJob& now);

}  // namespace trainctl
