#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cmd/completion.h"

namespace trainctl::cmd {
namespace {

std::string fish_word(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

/// The -a of what may follow; "" if that is a file or nothing.
std::string arguments_of(const Completed& c) {
  std::string list = fmt::format("{}", fmt::join(c.words, " "));
  if (c.runs) list += (list.empty() ? "" : " ") + std::string("(__trainctl_runs)");
  if (c.folders) list += (list.empty() ? "" : " ") + std::string("(__fish_complete_directories)");
  return list.empty() ? "" : " -a " + fish_word(list);
}

std::string option_line(const std::string& when, const CompletedOption& option) {
  std::string line = when;
  for (const std::string& name : option.names)
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  if (option.takes_value) line += option.value.files ? " -r" : " -x";
  if (option.value.fields)
    line += " -a '(__trainctl_settings)'";
  else
    line += arguments_of(option.value);
  return line + " -d " + fish_word(option.text) + "\n";
}

/// A condition: the line has these words of a command.
std::string seen(const CompletedCommand& command) {
  std::string condition;
  for (size_t at = 0; at < command.name.size();) {
    const size_t end = std::min(command.name.find(' ', at), command.name.size());
    condition += (condition.empty() ? "" : "; and ") +
                 fmt::format("__fish_seen_subcommand_from {}", command.name.substr(at, end - at));
    at = end + 1;
  }
  return condition;
}

}  // namespace

std::string fish_completion(const CompletionModel& model) {
  std::string out =
      "# fish completion of trainctl:  trainctl completion fish | source\n"
      "function __trainctl_runs\n"
      "  set -q TRAINCTL_RUN_DIR; and command ls $TRAINCTL_RUN_DIR 2>/dev/null; or command ls runs "
      "2>/dev/null\n"
      "end\n"
      "function __trainctl_settings\n";
  std::string settings;
  for (const CompletedField& field : model.fields) {
    settings += "  echo " + fish_word(field.path + "=") + "\n";
    for (const std::string& value : field.values)
      settings += "  echo " + fish_word(field.path + "=" + value) + "\n";
  }
  out += settings + "end\n";
  for (const CompletedOption& option : model.global) out += option_line("complete -c trainctl", option);
  for (const CompletedCommand& command : model.commands) {
    const bool is_inner = command.name.find(' ') != std::string::npos;
    const std::string when = fmt::format("complete -c trainctl -n {}", fish_word(seen(command)));
    if (!is_inner)
      out += fmt::format("complete -c trainctl -f -n __fish_use_subcommand -a {} -d {}\n", command.name,
                         fish_word(command.text));
    for (const CompletedOption& option : command.options) out += option_line(when, option);
    for (const CompletedCommand& inner : model.commands)
      if (inner.name.starts_with(command.name + " "))
        out += fmt::format("complete -c trainctl -f -n {} -a {} -d {}\n",
                           fish_word(fmt::format("{}; and not __fish_seen_subcommand_from {}", seen(command),
                                              fmt::join(command.subcommands, " "))),
                           inner.name.substr(command.name.size() + 1), fish_word(inner.text));
    if (!command.positional.nothing() && command.subcommands.empty())
      out += when + (command.positional.files ? "" : " -f") + arguments_of(command.positional) + "\n";
  }
  return out;
}

}  // namespace trainctl::cmd
