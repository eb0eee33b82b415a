// Declares commands and their options, and parses a command line.
//
// A thin layer over CLI11. Only command_line.cpp includes CLI11, because that header takes longest to
// compile. Handles (CommandLine, Option) are small and copyable, and valid as long as their
// CommandLineProgram.
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
  /// Accepts only numbers from `low` to `high`.
  Option& range(double low, double high);
  /// Accepts only numbers above zero.
  Option& positive();
  Option& one_of(const std::vector<std::string>& values);
  /// The option may be repeated; each use takes one value.
  Option& repeatable();
  Option& excludes(const Option& other);
  Option& needs(const Option& other);
  /// The help shows the current value of the option's variable as the default.
  Option& show_default();
  /// Leaves the option out of the help, of suggestions and of completion: the program itself writes it.
  Option& hide();

 private:
  CLI::Option* option_;
};

/// An option, flag or positional argument as the help shows it.
struct OptionText {
  std::string names;  ///< "-s, --set", or "JOB" of a positional argument
  std::string value;  ///< "PATH=VALUE"; "" of a flag and of a positional argument
  std::string text;
  bool is_positional = false, is_required = false;
  std::vector<std::string> choices;  ///< legal values; empty: any
};

/// A command, or the program itself. The variable of an option keeps its value if the line does not have the
/// option; it must outlive CommandLineProgram::parse.
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
  /// A flag that may have a number behind `=`; alone it is 1.
  Option add_flag(const std::string& name, int64_t& value, const std::string& help);
  /// An option that may stand alone: then its value is "".
  Option add_optional_value(const std::string& name, std::optional<std::string>& value,
                            const std::string& help);
  /// An option that was declared with this name.
  Option get_option(const std::string& name);

  CommandLine add_subcommand(const std::string& name, const std::string& help);
  /// A line must name one of the subcommands.
  void require_subcommand();
  /// Leaves the command out of the help and of completion.
  void hide();
  /// Sets a function that parse() calls if the line is valid and names this command.
  void when_named(std::function<void()> call);

  std::string name() const;
  /// The name with those of its parents: "trainctl data tokenize".
  std::string full_name() const;
  std::string description() const;
  std::string help() const;
  /// The long names of all options: "--json", ...
  std::vector<std::string> option_names() const;
  /// Of this command, positional arguments first.
  std::vector<OptionText> options() const;
  /// The subcommands that the help shows.
  std::vector<CommandLine> subcommands() const;

 private:
  CLI::App* app_;
};

/// Owns the declarations and parses lines.
class CommandLineProgram {
 public:
  /// `footer`: the last text of every help page.
  CommandLineProgram(const std::string& name, const std::string& description, const std::string& version,
                     const std::string& footer);
  ~CommandLineProgram();
  CommandLine root();

  struct Outcome {
    enum Kind { understood, print, misused } kind = understood;
    std::string text;   ///< print: text for stdout (help, version); misused: what is wrong, one sentence
  };
  /// Sets the variables of the options on the line and calls the functions (when_named) of the named
  /// commands.
  Outcome parse(int argc, const char* const* argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace trainctl::cmd
