// The field table declares each field of the job spec once. Parser, validator, JSON Schema, `explain`,
// `--set`, completion and starter specs come from it.
//
// Built on first use, constant afterwards; safe from any thread.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/record.h"
#include "runtime/spec/fields/change.h"
#include "runtime/spec/fields/job.h"

namespace trainctl::spec {

enum class Type { boolean, integer, number, text, choice, text_list, integer_list, text_map, source_list };

/// The unit of a quantity. A field with a unit also accepts text with a suffix ("4M" tokens, "30m", "4GiB").
enum class Unit { none, tokens, sequences, steps, seconds, mebibytes };
const char* name_of(Unit unit);

using TextMap = std::vector<std::pair<std::string, std::string>>;
/// A field's value after the check of its type. Choices and "auto" are texts.
using Setting =
    std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<int64_t>, TextMap>;
/// A setting as strict JSON, in the shortest form that parses to the same value.
std::string json_of(const Setting& setting);

/// Whether a text names a file or folder. A relative path is relative to the folder of the spec file in which
/// it is written, or to the current folder if it is given with --set or in the environment.
/// command: the first of several texts names a program, the others are its arguments.
enum class Names { no_file, file, file_or_bytes, program, command };
/// This rule as text for `explain` and the schema; "" for `no_file`.
const char* path_rule(Names names);

/// What a field means where positions are learned, not rotary.
enum class WhereLearned { same, nothing, part_of_shape };

/// One field. `path` of a field of the data lists is "data.train[].weight".
struct Field {
  std::string path;
  SpecPart part = SpecPart::top;
  Type type = Type::text;
  std::string text;  ///< description for users, in Markdown
  Unit unit = Unit::none;
  /// Of a number, of each entry of an integer list.
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  bool above_min = false;            ///< the value must be greater than min, not equal
  std::vector<std::string> choices;  ///< legal values of a choice or of the entries of a text list
  /// Other spellings of choices: {"fp32", "f32"}.
  std::vector<std::pair<std::string, std::string>> aliases;
  std::optional<Setting> fallback;  ///< default
  std::string fallback_text;        ///< the default as text, if it depends on other fields
  bool required = false, accepts_auto = false, identifier = false;
  bool accepts_count = false;  ///< of a choice: a whole number from min to max as well
  Names names = Names::no_file;
  Change change = Change::free;          ///< effect of a new value on an existing run
  BitsBy bits_by = BitsBy::change;
  WhereLearned where_learned = WhereLearned::same;
  std::vector<DataSource> DataSpec::*sources = nullptr;  ///< of a source list
  /// Without a value it has the one of with_family_defaults. Such a value does not count in the job's hash, so
  /// that jobs from before the field keep theirs.
  bool by_family = false;
  bool decided_at_birth = false;         ///< the resolved spec has a number in place of `auto`
  bool listed = true;  ///< false: it has its page, but no list shows it: nobody needs to choose it
  /// It came after runs without it: the resolved spec and its hash leave it out where it has its default.
  bool left_out_as_default = false;
  bool in_resolved = true;               ///< false: the resolved spec has another field with its meaning
  std::vector<std::string> other_names;  ///< other common names, for suggestions
  std::string example;                   ///< JSON text
  std::string hint;                      ///< for a value that is none: the field that is meant, perhaps

  // Access to the value in the job, or in one entry of data.train / data.val. If all are empty, resolve.cpp
  // handles the field.
  std::function<void(JobSpec&, const Setting&)> set;
  std::function<Setting(const JobSpec&)> get;
  std::function<void(DataSource&, const Setting&)> set_in_source;
  std::function<std::optional<Setting>(const DataSource&)> get_from_source;

  std::string section() const;  ///< "parallelism"; "" at the top
  std::string leaf() const;     ///< "tensor"
};

struct Section {
  std::string path, text;
  std::string word_field =
      {};  ///< a text in place of the object is the value of this field of it; "": none may be
};

const std::vector<Field>& fields();
std::vector<const Field*> listed_fields();
/// Every object of the spec except the top one, parents first: "model", "model.position", ...
const std::vector<Section>& sections();

/// Finds a field by its table path or a concrete path ("data.train.0.weight", "data.train.weight"); null if
/// there is none.
const Field* find_field(const std::string& path);
const Section* find_section(const std::string& path);
/// "data.train.0.weight" -> "data.train[].weight".
std::string table_path(const std::string& concrete);

/// All that describes a model, as fields of the section `model` with JSON texts, in the order of the table:
/// without the preset, where it begins, and what its family says.
std::vector<std::pair<std::string, std::string>> model_values(const ModelSpec& model);

/// Two fields for the same quantity in two units. At most one of them may be given; exactly one if
/// `required`.
struct Alternatives {
  std::string first, second;
  bool required = false;
};
const std::vector<Alternatives>& alternatives();

/// "a whole number of tokens from 1", for messages and explain.
std::string describe_type(const Field& field);

}  // namespace trainctl::spec
