// trainctl completion: a script for the shell, written from the commands and the field table.
#include <memory>

#include "cmd/commands.h"
#include "runtime/base/error.h"
#include "runtime/spec/fields/fields.h"

namespace trainctl::cmd {

namespace {

std::vector<std::string> names_of(const CommandLine& app) {
  std::vector<std::string> names;
  for (const CommandLine& sub : app.subcommands()) names.push_back(sub.name());
  return names;
}

/// Paths that --set takes, for completion of `--set PATH=`.
std::vector<std::string> set_paths() {
  std::vector<std::string> paths;
  for (const spec::Field& field : spec::fields()) {
    std::string path = field.path;
    if (const size_t list = path.find("[]"); list != std::string::npos) path.replace(list, 2, ".0");
    if (path != "$schema" && path != "extends") paths.push_back(path + "=");
  }
  return paths;
}

std::string bash_script(const CommandLine& app) {
  std::string cases;
  for (const CommandLine& sub : app.subcommands()) {
    std::vector<std::string> words = sub.option_names();
    for (const std::string& name : names_of(sub)) words.push_back(name);
    cases += fmt::format("    {}) words=\"{}\" ;;\n", sub.name(), fmt::join(words, " "));
  }
  return fmt::format(R"(# bash completion of trainctl:  source <(trainctl completion bash)
_trainctl() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  COMPREPLY=()
  if [[ $before == -s || $before == --set ]]; then
    compopt -o nospace
    COMPREPLY=($(compgen -W "{}" -- "$current"))
    return
  fi
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{} {}" -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{}  esac
  [[ $current == -* || ${{COMP_WORDS[1]}} == data ]] && COMPREPLY=($(compgen -W "$words {}" -- "$current"))
  [[ ${{#COMPREPLY[@]}} -eq 0 ]] && COMPREPLY=($(compgen -f -- "$current"))
}}
complete -F _trainctl trainctl
)",
                     fmt::join(set_paths(), " "), fmt::join(names_of(app), " "),
                     fmt::join(app.option_names(), " "), cases, fmt::join(app.option_names(), " "));
}

std::string zsh_script(const CommandLine& app) {
  return "# zsh completion of trainctl:  source <(trainctl completion zsh)\nautoload -U +X bashcompinit && "
         "bashcompinit\n" +
         bash_script(app);
}

std::string fish_script(const CommandLine& app) {
  std::string out = "# fish completion of trainctl:  trainctl completion fish | source\n";
  for (const CommandLine& sub : app.subcommands()) {
    std::string text = sub.description();
    std::erase(text, '\'');
    out +=
        fmt::format("complete -c trainctl -n __fish_use_subcommand -a {} -d '{}'\n", sub.name(), text);
    for (const std::string& flag : sub.option_names())
      out += fmt::format("complete -c trainctl -n '__fish_seen_subcommand_from {}' -l {}\n",
                         sub.name(), flag.substr(2));
  }
  out += fmt::format("complete -c trainctl -s s -l set -x -a '{}'\n", fmt::join(set_paths(), " "));
  return out;
}

}  // namespace

void add_completion(CommandLine& app, Context& context) {
  auto shell = std::make_shared<std::string>();
  CommandLine command = app.add_subcommand("completion", "print the completion script of a shell");
  command.add_option("SHELL", *shell, "bash, zsh or fish").required().one_of({"bash", "zsh", "fish"});
  when_chosen(command, context, [shell, app] {
    fmt::print("{}", *shell == "bash"  ? bash_script(app)
                     : *shell == "zsh" ? zsh_script(app)
                                       : fish_script(app));
    return kExitDone;
  });
}

}  // namespace trainctl::cmd
