#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cmd/completion.h"

namespace trainctl::cmd {
namespace {

/// Shell assignments that say what may follow: words="...", files=1, ...
std::string assignments(const Completed& c) {
  std::string text;
  if (!c.words.empty()) text += fmt::format(" words=\"{}\"", fmt::join(c.words, " "));
  if (c.runs) text += " runs=1";
  if (c.files) text += " files=1";
  if (c.folders) text += " folders=1";
  return text.empty() ? " :" : text;
}

std::string flag_names(const std::vector<CompletedOption>& options) {
  std::string names;
  for (const CompletedOption& option : options) names += (names.empty() ? "" : " ") + option.names.back();
  return names;
}

/// "    'export:--dtype') words="f32 bf16" ;;" for each option that takes a value; `command` "*": of all
/// commands.
std::string value_cases(const std::vector<CompletedOption>& options, const std::string& command) {
  std::string cases;
  for (const CompletedOption& option : options) {
    if (!option.takes_value || option.value.fields) continue;
    std::string pattern;
    for (const std::string& name : option.names)
      pattern += (pattern.empty() ? "" : "|") +
                 (command == "*" ? "*:" + name : fmt::format("'{}:{}'", command, name));
    cases += fmt::format("    {}) value=1{} ;;\n", pattern,
                         assignments(option.value) == " :" ? "" : assignments(option.value));
  }
  return cases;
}

}  // namespace

std::string bash_completion(const CompletionModel& model) {
  std::string fields, names, paths, values = value_cases(model.global, "*"), commands, nested;
  for (const CompletedField& field : model.fields) {
    paths += (paths.empty() ? "" : " ") + field.path + "=";
    if (!field.values.empty())
      fields += fmt::format("    {}) words=\"{}\" ;;\n", field.path, fmt::join(field.values, " "));
  }
  for (const CompletedCommand& command : model.commands) {
    if (command.name.find(' ') == std::string::npos) names += (names.empty() ? "" : " ") + command.name;
    if (!command.subcommands.empty()) nested += (nested.empty() ? "" : "|") + command.name;
    values += value_cases(command.options, command.name);
    Completed positional = command.positional;
    positional.words.insert(positional.words.end(), command.subcommands.begin(), command.subcommands.end());
    commands += fmt::format("    '{}') flags=\"{}\"{} ;;\n", command.name, flag_names(command.options),
                            positional.nothing() ? "" : assignments(positional));
  }
  // Readline takes `=` for the end of a word.
  return fmt::format(R"bash(# bash completion of trainctl:  source <(trainctl completion bash)
_trainctl_runs() {{ ls "${{TRAINCTL_RUN_DIR:-runs}}" 2>/dev/null; }}
_trainctl_field_values() {{
  case "$1" in
{}  esac
}}
_trainctl_command() {{   # the command on the line before the cursor
  local i word
  command=""
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{COMP_WORDS[i]}}"
    [[ $word == -* ]] && continue
    if [[ -z $command ]]; then command="$word"; else command="$command $word"; fi
    case "$command" in {}) ;; *) return ;; esac
  done
}}
_trainctl() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command=""
  local words="" flags="" value="" runs="" files="" folders="" option field=""
  COMPREPLY=()
  if [[ $current == = ]]; then option="${{COMP_WORDS[COMP_CWORD-2]}}" field="$before" current=""
  elif [[ $before == = ]]; then option="${{COMP_WORDS[COMP_CWORD-3]}}" field="${{COMP_WORDS[COMP_CWORD-2]}}"
  fi
  if [[ -n $field ]]; then
    [[ $option == -s || $option == --set ]] && _trainctl_field_values "$field"
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [[ ${{#COMPREPLY[@]}} -eq 0 ]] && COMPREPLY=($(compgen -f -- "$current"))
    return
  fi
  if [[ $before == -s || $before == --set ]]; then
    compopt -o nospace 2>/dev/null
    COMPREPLY=($(compgen -W "{}" -- "$current"))
    return
  fi
  _trainctl_command
  case "$command:$before" in
{}  esac
  if [[ -z $value ]]; then
    case "$command" in
    "") words="{}" ;;
{}    esac
    if [[ $current == -* ]]; then
      COMPREPLY=($(compgen -W "$flags {}" -- "$current"))
      return
    fi
  fi
  [[ -n $runs ]] && words="$words $(_trainctl_runs)"
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [[ -n $files ]] && COMPREPLY+=($(compgen -f -- "$current"))
  [[ -n $folders ]] && COMPREPLY+=($(compgen -d -- "$current"))
}}
complete -o filenames -F _trainctl trainctl
)bash",
                     fields, nested, paths, values, names, commands, flag_names(model.global));
}

}  // namespace trainctl::cmd
