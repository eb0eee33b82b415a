// A job spec on its way from text to JobSpec: what has been read so far, where each value came from, and
// every mistake found. Internal to runtime/spec; made and consumed within one parse_job call.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/spec/fields/fields.h"
#include "runtime/spec/json.h"
#include "runtime/spec/parse.h"

namespace trainctl::spec {

/// A text that values come from.
struct Source {
  enum class Kind { file, environment, override_, preset };
  Kind kind = Kind::file;
  std::string name;  ///< as diagnostics show it: "job.json", "--set parallelism.tensor=16", ...
  std::vector<std::string> lines;  ///< of a file
  std::string folder;              ///< absolute; relative paths in it start there
};

class Resolution {
 public:
  JobSpec job;
  std::vector<Source> sources;
  bool incomplete = false;                  ///< a spec to extend is missing: what is not given may be in it
  bool unreadable = false;                  ///< a file's syntax is broken: nothing beyond it can be said
  std::map<std::string, Setting> settings;  ///< by concrete path: given and well-typed

  int add_source(Source source);

  /// Records that `path` was given there.
  void note_given(const std::string& path, json::Place place) { places_[path] = place; }
  bool given(const std::string& path) const { return places_.count(path) != 0; }
  /// Given by the person, not by a preset.
  bool given_by_user(const std::string& path) const;
  /// Every place that a person gave a value at, by path.
  std::map<std::string, RelatedPlace> given_places() const;
  /// Where the value of `path` comes from, for --show-origin.
  std::string origin(const std::string& path) const;

  /// No check may look at `path` any more: it has no meaningful value.
  void spoil(const std::string& path) { spoiled_.insert(path); }
  bool sound(std::initializer_list<const char*> paths) const;
  bool sound(const std::string& path) const { return spoiled_.count(path) == 0; }

  /// A mistake at one place of the text.
  void report_at(json::Place place, Diagnostic diagnostic);
  /// A mistake in how fields fit together. It stands at the first path that was overridden, else at the
  /// first that the user gave; the others with their places are related, the second one with `label` under
  /// its value; a note lists all values.
  void report(const std::string& code, const std::string& message, const std::vector<std::string>& paths,
              std::vector<std::string> help, const std::string& label = "");

  /// JSON text of the value the run would see, "" if there is none.
  std::string value_text(const std::string& path) const;
  std::vector<Diagnostic> sorted_diagnostics() const;
  bool failed() const;

 private:
  std::string excerpt(json::Place place) const;
  std::map<std::string, json::Place> places_;
  std::set<std::string> spoiled_;
  std::vector<std::pair<json::Place, Diagnostic>> found_;
};

/// `text` as an absolute path, if it names a file by a relative one. `folder`: where relative ones start.
std::string absolute_path(Names names, const std::string& text, const std::string& folder);
/// The current folder, absolute; "" if it was removed.
std::string current_folder();

/// "parallelism.tensor" -> "/parallelism/tensor".
std::string pointer_of(const std::string& path);

/// Reads file, extended files, environment and overrides into one tree (layers.cpp).
json::Value merge_layers(const ParseInput& input, Resolution& resolution);
/// Adds the preset's shape below what was given (layers.cpp).
void merge_preset(json::Value& tree, Resolution& resolution);
/// Holds the tree to the field table and fills job and settings with what was given (resolve.cpp).
void resolve_tree(const json::Value& tree, Resolution& resolution);
/// Fills in everything not given (derive.cpp).
void derive(Resolution& resolution);
/// Checks between fields (checks.cpp), only on those that are sound.
void check_model(Resolution& resolution);
void check_parallelism(Resolution& resolution);
void check_training(Resolution& resolution);
void check_operation(Resolution& resolution);
/// Refuses what could not even be planned (check_size.cpp).
void check_size(Resolution& resolution);

/// Value of a quantity with a unit ("4M", "30m", "4GiB"), or a sentence on why not.
struct Quantity {
  double value = 0;
  std::string problem;
};
Quantity parse_quantity(const std::string& text, Unit unit);

}  // namespace trainctl::spec
