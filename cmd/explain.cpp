// trainctl explain: one field, one section, one preset or one error code.
#include <memory>

#include "cmd/commands.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/base/record.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/spec/pages/codes.h"
#include "runtime/spec/pages/pages.h"

namespace trainctl::cmd {
namespace {

OrderedJson field_json(const spec::Field& field) {
  OrderedJson j{{"path", field.path},
                 {"text", field.text},
                 {"value", describe_type(field)},
                 {"required", field.required},
                 {"default", nullptr}};
  if (field.fallback) j["default"] = parse_ordered_json(spec::json_of(*field.fallback));
  if (!field.fallback_text.empty()) j["default_text"] = field.fallback_text;
  if (!field.choices.empty()) j["choices"] = field.choices;
  if (field.unit != spec::Unit::none) j["unit"] = spec::name_of(field.unit);
  j["accepts_auto"] = field.accepts_auto;
  return j;
}

/// The page as text, and its parts if it is about one field or one code.
OrderedJson explain_result(const std::string& topic, const std::string& page) {
  OrderedJson result{{"topic", topic}, {"text", page}};
  if (const spec::Field* field = spec::find_field(topic)) result["field"] = field_json(*field);
  if (const spec::CodePage* code = spec::find_code(page.substr(0, page.find(':'))))
    result["code"] = {{"code", code->code},
                      {"title", code->title},
                      {"cause", code->cause},
                      {"example", code->example},
                      {"what_to_do", code->fix}};
  return result;
}

int show_topic(const std::string& topic, const Context& context) {
  std::string suggestion;
  const std::string page = explain(topic, &suggestion);
  if (page.empty())
    throw Error(ErrorCode::kUsage,
                fmt::format("there is no field, section or code `{}`; {}", topic,
                            suggestion.empty() ? "`trainctl explain` lists them"
                                               : fmt::format("did you mean `{}`?", suggestion)));
  if (context.json)
    print_json("explain", explain_result(topic, page));
  else
    fmt::print("{}", page);
  return kExitDone;
}

}  // namespace

void add_explain(CommandLine& app, Context& context) {
  auto topic = std::make_shared<std::string>();
  CommandLine command = app.add_subcommand("explain", "explain a field of the job spec, or an error code");
  command.add_option("TOPIC", *topic, "a field, section, preset or code; `all` fields; all `codes`; "
                                      "without it: the sections");
  when_chosen(command, context, [topic, &context] { return show_topic(*topic, context); });
}

}  // namespace trainctl::cmd
