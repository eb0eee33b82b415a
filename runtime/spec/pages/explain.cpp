// `trainctl explain`: written from the field table and the code pages.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/spec/pages/codes.h"
#include "runtime/spec/pages/page_text.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/spec/parse.h"
#include "runtime/spec/presets.h"
#include "runtime/spec/suggest.h"

namespace trainctl {

namespace {

using spec::Field;
using spec::first_sentence;
using spec::grouped;
using spec::json_of;
using spec::wrapped;

std::string default_of(const Field& field) {
  if (field.required) return "none: it must be given";
  const std::string text = default_text(field);
  return text.empty() ? "none" : text;
}

/// `"parallelism": {"tensor": 2}` from a path and a value.
std::string nested(const std::string& path, const std::string& value) {
  const size_t dot = path.find('.');
  if (dot == std::string::npos) return fmt::format("\"{}\": {}", path, value);
  const std::string head = path.substr(0, dot);
  const bool list = head.size() > 2 && head.substr(head.size() - 2) == "[]";
  const std::string inner = nested(path.substr(dot + 1), value);
  return list ? fmt::format("\"{}\": [{{{}}}]", head.substr(0, head.size() - 2), inner)
              : fmt::format("\"{}\": {{{}}}", head, inner);
}

std::string example_of(const Field& field) {
  if (!field.example.empty()) return field.example;
  if (!field.choices.empty()) {
    const std::string word = fmt::format("\"{}\"", field.choices.front());
    return field.type == spec::Type::text_list ? fmt::format("[{}]", word) : word;
  }
  if (field.fallback) return json_of(*field.fallback);
  return "1";
}

/// Codes whose page speaks of the field: by its path, or in the example of a mistake that is about few fields.
std::vector<std::string> codes_about(const Field& field) {
  std::vector<std::string> codes;
  for (const spec::CodePage& page : spec::code_pages()) {
    const bool of_any_field = page.code < "E0210";
    const bool named = (page.title + page.cause + page.fix).find(field.path) != std::string::npos;
    const bool shown = !of_any_field && page.example.find("\"" + field.leaf() + "\":") != std::string::npos;
    if (named || shown) codes.push_back(page.code);
  }
  return codes;
}

const char* on_resume(Change change) {
  switch (change) {
    case Change::free: return "may change; no bit of the training differs for it";
    case Change::numerics: return "may change; the numbers differ from there on, and the run records it";
    case Change::branch: return "fixed; to change it, begin a new run from a checkpoint: trainctl launch "
                                "JOB --from RUN";
    case Change::never: return "fixed, also for a new run from a checkpoint: it is the model's shape";
  }
  return "?";
}

/// The one field that is called `word` in its section, null if there is none or more than one.
const Field* only_field_called(const std::string& word) {
  const Field* found = nullptr;
  for (const Field& field : spec::fields()) {
    if (field.leaf() != word) continue;
    if (found) return nullptr;
    found = &field;
  }
  return found;
}

std::string field_page(const Field& field) {
  const std::string example = example_of(field);
  std::string value = example;
  if (value.size() > 2 && value.front() == '"') value = value.substr(1, value.size() - 2);
  const bool quoted = value.find_first_of(" \"{}[]*") != std::string::npos;
  std::string set = field.path;
  if (const size_t list = set.find("[]"); list != std::string::npos) set.replace(list, 2, ".0");
  set += "=" + value;
  std::string page = fmt::format("{}\n\n{}\n", field.path, wrapped(field.text, "  "));
  page += fmt::format("  value      {}\n  default    {}\n", describe_type(field), default_of(field));
  if (field.names != spec::Names::no_file) page += fmt::format("  path       {}\n", path_rule(field.names));
  page += fmt::format("  in a file  {}\n", nested(field.path, example));
  if (field.path != "extends" && field.path != "$schema")
    page += fmt::format("  override   --set {}\n", quoted ? "'" + set + "'" : set);
  page += fmt::format("  on resume  {}\n", on_resume(field.change));
  const std::vector<std::string> codes = codes_about(field);
  if (!codes.empty()) page += fmt::format("  errors     {}\n", fmt::join(codes, ", "));
  return page;
}

std::string section_page(const std::string& path, const std::string& text) {
  std::string page = path.empty() ? "" : fmt::format("{}\n\n{}\n", path, wrapped(text, "  "));
  std::string listed, all;
  for (const Field& field : spec::fields()) {
    if (field.section() != path) continue;
    const std::string line = fmt::format("  {:<28} {}\n", field.leaf(), first_sentence(field.text));
    all += line;
    if (field.listed) listed += line;
  }
  page += listed.empty() ? all : listed;
  for (const spec::Section& child : spec::sections()) {
    const size_t dot = child.path.rfind('.');
    if ((dot == std::string::npos ? "" : child.path.substr(0, dot)) == path)
      page += fmt::format("  {:<28} {}\n",
                          (dot == std::string::npos ? child.path : child.path.substr(dot + 1)) + ".*",
                          first_sentence(child.text));
  }
  return page;
}

std::string code_page(const spec::CodePage& page) {
  return fmt::format("{}: {}\n\n{}\n  example    {}\n{}", page.code, page.title, wrapped(page.cause, "  "),
                     page.example, "  what to do " + wrapped(page.fix, "             ").substr(13));
}

/// Every field with its type and default, section by section.
std::string all_fields() {
  std::string out;
  for (const Field* field : spec::listed_fields()) {
    out += fmt::format("{}\n", field->path) + wrapped(field->text, "    ");
    out += wrapped(fmt::format("{}; default: {}", describe_type(*field), default_of(*field)), "    ");
  }
  return out;
}

std::string all_codes() {
  std::string out;
  for (const spec::CodePage& page : spec::code_pages())
    out += fmt::format("{}  {}\n", page.code, page.title);
  return out;
}

std::string preset_page(const spec::Preset& preset) {
  const OrderedJson model = parse_ordered_json(preset.model_json());
  return fmt::format("preset {}: {}, {} parameters\n\n{}\n\n  a starter spec: trainctl init {}\n",
                     preset.name, preset.summary, grouped(preset.parameters), dump_json(model, 2), preset.name);
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::string suggestion_for(const std::string& topic) {
  const std::string leaf = topic.substr(topic.rfind('.') == std::string::npos ? 0 : topic.rfind('.') + 1);
  for (const Field& field : spec::fields())
    if (field.leaf() == leaf || std::count(field.other_names.begin(), field.other_names.end(), leaf))
      return field.path;
  std::vector<std::string> topics;
  for (const Field& field : spec::fields()) topics.push_back(field.path);
  for (const spec::Section& section : spec::sections()) topics.push_back(section.path);
  for (const spec::CodePage& page : spec::code_pages()) topics.push_back(page.code);
  std::vector<std::string> near = closest(topic, topics, 1);
  if (!near.empty()) return near[0];
  std::vector<std::string> leaves;
  for (const Field& field : spec::fields()) leaves.push_back(field.leaf());
  near = closest(leaf, leaves, 1);
  for (const Field& field : spec::fields())
    if (!near.empty() && field.leaf() == near[0]) return field.path;
  return "";
}

}  // namespace

std::string default_text(const Field& field) {
  if (!field.fallback_text.empty()) return field.fallback_text;
  if (!field.fallback) return "";
  const auto* words = std::get_if<std::vector<std::string>>(&*field.fallback);
  if (!words || words->empty()) return json_of(*field.fallback);
  return fmt::format("[\"{}\"]", fmt::join(*words, "\", \""));
}

std::string explain(const std::string& topic, std::string* suggestion) {
  if (suggestion) suggestion->clear();
  if (topic.empty()) return section_page("", "") + "\n  all: every field; codes: every error code\n";
  if (topic == "all") return all_fields();
  if (topic == "codes") return all_codes();
  if (const Field* field = spec::find_field(topic)) return field_page(*field);
  if (const spec::Section* section = spec::find_section(topic))
    return section_page(section->path, section->text);
  if (const spec::CodePage* page = spec::find_code(upper(topic))) return code_page(*page);
  if (const spec::Preset* preset = spec::find_preset(topic)) return preset_page(*preset);
  if (const Field* field = only_field_called(topic)) return field_page(*field);
  if (suggestion) *suggestion = suggestion_for(topic);
  return "";
}

}  // namespace trainctl
