// trainctl completion: a script for the shell, written from the commands and the field table.
#include <memory>

#include "cmd/commands.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/spec/pages/codes.h"

namespace trainctl::cmd {

namespace {

std::vector<std::string> names_of(const CommandLine& app) {
  std::vector<std::string> names;
  for (const CommandLine& sub : app.subcommands()) names.push_back(sub.name());
  return names;
}

/// One field of the spec as --set names it.
struct SetField {
  std::string path;
  std::vector<std::string> values;  ///< empty: any
};

std::vector<SetField> set_fields() {
  std::vector<SetField> list;
  for (const spec::Field& field : spec::fields()) {
    SetField entry{.path = field.path, .values = field.choices};
    if (const size_t at = entry.path.find("[]"); at != std::string::npos) entry.path.replace(at, 2, ".0");
    if (field.type == spec::Type::boolean) entry.values = {"true", "false"};
    if (field.accepts_auto) entry.values.push_back("auto");
    if (entry.path != "$schema" && entry.path != "extends") list.push_back(std::move(entry));
  }
  return list;
}

/// What `trainctl explain` takes besides fields.
std::vector<std::string> codes() {
  std::vector<std::string> list;
  for (const spec::CodePage& page : spec::code_pages()) list.push_back(page.code);
  return list;
}

/// What a positional argument names.
enum class Subject { other, run, field_or_code };
Subject subject_of(const CommandLine& command) {
  if (command.name() == "explain") return Subject::field_or_code;
  for (const OptionText& option : command.options())
    if (option.is_positional && option.names.starts_with("RUN")) return Subject::run;
  return Subject::other;
}

/// The values of flags that have a fixed set of them: "    launch:--manifest) words="k8s" ;;"
std::string value_cases(const CommandLine& command, const std::string& word) {
  std::string cases;
  for (const OptionText& option : command.options())
    if (!option.is_positional && !option.choices.empty())
      cases += fmt::format("    {}:{}) words=\"{}\" ;;\n", word, option.names.substr(option.names.find("--")),
                           fmt::join(option.choices, " "));
  return cases;
}

std::string bash_script(const CommandLine& app) {
  std::string commands, values = value_cases(app, "*"), fields;
  std::vector<std::string> paths;
  for (const SetField& field : set_fields()) {
    paths.push_back(field.path + "=");
    if (!field.values.empty())
      fields += fmt::format("    {}) words=\"{}\" ;;\n", field.path, fmt::join(field.values, " "));
  }
  for (const CommandLine& sub : app.subcommands()) {
    std::vector<std::string> words = sub.option_names(), subjects;
    for (const std::string& name : names_of(sub)) subjects.push_back(name);
    for (const OptionText& option : sub.options())
      if (option.is_positional) subjects.insert(subjects.end(), option.choices.begin(), option.choices.end());
    const Subject subject = subject_of(sub);
    if (subject == Subject::field_or_code) {
      subjects = codes();
      for (const SetField& field : set_fields()) subjects.push_back(field.path);
    }
    std::string named = fmt::format("{}", fmt::join(subjects, " "));
    if (sub.name() == "help") named = fmt::format("{} exit-codes", fmt::join(names_of(app), " "));
    const bool takes_files = named.empty() || subject == Subject::run;
    if (subject == Subject::run) named += "$(_trainctl_runs) latest";
    commands += fmt::format("    {}) flags=\"{}\" named=\"{}\" files={} ;;\n", sub.name(),
                            fmt::join(words, " "), named, int(takes_files));
    values += value_cases(sub, sub.name());
  }
  // Readline takes `=` for the end of a word.
  return fmt::format(R"(# bash completion of trainctl:  source <(trainctl completion bash)
_trainctl_runs() {{ ls "${{TRAINCTL_RUN_DIR:-runs}}" 2>/dev/null; }}
_trainctl_values() {{
  case "$1" in
{}  esac
}}
_trainctl() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}"
  local words="" flags="" named="" files=1
  COMPREPLY=()
  local option="${{COMP_WORDS[COMP_CWORD-2]}}" field="$before"
  if [[ $current == = ]]; then option="${{COMP_WORDS[COMP_CWORD-2]}}" current=""
  elif [[ $before == = ]]; then option="${{COMP_WORDS[COMP_CWORD-3]}}" field="${{COMP_WORDS[COMP_CWORD-2]}}"
  else field=""
  fi
  if [[ -n $field ]]; then
    [[ $option == -s || $option == --set ]] && _trainctl_values "$field"
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [[ ${{#COMPREPLY[@]}} -eq 0 ]] && COMPREPLY=($(compgen -f -- "$current"))
    return
  fi
  if [[ $before == -s || $before == --set ]]; then
    compopt -o nospace 2>/dev/null
    COMPREPLY=($(compgen -W "{}" -- "$current"))
    return
  fi
  case "$command:$before" in
{}  esac
  if [[ -n $words ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    return
  fi
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{} {}" -- "$current"))
    return
  fi
  case "$command" in
{}  esac
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$flags {}" -- "$current"))
  else
    COMPREPLY=($(compgen -W "$named" -- "$current"))
    if [[ $files == 1 ]]; then COMPREPLY+=($(compgen -f -- "$current")); fi
  fi
}}
complete -F _trainctl trainctl
)",
                     fields, fmt::join(paths, " "), values, fmt::join(names_of(app), " "),
                     fmt::join(app.option_names(), " "), commands, fmt::join(app.option_names(), " "));
}

std::string zsh_script(const CommandLine& app) {
  return "#compdef trainctl\n# zsh completion of trainctl:  source <(trainctl completion zsh), or as "
         "_trainctl in a "
         "folder of $fpath\nautoload -U +X bashcompinit && bashcompinit\n" +
         bash_script(app);
}

std::string fish_option(const OptionText& option) {
  std::string text = option.text, line;
  std::erase(text, '\'');
  for (size_t at = 0; at < option.names.size();) {
    const size_t end = std::min(option.names.find(", ", at), option.names.size());
    const std::string name = option.names.substr(at, end - at);
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    at = end + 2;
  }
  if (!option.choices.empty()) line += fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
  else if (!option.value.empty()) line += " -r";
  return fmt::format("{} -d '{}'", line, text);
}

std::string fish_script(const CommandLine& app) {
  std::string out =
      "# fish completion of trainctl:  trainctl completion fish | source\n"
      "function __trainctl_runs; set -q TRAINCTL_RUN_DIR; and ls $TRAINCTL_RUN_DIR 2>/dev/null; or ls runs "
      "2>/dev/null; end\n";
  const auto is_set = [](const OptionText& option) { return option.names == "-s, --set"; };
  for (const OptionText& option : app.options()) out += "complete -c trainctl" + fish_option(option) + "\n";
  for (const CommandLine& sub : app.subcommands()) {
    std::string text = sub.description();
    std::erase(text, '\'');
    const std::string seen =
        fmt::format("complete -c trainctl -n '__fish_seen_subcommand_from {}'", sub.name());
    out += fmt::format("complete -c trainctl -n __fish_use_subcommand -a {} -d '{}'\n", sub.name(), text);
    for (const OptionText& option : sub.options()) {
      if (!option.is_positional && !is_set(option)) out += seen + fish_option(option) + "\n";
      if (option.is_positional && !option.choices.empty())
        out += fmt::format("{} -f -a '{}'\n", seen, fmt::join(option.choices, " "));
    }
    for (const CommandLine& inner : sub.subcommands())
      out += fmt::format("{} -f -a {}\n", seen, inner.name());
    if (subject_of(sub) == Subject::run) out += seen + " -a '(__trainctl_runs) latest'\n";
    if (subject_of(sub) == Subject::field_or_code)
      out += fmt::format("{} -f -a '{}'\n", seen, fmt::join(codes(), " "));
  }
  std::vector<std::string> settings;
  for (const SetField& field : set_fields()) {
    settings.push_back(field.path + "=");
    for (const std::string& value : field.values) settings.push_back(field.path + "=" + value);
  }
  return out + fmt::format("complete -c trainctl -s s -l set -x -a '{}'\n", fmt::join(settings, " "));
}

}  // namespace

void add_completion(CommandLine& app, Context& context) {
  auto shell = std::make_shared<std::string>();
  CommandLine command = app.add_subcommand("completion", "print the completion script of a shell");
  command.add_option("SHELL", *shell, "bash, zsh or fish").required().one_of({"bash", "zsh", "fish"});
  when_chosen(command, context, [shell, app, &context] {
    print_page(*shell == "bash"  ? bash_script(app)
               : *shell == "zsh" ? zsh_script(app)
                                 : fish_script(app),
               context.json);
    return kExitDone;
  });
}

}  // namespace trainctl::cmd
