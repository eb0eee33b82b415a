// What the field table says to people and editors: `trainctl explain`, the JSON Schema, and starter specs.
#pragma once
#include <string>

namespace trainctl {

/// JSON Schema draft-07 of the whole spec.
std::string job_schema();
/// Explains a field ("parallelism.tensor"), a section ("parallelism"), a code ("E0312"), a preset, "all" fields, all "codes",
/// or with "" lists the sections; empty if unknown, with did-you-mean in `suggestion`.
std::string explain(const std::string& topic, std::string* suggestion);
/// The commented starter spec of a preset; "" where there is none of this name.
std::string starter_job(const std::string& preset);

}  // namespace trainctl
