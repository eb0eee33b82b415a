// Parses the text of a job spec into a checked JobSpec. Reports all mistakes at once, each with its place.
#pragma once
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "runtime/spec/fields/job.h"

namespace trainctl {

/// Another place that a diagnostic refers to.
struct RelatedPlace {
  std::string file, pointer, excerpt, label;
  int line = 0, column = 0, length = 1;
};

/// One mistake (or warning). Rendered as in `trainctl explain E0101`: code, message, place, values, help.
struct Diagnostic {
  std::string code;                ///< "E0312", "W0401"
  std::string message;             ///< one sentence
  std::string file;                ///< "job.json", "--set parallelism.tensor=16", "TRAINCTL_SET__...", ""
  int line = 0, column = 0;        ///< from 1; 0: no place in a file
  int length = 1;                  ///< characters that the caret line marks
  std::string pointer;             ///< "/parallelism/tensor"
  std::string excerpt;             ///< the source line, for the caret
  std::vector<std::string> notes;  ///< "parallelism.tensor = 16, model.num_kv_heads = 8"
  std::vector<std::string> help;   ///< what to do
  std::vector<RelatedPlace> related;  ///< places of the other values
  bool is_error() const { return !code.empty() && code[0] == 'E'; }
};

/// The diagnostics as text for people. `color`: with ANSI colours.
std::string render(const std::vector<Diagnostic>&, bool color);
std::string render_json(const std::vector<Diagnostic>&);

/// One field with the value that the run uses.
struct EffectiveValue {
  std::string path;     ///< "data.train.0.weight"
  std::string value;    ///< JSON text as in the resolved spec; "auto" stays auto
  std::string meaning;  ///< the value chosen for "auto"; otherwise the same as value
  std::string origin;   ///< as in origins_json
  bool by_override = false;  ///< given with --set
  bool is_auto = false;      ///< an amount that is "auto": it follows from other fields
};

struct ParsedJob {
  JobSpec job;                          ///< meaningful only when ok()
  std::vector<Diagnostic> diagnostics;  ///< sorted by place
  std::string resolved_json;            ///< strict JSON of every effective value; parses to the same job
  std::string origins_json;  ///< path -> "job.json:41" | "--set" | "default" | "preset llama3-8b" | ...
  std::vector<EffectiveValue> values;  ///< in the order of the field table
  std::map<std::string, RelatedPlace> places;  ///< places of the given values, by path: "data.train.0.path"
  /// 16 hex digits: a hash of the fields that must not change within a run (Change::branch and
  /// Change::never).
  std::string hash;
  bool ok() const;
};

struct ParseInput {
  std::string text;  ///< JSON, // comments allowed
  std::string file;    ///< name shown in diagnostics
  std::string folder;  ///< relative paths in `text` are relative to this folder; "": the folder of `file`
  std::vector<std::string> overrides;                            ///< "path=value", in order (`--set`)
  std::vector<std::pair<std::string, std::string>> environment;  ///< TRAINCTL_SET__a__b=value
  /// The job of a run, whose nodes are chosen: they are not judged by what surrounds this process.
  bool is_of_run = false;
};
ParsedJob parse_job(const ParseInput& input);

/// A diagnostic at the place where the value of `path` was given. For mistakes that the parser cannot find,
/// for example a missing file.
Diagnostic diagnostic_at(const ParsedJob& job, const std::string& path, const std::string& code, const std::string& message);

/// The job with `values` (PATH=VALUE) in place of `auto`. `origin` becomes their origin.
ParsedJob with_decided(const ParsedJob& job, const std::vector<std::string>& values, const std::string& origin);

/// "parallelism.stage_layers=[2,3]"
std::string stage_layers_setting(const std::vector<int64_t>& layers);

/// The names of all presets.
std::vector<std::string> preset_names();

}  // namespace trainctl
