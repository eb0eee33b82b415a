// trainctl completion: a script for the shell, written from the commands and the field table.
#include "cmd/completion.h"

#include <algorithm>
#include <memory>

#include "cmd/commands.h"
#include "cmd/help_pages.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/spec/pages/codes.h"

namespace trainctl::cmd {
namespace {

std::vector<std::string> command_names(const CommandLine& app) {
  std::vector<std::string> names;
  for (const CommandLine& sub : app.subcommands()) names.push_back(sub.name());
  return names;
}

std::vector<CompletedField> set_fields() {
  std::vector<CompletedField> list;
  for (const spec::Field* field : spec::listed_fields()) {
    CompletedField entry{
        .path = field->path,
        .values = field->choices,
        .is_file = field->names != spec::Names::no_file && field->names != spec::Names::command};
    if (const size_t at = entry.path.find("[]"); at != std::string::npos) entry.path.replace(at, 2, ".0");
    if (field->type == spec::Type::boolean) entry.values = {"true", "false"};
    if (field->path == "model.preset") entry.values = preset_names();
    if (field->accepts_auto) entry.values.push_back("auto");
    if (entry.path != "$schema" && entry.path != "extends") list.push_back(std::move(entry));
  }
  return list;
}

/// What `trainctl explain` takes.
std::vector<std::string> topics() {
  std::vector<std::string> list{"all", "codes"};
  for (const spec::CodePage& page : spec::code_pages()) list.push_back(page.code);
  for (const spec::Section& section : spec::sections()) list.push_back(section.path);
  for (const CompletedField& field : set_fields()) list.push_back(field.path);
  for (const std::string& preset : preset_names()) list.push_back(preset);
  return list;
}

/// By the word for the value in the help.
Completed value_of(const OptionText& option) {
  if (!option.choices.empty()) return {.words = option.choices};
  const auto is = [&](const char* word) { return option.value.find(word) != std::string::npos; };
  Completed value;
  value.fields = option.value == "PATH=VALUE";
  value.runs = is("RUN");
  value.folders = is("DIR");
  value.files = !value.fields && (is("FILE") || is("PATH") || is("PLACE") || is("JOB") || is("PREFIX") ||
                                  option.value == "TEXT");
  return value;
}

Completed positional_of(const CommandLine& command, const CommandLine& app) {
  Completed all;
  for (const OptionText& option : command.options()) {
    if (!option.is_positional) continue;
    const std::string& name = option.names;
    all.words.insert(all.words.end(), option.choices.begin(), option.choices.end());
    all.runs |= name.find("RUN") != std::string::npos || name.starts_with("OTHER") ||
                command.name() == "inspect-ckpt";
    all.files |= option.choices.empty();
    if (name.starts_with("PRESET")) all = {.words = preset_names()};
    if (name.starts_with("TOPIC")) all = {.words = command.name() == "help" ? command_names(app) : topics()};
  }
  if (command.name() == "help") {
    all.words.push_back("exit-codes");
    for (const HelpPage& page : help_pages()) all.words.push_back(page.topic);
  }
  if (all.runs) all.words.push_back("latest");
  return all;
}

std::vector<CompletedOption> completed_options(const CommandLine& command) {
  std::vector<CompletedOption> list;
  for (const OptionText& option : command.options()) {
    if (option.is_positional) continue;
    CompletedOption entry{.text = option.text,
                          .takes_value = !option.value.empty() || !option.choices.empty()};
    for (size_t at = 0; at < option.names.size();) {
      const size_t end = std::min(option.names.find(", ", at), option.names.size());
      entry.names.push_back(option.names.substr(at, end - at));
      at = end + 2;
    }
    if (entry.takes_value) entry.value = value_of(option);
    list.push_back(std::move(entry));
  }
  return list;
}

CompletedCommand command_of(const CommandLine& command, const std::string& name, const CommandLine& app) {
  CompletedCommand entry{.name = name,
                         .text = command.description(),
                         .options = completed_options(command),
                         .positional = positional_of(command, app),
                         .subcommands = command_names(command)};
  std::erase_if(entry.options, [](const CompletedOption& option) { return option.names.back() == "--help"; });
  return entry;
}

}  // namespace

CompletionModel completion_model(const CommandLine& app) {
  CompletionModel model{.global = completed_options(app), .fields = set_fields()};
  for (const CommandLine& sub : app.subcommands()) {
    model.commands.push_back(command_of(sub, sub.name(), app));
    for (const CommandLine& inner : sub.subcommands())
      model.commands.push_back(command_of(inner, sub.name() + " " + inner.name(), app));
  }
  return model;
}

void add_completion(CommandLine& app, Context& context) {
  auto shell = std::make_shared<std::string>();
  CommandLine command = app.add_subcommand("completion", "print the completion script of a shell");
  command.add_option("SHELL", *shell, "bash, zsh or fish").required().one_of({"bash", "zsh", "fish"});
  when_chosen(command, context, [shell, app, &context] {
    const CompletionModel model = completion_model(app);
    print_page(*shell == "bash"  ? bash_completion(model)
               : *shell == "zsh" ? zsh_completion(model)
                                 : fish_completion(model),
               context.json);
    return kExitDone;
  });
}

}  // namespace trainctl::cmd
