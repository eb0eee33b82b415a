// Holds the tree of given values to the field table: unknown fields, types, units, ranges, choices.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/spec/resolution.h"
#include "runtime/spec/suggest.h"

namespace trainctl::spec {

namespace {

using json::Kind;
using json::Value;

struct Suffix {
  const char* text;
  double factor;
};

std::vector<Suffix> suffixes_of(Unit unit) {
  std::vector<Suffix> suffixes;
  switch (unit) {
    case Unit::none: return {};
    case Unit::tokens:
    case Unit::sequences:
    case Unit::steps:
      return {{"k", 1e3},  {"K", 1e3},  {"M", 1e6},  {"B", 1e9}, {"G", 1e9},
              {"T", 1e12}, {"Ki", kKibibyte}, {"Mi", kMebibyte}, {"Gi", kGibibyte}};
    case Unit::seconds:
      for (const char* name : {"ms", "s", "m", "min", "h", "d"})
        suffixes.push_back({name, seconds_of_unit(name).value()});
      return suffixes;
    case Unit::mebibytes:
      for (const char* name : {"KiB", "MiB", "GiB", "kB", "MB", "GB"})
        suffixes.push_back({name, bytes_of_unit(name).value() / kMebibyte});
      return suffixes;
  }
  return suffixes;
}

/// In quotes, and of a long text the beginning, up to a whole character.
std::string quoted_begin(const std::string& text) {
  if (text.size() <= 60) return json_of(text);
  size_t end = 57;
  while (end > 0 && (uint8_t(text[end]) & 0xC0) == 0x80) --end;
  return json_of(text.substr(0, end) + "...");
}

/// As messages show a given value: short, on one line.
std::string shown(const Value& value) {
  switch (value.kind) {
    case Kind::boolean: return value.boolean ? "true" : "false";
    case Kind::number: return value.text;
    case Kind::text: return quoted_begin(value.text);
    case Kind::list: return fmt::format("a list with {}", count_of(int64_t(value.items.size()), "entry", "entries"));
    default: return name_of(value.kind);
  }
}

std::string kind_wanted(const Field& field) {
  switch (field.type) {
    case Type::boolean: return "true or false";
    case Type::integer: return "a whole number";
    case Type::number: return "a number";
    case Type::choice:
      if (field.accepts_count) return "text or a whole number";
      [[fallthrough]];
    case Type::text: return "text";
    case Type::integer_list: return "a list of whole numbers";
    case Type::text_list: return "a list of strings";
    case Type::text_map: return "an object of strings";
    case Type::source_list: return "a list of sources";
  }
  return "?";
}

std::vector<std::string> leaves_of(const std::string& section) {
  std::vector<std::string> names;
  for (const Field& field : fields())
    if (field.section() == section) names.push_back(field.leaf());
  for (const Section& child : sections()) {
    const size_t dot = child.path.rfind('.');
    if ((dot == std::string::npos ? "" : child.path.substr(0, dot)) == section)
      names.push_back(dot == std::string::npos ? child.path : child.path.substr(dot + 1));
  }
  return names;
}

/// Fields anywhere whose leaf or other name is `word`.
std::vector<std::string> fields_called(const std::string& word) {
  std::vector<std::string> found;
  for (const Field& field : fields())
    if (field.leaf() == word || std::count(field.other_names.begin(), field.other_names.end(), word) > 0)
      found.push_back(field.path);
  return found;
}

std::string belongs(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return fmt::format("`{}` belongs at the top of the spec", path);
  return fmt::format("`{}` belongs in {}", path.substr(dot + 1), path.substr(0, dot));
}

/// Siblings first, then the same name elsewhere, then longer siblings, then near names elsewhere.
std::string did_you_mean(const std::string& section, const std::string& word) {
  const std::vector<std::string> siblings = closest(word, leaves_of(section), 1);
  if (!siblings.empty() && edit_distance(word, siblings[0]) <= 1)
    return fmt::format("did you mean `{}`?", siblings[0]);
  for (const std::string& path : fields_called(word)) {
    const Field* field = find_field(path);
    const std::string leaf = field->leaf();
    if (field->section() == section) return fmt::format("did you mean `{}`?", leaf);
    if (leaf != word) return fmt::format("did you mean `{}`? {}", leaf, belongs(path));
    return belongs(path);
  }
  if (!siblings.empty()) return fmt::format("did you mean `{}`?", siblings[0]);
  for (const std::string& leaf : leaves_of(section))
    if (leaf.ends_with("_" + word)) return fmt::format("did you mean `{}`?", leaf);
  if (find_section(word)) return belongs(word);
  std::vector<std::string> everywhere;
  for (const Field& field : fields()) everywhere.push_back(field.leaf());
  for (const Section& s : sections()) everywhere.push_back(s.path);
  const std::vector<std::string> near = closest(word, everywhere, 1);
  if (near.empty()) return "";
  if (find_section(near[0])) return fmt::format("did you mean `{}`?", near[0]);
  return fmt::format("did you mean `{}`? {}", near[0], belongs(fields_called(near[0]).front()));
}

class Resolver {
 public:
  explicit Resolver(Resolution& resolution) : r_(resolution) {}

  void object(const Value& value, const std::string& path) {
    for (const json::Member& member : value.members) {
      if (member.key.rfind("x-", 0) == 0) continue;
      const std::string child = path.empty() ? member.key : path + "." + member.key;
      const bool plain = member.key.find('.') == std::string::npos;
      const Field* field = plain ? find_field(child) : nullptr;
      const Section* section = plain ? find_section(child) : nullptr;
      if (field) {
        resolve(*field, member.value, child);
        continue;
      }
      if (!section) {
        unknown(path, member);
        continue;
      }
      r_.note_given(child, member.place);  // where a missing field of it is reported
      if (member.value.kind == Kind::object) {
        object(member.value, child);
      } else if (member.value.kind != Kind::null) {
        wrong(member.value.place, "E0201", child,
              fmt::format("`{}` must be an object, not {}", child, name_of(member.value.kind)),
              {fmt::format("its fields: {}", fmt::join(leaves_of(child), ", "))});
        for (const Field& f : fields())
          if (f.path.rfind(child + ".", 0) == 0) r_.spoil(f.path);
      }
    }
  }

 private:
  void wrong(json::Place place, const std::string& code, const std::string& path,
             const std::string& message, std::vector<std::string> help) {
    r_.spoil(path);
    r_.report_at(place,
                 {.code = code, .message = message, .pointer = pointer_of(path), .help = std::move(help)});
  }

  void unknown(const std::string& section, const json::Member& member) {
    const std::string in_table = table_path(section);
    std::vector<std::string> help;
    const std::string path = section.empty() ? member.key : section + "." + member.key;
    if (member.key.find('.') != std::string::npos && find_field(path))
      help.push_back(fmt::format("nest the objects: {} is one name inside another in a file", path));
    else if (const std::string hint = did_you_mean(in_table, member.key); !hint.empty())
      help.push_back(hint);
    help.push_back(fmt::format("{} has: {}", section.empty() ? "the spec" : section,
                               fmt::join(leaves_of(in_table), ", ")));
    r_.report_at(member.place, {.code = "E0101",
                                .message = fmt::format("unknown field `{}`", member.key),
                                .pointer = pointer_of(path),
                                .help = std::move(help)});
  }

  void resolve(const Field& field, const Value& value, const std::string& path) {
    if (value.kind == Kind::null) return;
    r_.note_given(path, value.place);
    if (field.type == Type::source_list) {
      source_list(field, value, path);
      return;
    }
    if (const std::optional<Setting> setting = convert(field, value, path)) {
      const bool automatic = field.accepts_auto && std::holds_alternative<std::string>(*setting);
      if (field.set && !automatic) field.set(r_.job, *setting);
      r_.settings[path] = *setting;
    }
  }

  void source_list(const Field& field, const Value& value, const std::string& path) {
    if (value.kind != Kind::list) {
      mistyped(field, value, path);
      return;
    }
    std::vector<DataSource>& sources = r_.job.data.*field.sources;
    for (size_t i = 0; i < value.items.size(); ++i) {
      const std::string entry = fmt::format("{}.{}", path, i);
      sources.emplace_back();
      for (const Field& f : fields())
        if (f.section() == path + "[]" && f.fallback) f.set_in_source(sources.back(), *f.fallback);
      if (value.items[i].kind != Kind::object) {
        wrong(value.items[i].place, "E0201", entry,
              fmt::format("`{}` must be an object, not {}", entry, name_of(value.items[i].kind)),
              {"write {\"path\": \"data/train.idx\"}"});
        r_.spoil(path);
        continue;
      }
      object(value.items[i], entry);
      for (const Field& f : fields()) {
        if (f.section() != path + "[]") continue;
        const std::string child = entry + "." + f.leaf();
        if (r_.settings.count(child)) f.set_in_source(sources.back(), r_.settings[child]);
        if (!r_.sound(child)) r_.spoil(path);
        if (f.required && !r_.given(child)) {
          wrong(value.items[i].place, "E0204", child, fmt::format("`{}` is missing", child), {f.text});
          r_.spoil(path);
        }
      }
    }
  }

  void mistyped(const Field& field, const Value& value, const std::string& path) {
    std::vector<std::string> help{fmt::format("{} is {}", path, describe_type(field))};
    if (!field.example.empty())
      help.push_back(fmt::format("example: \"{}\": {}", field.leaf(), field.example));
    wrong(value.place, "E0201", path,
          fmt::format("`{}` must be {}, not {}", path, kind_wanted(field), shown(value)), std::move(help));
  }

  std::optional<Setting> convert(const Field& field, const Value& value, const std::string& path) {
    switch (field.type) {
      case Type::boolean:
        if (value.kind == Kind::boolean) return value.boolean;
        break;
      case Type::integer:
      case Type::number:
        if (value.kind == Kind::text && field.accepts_auto && value.text == "auto") return value.text;
        if (value.kind == Kind::number || (value.kind == Kind::text && field.unit != Unit::none))
          return quantity(field, value, path);
        break;
      case Type::text:
        if (value.kind == Kind::text) return text(field, value, path);
        break;
      case Type::choice:
        if (value.kind == Kind::text) return choice(field, value, path);
        if (value.kind == Kind::number && field.accepts_count) return quantity(field, value, path);
        break;
      case Type::integer_list:
        if (value.kind == Kind::text && field.accepts_auto && value.text == "auto") return value.text;
        return integer_list(field, value, path);
      case Type::text_list: return text_list(field, value, path);
      case Type::text_map: return text_map(field, value, path);
      case Type::source_list: break;
    }
    mistyped(field, value, path);
    return std::nullopt;
  }

  std::optional<Setting> quantity(const Field& field, const Value& value, const std::string& path) {
    Quantity q{.value = value.number};
    if (value.kind == Kind::text) q = parse_quantity(value.text, field.unit);
    if (!q.problem.empty()) {
      wrong(value.place, "E0205", path, fmt::format("`{}` is not a quantity: {}", path, q.problem),
            {fmt::format("{} is {}", path, describe_type(field))});
      return std::nullopt;
    }
    int64_t whole = 0;
    const bool counts = field.type != Type::number;
    if (counts) {
      const char* end = value.text.data() + value.text.size();
      const auto digits = std::from_chars(value.text.data(), end, whole);
      const bool exact = value.kind == Kind::number && digits.ptr == end && digits.ec == std::errc();
      // Doubles hold every whole number up to 2^53 only, so plain digits are read exactly instead.
      const double nearest = std::round(q.value);
      constexpr double kLargest = 9.2e18;  // below 2^63
      if (!exact && std::abs(q.value) > kLargest) {
        wrong(value.place, "E0202", path, fmt::format("`{}` = {} is out of range", path, shown(value)),
              {fmt::format("{} is {}", path, describe_type(field))});
        return std::nullopt;
      }
      if (!exact && std::abs(q.value - nearest) > 1e-9 * std::abs(q.value)) {
        wrong(value.place, "E0206", path,
              fmt::format("`{}` must be a whole number, not {}", path, shown(value)),
              {fmt::format("{} is {}", path, describe_type(field))});
        return std::nullopt;
      }
      if (!exact) whole = static_cast<int64_t>(nearest);
      q.value = static_cast<double>(whole);
    }
    const bool in_range =
        (field.above_min ? q.value > field.min : q.value >= field.min) && q.value <= field.max;
    if (!in_range) {
      const bool version = path == "version";
      wrong(value.place, version ? "E0109" : "E0202", path,
            version ? fmt::format("this build reads version 1 of the spec, not {}", shown(value))
                    : fmt::format("`{}` = {} is out of range", path, shown(value)),
            {fmt::format("{} is {}", path, describe_type(field))});
      return std::nullopt;
    }
    if (counts) return whole;
    return q.value;
  }

  std::optional<Setting> text(const Field& field, const Value& value, const std::string& path) {
    const auto usable = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
             c == '_' || c == '-';
    };
    const std::string& t = value.text;
    const bool optional_name = field.fallback && std::get<std::string>(*field.fallback).empty();
    const bool good_name = std::all_of(t.begin(), t.end(), usable) && t.size() <= 100 &&
                           (t.empty() ? optional_name : t[0] != '.' && t[0] != '-');
    if (field.identifier && !good_name) {
      wrong(value.place, "E0212", path, fmt::format("`{}` = {} cannot name a run", path, shown(value)),
            {"use letters, digits, `.`, `_` and `-`, starting with a letter or digit, at most 100"});
      return std::nullopt;
    }
    if (t.find('\0') != std::string::npos) {
      wrong(value.place, "E0201", path, fmt::format("`{}` holds a NUL character", path), {"remove it"});
      return std::nullopt;
    }
    if (!value.place.known()) return t;
    return absolute_path(field.names, t, r_.sources.at(static_cast<size_t>(value.place.source)).folder);
  }

  std::optional<Setting> choice(const Field& field, const Value& value, const std::string& path) {
    for (const auto& [spelling, meaning] : field.aliases)
      if (value.text == spelling) return meaning;
    if (std::count(field.choices.begin(), field.choices.end(), value.text)) return value.text;
    std::vector<std::string> help;
    const std::vector<std::string> near = closest(value.text, field.choices, 1);
    if (!near.empty()) help.push_back(fmt::format("did you mean `{}`?", near[0]));
    help.push_back(field.accepts_count ? fmt::format("{} is {}", path, describe_type(field))
                                       : fmt::format("use {}", fmt::join(field.choices, ", ")));
    if (!field.hint.empty()) help.push_back(field.hint);
    wrong(value.place, "E0203", path, fmt::format("`{}` cannot be {}", path, shown(value)),
          std::move(help));
    return std::nullopt;
  }

  std::optional<Setting> text_list(const Field& field, const Value& value, const std::string& path) {
    std::vector<std::string> texts;
    const auto not_text = [](const Value& item) { return item.kind != Kind::text; };
    if (value.kind != Kind::list || std::any_of(value.items.begin(), value.items.end(), not_text)) {
      mistyped(field, value, path);
      return std::nullopt;
    }
    for (const Value& item : value.items) {
      if (!field.choices.empty() && !choice(field, item, path)) return std::nullopt;
      const std::string& folder =
          value.place.known() ? r_.sources.at(static_cast<size_t>(value.place.source)).folder : "";
      const Names names = field.names != Names::command ? field.names
                          : texts.empty()               ? Names::program
                                                        : Names::no_file;
      texts.push_back(absolute_path(names, item.text, folder));
    }
    return texts;
  }

  std::optional<Setting> integer_list(const Field& field, const Value& value, const std::string& path) {
    const auto not_number = [](const Value& item) { return item.kind != Kind::number; };
    if (value.kind != Kind::list || std::any_of(value.items.begin(), value.items.end(), not_number)) {
      mistyped(field, value, path);
      return std::nullopt;
    }
    std::vector<int64_t> numbers;
    for (const Value& item : value.items) {
      const std::optional<Setting> number = quantity(field, item, path);
      if (!number) return std::nullopt;
      numbers.push_back(std::get<int64_t>(*number));
    }
    return numbers;
  }

  std::optional<Setting> text_map(const Field& field, const Value& value, const std::string& path) {
    TextMap map;
    if (value.kind != Kind::object) {
      mistyped(field, value, path);
      return std::nullopt;
    }
    for (const json::Member& member : value.members) {
      if (member.value.kind == Kind::null) continue;
      if (member.value.kind != Kind::text) {
        wrong(member.value.place, "E0201", path,
              fmt::format("`{}.{}` must be text, not {}", path, member.key, shown(member.value)),
              {"put the value in double quotes"});
        return std::nullopt;
      }
      const bool bad_name =
          member.key.empty() || member.key.find_first_of(std::string("=\0", 2)) != std::string::npos;
      if (bad_name || member.value.text.find('\0') != std::string::npos) {
        wrong(member.place, "E0703", path,
              fmt::format("`{}` cannot be an environment variable", member.key),
              {"a name is not empty and holds no `=`"});
        return std::nullopt;
      }
      map.emplace_back(member.key, member.value.text);
    }
    return map;
  }

  Resolution& r_;
};

}  // namespace

Quantity parse_quantity(const std::string& text, Unit unit) {
  const std::string quoted = quoted_begin(text);
  const size_t digits_end = text.find_first_not_of("0123456789.", text.rfind('-', 0) == 0 ? 1 : 0);
  size_t number_end = digits_end == std::string::npos ? text.size() : digits_end;
  if (number_end < text.size() && (text[number_end] == 'e' || text[number_end] == 'E')) {
    size_t exponent = number_end + 1;
    if (exponent < text.size() && (text[exponent] == '-' || text[exponent] == '+')) ++exponent;
    const size_t exponent_end = std::min(text.size(), text.find_first_not_of("0123456789", exponent));
    if (exponent_end > exponent) number_end = exponent_end;
  }
  const std::string number = text.substr(0, number_end);
  char* parsed_end = nullptr;
  const double value = std::strtod(number.c_str(), &parsed_end);
  std::vector<std::string> known;
  for (const Suffix& suffix : suffixes_of(unit)) known.push_back(suffix.text);
  if (number.empty() || parsed_end != number.c_str() + number.size())
    return {.problem = fmt::format("{} does not start with a number", quoted)};
  const size_t suffix_begin = std::min(text.size(), text.find_first_not_of(' ', number_end));
  const std::string suffix = text.substr(suffix_begin);
  double factor = suffix.empty() ? 1 : 0;
  for (const Suffix& candidate : suffixes_of(unit))
    if (suffix == candidate.text) factor = candidate.factor;
  if (factor == 0)
    return {.problem = fmt::format("{} has an unknown unit; use {}", quoted, fmt::join(known, ", "))};
  if (!std::isfinite(value * factor)) return {.problem = fmt::format("{} is too large", quoted)};
  return {.value = value * factor};
}

void resolve_tree(const json::Value& tree, Resolution& resolution) {
  Resolver(resolution).object(tree, "");
}

}  // namespace trainctl::spec
