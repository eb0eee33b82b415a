// The table of fields: each field of the job spec declared once. Parser, validator, JSON Schema, `explain`,
// `--set`, completion and starter specs are all generated from it.
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

#include "runtime/spec/fields/change.h"
#include "runtime/spec/fields/job.h"

namespace trainctl::spec {

enum class Type { boolean, integer, number, text, choice, text_list, text_map, source_list };

/// What a quantity counts; text with a suffix is accepted where the unit is not `none` ("4M" tokens, "30m",
/// "4GiB").
enum class Unit { none, tokens, sequences, steps, seconds, mebibytes };
const char* name_of(Unit unit);

using TextMap = std::vector<std::pair<std::string, std::string>>;
/// A field's value once its type has been checked. Choices and "auto" are texts.
using Setting = std::variant<bool, int64_t, double, std::string, std::vector<std::string>, TextMap>;
/// JSON text of a setting, strict, shortest form that reads back the same.
std::string json_of(const Setting& setting);

/// Whether a text names a file or folder. A relative one is relative to the folder of the file in which it is written;
/// given with --set or in the environment, to the current folder.
enum class Names { no_file, file, file_or_bytes, program };
/// The rule in words for `explain` and the schema, "" for `no_file`.
const char* path_rule(Names names);

/// One field. `path` of a field of the data lists is "data.train[].weight".
struct Field {
  std::string path;
  Type type = Type::text;
  std::string text;  ///< what it is and what it does; Markdown
  Unit unit = Unit::none;
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  bool above_min = false;            ///< the value must be greater than min, not equal
  std::vector<std::string> choices;  ///< legal values of a choice or of the entries of a text list
  std::optional<std::pair<std::string, std::string>>
      alias;                        ///< another spelling of a choice: {"fp32", "f32"}
  std::optional<Setting> fallback;  ///< default
  std::string fallback_text;        ///< in words, where the default follows from other fields
  bool required = false, accepts_auto = false, identifier = false;
  Names names = Names::no_file;
  Change change = Change::free;          ///< what another value means to a run that exists
  bool decided_at_birth = false;         ///< `auto` becomes its number in the resolved spec
  bool in_resolved = true;               ///< false: another field carries its meaning in the resolved spec
  std::vector<std::string> other_names;  ///< what people also call it, for did-you-mean
  std::string example;                   ///< JSON text

  // Where the value lives: in the job, or in one entry of data.train / data.val. Neither: handled by
  // resolve.cpp.
  std::function<void(JobSpec&, const Setting&)> set;
  std::function<Setting(const JobSpec&)> get;
  std::function<void(DataSource&, const Setting&)> set_in_source;
  std::function<std::optional<Setting>(const DataSource&)> get_from_source;

  std::string section() const;  ///< "parallelism"; "" at the top
  std::string leaf() const;     ///< "tensor"
};

struct Section {
  std::string path, text;
};

const std::vector<Field>& fields();
/// Every object of the spec but the top, parents first: "model", "model.position", ...
const std::vector<Section>& sections();

/// By table path or by a concrete one ("data.train.0.weight", "data.train.weight"); null if there is none.
const Field* find_field(const std::string& path);
const Section* find_section(const std::string& path);
/// "data.train.0.weight" -> "data.train[].weight".
std::string table_path(const std::string& concrete);

/// Pairs of which at most one may be given (the same quantity in two units).
struct Alternatives {
  std::string first, second;
  bool required = false;
};
const std::vector<Alternatives>& alternatives();

/// "a whole number of tokens from 1", for messages and explain.
std::string describe_type(const Field& field);

}  // namespace trainctl::spec
