// What completion knows, gathered from the commands and the field table once for all shells.
#pragma once
#include <string>
#include <vector>

#include "cmd/command_line.h"

namespace trainctl::cmd {

/// What a value or a positional argument may be.
struct Completed {
  std::vector<std::string> words;
  bool files = false, folders = false, runs = false, fields = false;  ///< fields: PATH=VALUE of -s
  bool nothing() const { return words.empty() && !files && !folders && !runs && !fields; }
};

struct CompletedOption {
  std::vector<std::string> names;  ///< "-s", "--set"
  std::string text;
  bool takes_value = false;
  Completed value;
};

/// A command, or a subcommand of one: "data tokenize".
struct CompletedCommand {
  std::string name, text;
  std::vector<CompletedOption> options;  ///< without those of all commands
  Completed positional;
  std::vector<std::string> subcommands;
};

/// A field as -s names it.
struct CompletedField {
  std::string path;
  std::vector<std::string> values;  ///< empty: any
  bool is_file = false;
};

struct CompletionModel {
  std::vector<CompletedOption> global;
  std::vector<CompletedCommand> commands;  ///< each followed by its subcommands
  std::vector<CompletedField> fields;
};
CompletionModel completion_model(const CommandLine& app);

/// A script for each shell.
std::string bash_completion(const CompletionModel& model);
std::string zsh_completion(const CompletionModel& model);
std::string fish_completion(const CompletionModel& model);

}  // namespace trainctl::cmd
