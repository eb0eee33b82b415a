#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cmd/completion.h"

namespace trainctl::cmd {
namespace {

/// For a text within single quotes and within the brackets or colons of _arguments.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string function_of(const std::string& command) {
  std::string name = "_trainctl_" + command;
  for (char& c : name)
    if (c == ' ' || c == '-') c = '_';
  return name;
}

/// The action of _arguments.
std::string action_of(const Completed& c) {
  if (c.fields) return "_trainctl_set";
  if (c.nothing()) return " ";
  if (!c.runs && !c.files && !c.folders) return fmt::format("({})", fmt::join(c.words, " "));
  std::string all;
  if (!c.words.empty()) all += fmt::format(" 'words\\:word\\:({})'", fmt::join(c.words, " "));
  if (c.runs) all += " 'runs\\:run\\:_trainctl_runs'";
  if (c.files) all += " 'files\\:file\\:_files'";
  if (c.folders) all += " 'folders\\:folder\\:_files -/'";
  std::string action = " _alternative" + all, quoted;  // the blank: with these arguments alone
  for (const char ch : action) quoted += ch == '\'' ? std::string("'\\''") : std::string(1, ch);
  return quoted;
}

/// An option of _arguments, with its short name: "'(-s --set)*'{-s,--set}'[text]:value:action'".
std::string option_spec(const CompletedOption& option) {
  const std::string value = option.takes_value ? ":value:" + action_of(option.value) : "";
  const std::string text = fmt::format("[{}]{}'", escaped(option.text), value);
  const std::string many = option.value.fields ? "*" : "";
  if (option.names.size() == 1) return fmt::format("'{}{}{}", many, option.names[0], text);
  if (!many.empty()) return fmt::format("'*'{{{}}}'{}", fmt::join(option.names, ","), text);
  return fmt::format("'({})'{{{}}}'{}", fmt::join(option.names, " "), fmt::join(option.names, ","), text);
}

std::string options_spec(const std::vector<CompletedOption>& options) {
  std::string all;
  for (const CompletedOption& option : options) all += "    " + option_spec(option) + " \\\n";
  return all;
}

std::string command_function(const CompletedCommand& command, const CompletionModel& model) {
  std::string out = function_of(command.name) + "() {\n  _arguments -s $_trainctl_global \\\n" +
                    options_spec(command.options);
  if (command.subcommands.empty())
    return out + fmt::format("    '*:argument:{}'\n}}\n", action_of(command.positional));
  out += fmt::format(
      "    '1:command:({})' '*::argument:->inner' && return\n  [[ $state == inner ]] || return\n  case "
      "$words[1] in\n",
      fmt::join(command.subcommands, " "));
  for (const CompletedCommand& inner : model.commands)
    if (inner.name.starts_with(command.name + " "))
      out +=
          fmt::format("    {}) {} ;;\n", inner.name.substr(command.name.size() + 1), function_of(inner.name));
  return out + "  esac\n}\n";
}

}  // namespace

std::string zsh_completion(const CompletionModel& model) {
  std::string out =
      "#compdef trainctl\n"
      "# zsh completion of trainctl:  source <(trainctl completion zsh), or as _trainctl in a folder of "
      "$fpath\n"
      "_trainctl_runs() {\n"
      "  local -a runs\n"
      "  runs=(${TRAINCTL_RUN_DIR:-runs}/*(N/:t))\n"
      "  compadd -a runs\n"
      "}\n"
      "_trainctl_set() {\n"
      "  local -a fields\n"
      "  if compset -P '*='; then\n"
      "    case ${IPREFIX%=} in\n";
  std::string paths;
  for (const CompletedField& field : model.fields) {
    paths += " " + field.path;
    if (!field.values.empty())
      out += fmt::format("      {}) compadd {} ;;\n", field.path, fmt::join(field.values, " "));
  }
  out += "      *) _files ;;\n    esac\n  else\n    fields=(" + paths.substr(1) +
         ")\n    compadd -q -S = -a fields\n  fi\n}\n";
  out += "typeset -ga _trainctl_global\n_trainctl_global=(\n";
  for (const CompletedOption& option : model.global) out += "    " + option_spec(option) + "\n";
  out += ")\n";
  for (const CompletedCommand& command : model.commands) out += command_function(command, model);
  out += "_trainctl() {\n  local curcontext=$curcontext state line\n  local -a commands\n  commands=(\n";
  for (const CompletedCommand& command : model.commands)
    if (command.name.find(' ') == std::string::npos)
      out += fmt::format("    '{}:{}'\n", command.name, escaped(command.text));
  out +=
      "  )\n  _arguments -C -s $_trainctl_global '1:command:->command' '*::argument:->argument' && return\n"
      "  case $state in\n    command) _describe -t commands command commands ;;\n    argument)\n      case "
      "$words[1] in\n";
  for (const CompletedCommand& command : model.commands)
    if (command.name.find(' ') == std::string::npos)
      out += fmt::format("        {}) {} ;;\n", command.name, function_of(command.name));
  return out +
         "      esac ;;\n  esac\n}\n"
         "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _trainctl \"$@\"; else compdef _trainctl "
         "trainctl; fi\n";
}

}  // namespace trainctl::cmd
