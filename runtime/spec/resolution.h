// Resolution is the state of one parse_job call: the values read so far, the place of each value, and all
// mistakes found. Internal to runtime/spec.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/spec/fields/fields.h"
#include "runtime/spec/json.h"
#include "runtime/spec/parse.h"

namespace trainctl::spec {

/// A source of values.
struct Source {
  enum class Kind { file, environment, override_, preset };
  Kind kind = Kind::file;
  std::string name;  ///< name in diagnostics: "job.json", "--set parallelism.tensor=16", ...
  std::vector<std::string> lines;  ///< lines of a file; empty for other kinds
  std::string folder;              ///< absolute; relative paths in the source are relative to it
};

class Resolution {
 public:
  JobSpec job;
  std::vector<Source> sources;
  bool is_of_run = false;                   ///< ParseInput::is_of_run
  bool incomplete = false;                  ///< a spec to extend is missing, and fields may be given in it
  bool unreadable = false;                  ///< a file has broken syntax, so later checks make no sense
  std::map<std::string, Setting> settings;  ///< given values with the right type, by concrete path

  int add_source(Source source);

  /// Records that `path` was given at `place`.
  void note_given(const std::string& path, json::Place place) { places_[path] = place; }
  bool given(const std::string& path) const { return places_.count(path) != 0; }
  /// Whether a user, not a preset, gave the value.
  bool given_by_user(const std::string& path) const;
  /// Whether --set gave the value.
  bool given_by_override(const std::string& path) const;
  /// Whether --set gave another text than the spec has, or the job of the run.
  bool changed_by_override(const std::string& path) const { return changed_.count(path) != 0; }
  void note_changed(const std::string& path) { changed_.insert(path); }
  /// Whether the value was given as "auto" and is derived from others.
  bool is_auto(const Field& field) const;
  /// The places of all given values, also of presets, by path.
  std::map<std::string, RelatedPlace> given_places() const;
  /// The source of the value of `path`, for --show-origin: "job.json:41", "--set", "default", ...
  std::string origin(const std::string& path) const;

  /// Marks `path` as without a meaningful value, so that no check uses it.
  void spoil(const std::string& path) { spoiled_.insert(path); }
  bool sound(std::initializer_list<const char*> paths) const;
  bool sound(const std::string& path) const { return spoiled_.count(path) == 0; }

  /// Reports a mistake at one place.
  void report_at(json::Place place, Diagnostic diagnostic);
  /// Reports a mistake in the combination of several fields. Its place is that of the first path given by an
  /// override, otherwise of the first path that the user gave. The other given paths become related places;
  /// that of paths[1] gets `label`. A note lists all values.
  void report(const std::string& code, const std::string& message, const std::vector<std::string>& paths,
              std::vector<std::string> help, const std::string& label = "");

  /// JSON text of the value that the run uses; "" if there is none.
  std::string value_text(const std::string& path) const;
  std::vector<Diagnostic> sorted_diagnostics() const;
  bool failed() const;

 private:
  std::string excerpt(json::Place place) const;
  std::map<std::string, json::Place> places_;
  std::set<std::string> spoiled_, changed_;
  std::vector<std::pair<json::Place, Diagnostic>> found_;
};

/// `text` as an absolute path if it is a relative path of a file, otherwise unchanged. Relative to `folder`.
std::string absolute_path(Names names, const std::string& text, const std::string& folder);

/// "parallelism.tensor" -> "/parallelism/tensor".
std::string pointer_of(const std::string& path);

/// Reads file, extended files, environment and overrides into one tree (layers.cpp).
json::Value merge_layers(const ParseInput& input, Resolution& resolution);
/// Adds the preset's shape below what was given (layers.cpp).
void merge_preset(json::Value& tree, Resolution& resolution);
/// Checks the tree against the field table and copies the given values to job and settings (resolve.cpp).
void resolve_tree(const json::Value& tree, Resolution& resolution);
/// Elements of the matrices of a model: of a layer those of attention, and two or three of the feed-forward
/// part; `tables`: of the embedding and the head, how many count (check_size.cpp).
double matrix_elements(const ModelSpec& model, int tables);
/// Computes all values that were not given (derive.cpp).
void derive(Resolution& resolution);
/// Checks combinations of fields (checks.cpp). A check runs only if its fields are sound.
void check_model(Resolution& resolution);
/// Its heads and the description of its layers (check_layer.cpp).
void check_heads(Resolution& resolution);
void check_layer(Resolution& resolution);
void check_latent(Resolution& resolution);
void check_mtp(Resolution& resolution);
void check_sharing(Resolution& resolution);
void check_f16(Resolution& resolution);
void check_master_weights(Resolution& resolution);
void check_fp8(Resolution& resolution);
void check_parallelism(Resolution& resolution);
void check_training(Resolution& resolution);
void check_operation(Resolution& resolution);
void check_watch(Resolution& resolution);
/// Reports jobs that are too large to plan (check_size.cpp).
void check_size(Resolution& resolution);

/// The value of a quantity with a unit ("4M", "30m", "4GiB"), or in `problem` why it has none, one sentence.
struct Quantity {
  double value = 0;
  std::string problem;
};
Quantity parse_quantity(const std::string& text, Unit unit);

}  // namespace trainctl::spec
