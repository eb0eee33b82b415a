// The command line as declarations: commands, their options, and what one line of words comes to.
//
// A thin front of CLI11, which is the slowest header of the program to compile: only command_line.cpp includes it. Handles
// (CommandLine, Option) are small, copyable and valid as long as the CommandLineProgram that they came from.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace trainctl::cmd {

/// One option, flag or positional argument of a command.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option& required(bool yes = true);
  /// The word for the value in the help, e.g. "N".
  Option& type_name(const std::string& name);
  /// A whole number or a number from `low` to `high`.
  Option& range(double low, double high);
  /// A number above zero.
  Option& positive();
  Option& one_of(const std::vector<std::string>& values);
  /// May be repeated; each use takes one value.
  Option& repeatable();
  Option& excludes(const Option& other);
  Option& needs(const Option& other);
  /// Shows the value that its variable holds now as the default in the help.
  Option& show_default();

 private:
  CLI::Option* option_;
};

/// A command, or the program itself. An option's variable keeps its value unless the line names the option.
class CommandLine {
 public:
  explicit CommandLine(CLI::App* app) : app_(app) {}

  Option add_option(const std::string& name, std::string& value, const std::string& help);
  Option add_option(const std::string& name, std::vector<std::string>& values, const std::string& help);
  Option add_option(const std::string& name, int& value, const std::string& help);
  Option add_option(const std::string& name, int64_t& value, const std::string& help);
  Option add_option(const std::string& name, uint64_t& value, const std::string& help);
  Option add_option(const std::string& name, double& value, const std::string& help);
  Option add_flag(const std::string& name, bool& value, const std::string& help);
  /// The option declared before under this name.
  Option get_option(const std::string& name);

  CommandLine add_subcommand(const std::string& name, const std::string& help);
  /// A line must name one of the subcommands.
  void require_subcommand();
  /// Leaves the command out of the help and of completion.
  void hide();
  /// Called when the line has been understood and names this command.
  void when_named(std::function<void()> call);

  std::string name() const;
  /// With the names of the commands above: "trainctl data tokenize".
  std::string full_name() const;
  std::string description() const;
  std::string help() const;
  /// "--json", ...: every long name.
  std::vector<std::string> option_names() const;
  /// Those that the help shows.
  std::vector<CommandLine> subcommands() const;

 private:
  CLI::App* app_;
};

/// Owns the declarations and understands lines.
class CommandLineProgram {
 public:
  /// `footer` ends every help page.
  CommandLineProgram(const std::string& name, const std::string& description, const std::string& version,
                     const std::string& footer);
  ~CommandLineProgram();
  CommandLine root();

  struct Outcome {
    enum Kind { understood, print, misused } kind = understood;
    std::string text;   ///< to print on stdout (help, version), or one sentence on what is wrong
  };
  /// Sets the variables of all options on the line and calls what the named commands asked for.
  Outcome parse(int argc, const char* const* argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace trainctl::cmd
