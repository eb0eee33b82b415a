// Texts from the field table for people and editors: `trainctl explain`, the JSON Schema, and starter specs.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace trainctl {
namespace spec {
struct Field;
}

/// JSON Schema draft-07 of the whole spec.
std::string job_schema();
/// The explanation of `topic`: a field ("parallelism.tensor"), a section ("parallelism"), a code ("E0312"), a
/// preset, "all" (all fields), "codes" (all codes), or "" (the list of sections). If the topic is unknown,
/// returns "" and sets `suggestion` to the nearest topic.
std::string explain(const std::string& topic, std::string* suggestion);
/// What a field is where a job does not give it, for a reader: the items of a list are apart, so that a
/// line may end between them. "": it has no default.
std::string default_text(const spec::Field& field);
/// The commented starter spec of a preset; "" if there is no such preset. `changes`: fields and their values
/// as JSON text, in place of the starter's own or in addition; with the value "" the starter leaves the
/// field out. `note`: a sentence for the head of the file.
std::string starter_job(const std::string& preset,
                        const std::vector<std::pair<std::string, std::string>>& changes = {},
                        const std::string& note = "");

}  // namespace trainctl
