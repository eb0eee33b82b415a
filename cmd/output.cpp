#include "cmd/output.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::cmd {

std::string json_text(std::string_view kind, const OrderedJson& body, int indent) {
  ENSURE(body.is_object(), "the result of kind {} is no object", kind);
  OrderedJson result{{"v", 1}, {"kind", kind}};
  for (const auto& [name, value] : body.items())
    if (name != "v" && name != "kind") result[name] = value;
  return dump_json(result, indent) + "\n";
}

void print_json(std::string_view kind, const OrderedJson& body, int indent) {
  fmt::print("{}", json_text(kind, body, indent));
}

void print_json_text(std::string_view kind, const std::string& object, int indent) {
  print_json(kind, parse_ordered_json(object), indent);
}

void print_result(std::string_view kind, const std::string& text, const Context& context) {
  if (context.json)
    print_json_text(kind, text, -1);
  else
    fmt::print("{}", text);
}

void print_page(const std::string& text, bool json) {
  if (json)
    print_json("text", {{"text", text}});
  else
    fmt::print("{}", text);
}

void print_error_json(ErrorCode code, const std::string& message, const std::vector<Diagnostic>& mistakes) {
  OrderedJson body{{"error", name_of(code)}, {"message", message}, {"exit", exit_status(code)}};
  if (!mistakes.empty()) body["diagnostics"] = parse_ordered_json(render_json(mistakes));
  print_json("error", body);
}

}  // namespace trainctl::cmd
