// trainctl explain: one field, one section, one preset or one error code.
#include <memory>

#include "cmd/commands.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/spec/pages/pages.h"

namespace trainctl::cmd {

void add_explain(CommandLine& app, Context& context) {
  auto topic = std::make_shared<std::string>();
  CommandLine command = app.add_subcommand("explain", "explain a field of the job spec, or an error code");
  command.add_option("TOPIC", *topic, "a field, section, preset or code; all; codes; none: the sections");
  when_chosen(command, context, [topic, &context] {
    std::string suggestion;
    const std::string page = explain(*topic, &suggestion);
    if (page.empty())
      throw Error(ErrorCode::kUsage, suggestion.empty() ? fmt::format("there is no field, section or code "
                                                                      "`{}`; `trainctl explain` lists them",
                                                                      *topic)
                                                        : fmt::format("there is no field, section or code "
                                                                      "`{}`; did you mean `{}`?",
                                                                      *topic, suggestion));
    if (context.json)
      fmt::print("{}\n", dump_json(nlohmann::ordered_json({{"topic", *topic}, {"text", page}}), 2));
    else
      fmt::print("{}", page);
    return kExitDone;
  });
}

}  // namespace trainctl::cmd
