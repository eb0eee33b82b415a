// From the text of a job spec to a checked JobSpec: all mistakes at once, each located.
#pragma once
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "runtime/spec/fields/job.h"

namespace trainctl {

/// Another place that a diagnostic talks about.
struct RelatedPlace {
  std::string file, pointer, excerpt, label;
  int line = 0, column = 0, length = 1;
};

/// One mistake (or warning). Rendered as in `trainctl explain E0101`: code, message, place, values, help.
struct Diagnostic {
  std::string code;                ///< "E0312", "W0401"
  std::string message;             ///< one sentence
  std::string file;                ///< "job.json", "--set parallelism.tensor=16", "TRAINCTL_SET__...", ""
  int line = 0, column = 0;        ///< 1-based; 0 where there is none
  int length = 1;                  ///< of the caret line
  std::string pointer;             ///< "/parallelism/tensor"
  std::string excerpt;             ///< the source line, for the caret
  std::vector<std::string> notes;  ///< "parallelism.tensor = 16, model.num_kv_heads = 8"
  std::vector<std::string> help;   ///< what to do
  std::vector<RelatedPlace> related;  ///< where the other values stand
  bool is_error() const { return !code.empty() && code[0] == 'E'; }
};

/// Text for people, as in the command line's samples; `color` adds ANSI colours.
std::string render(const std::vector<Diagnostic>&, bool color);
std::string render_json(const std::vector<Diagnostic>&);

/// One field as the run will see it.
struct EffectiveValue {
  std::string path;     ///< "data.train.0.weight"
  std::string value;    ///< JSON text as in the resolved spec; "auto" stays auto
  std::string meaning;  ///< what an auto came to; otherwise the same as value
  std::string origin;   ///< as in origins_json
};

struct ParsedJob {
  JobSpec job;                          ///< meaningful only when ok()
  std::vector<Diagnostic> diagnostics;  ///< sorted by place
  std::string resolved_json;            ///< strict JSON of every effective value; parses to the same job
  std::string origins_json;  ///< path -> "job.json:41" | "--set" | "default" | "preset llama3-8b" | ...
  std::vector<EffectiveValue> values;  ///< in the order of the field table
  std::map<std::string, RelatedPlace> places;  ///< of what was given, by path: "data.train.0.path"
  std::string hash;  ///< 16 hex digits over what must not change within a run (the classes branch and never of runtime/spec/changes.h)
  bool ok() const;
};

struct ParseInput {
  std::string text;  ///< JSON, // comments allowed
  std::string file;    ///< name shown in diagnostics
  std::string folder;  ///< where relative paths in `text` start; empty: the folder of `file`
  std::vector<std::string> overrides;                            ///< "path=value", in order (`--set`)
  std::vector<std::pair<std::string, std::string>> environment;  ///< TRAINCTL_SET__a__b=value
};
ParsedJob parse_job(const ParseInput& input);

/// A mistake in the value of `path` that only a look outside the spec can find: located where it was given.
Diagnostic diagnostic_at(const ParsedJob& job, const std::string& path, const std::string& code, const std::string& message);

/// The same job with `values` (PATH=VALUE) in place of what was `auto`: decided once, they stay. Their origin reads `origin`.
ParsedJob with_decided(const ParsedJob& job, const std::vector<std::string>& values, const std::string& origin);

/// Names of the presets.
std::vector<std::string> preset_names();

}  // namespace trainctl
