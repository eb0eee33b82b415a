#include "cmd/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "runtime/base/digits.h"
#include "runtime/base/problem.h"
#include "runtime/spec/suggest.h"

namespace trainctl::cmd {

namespace {

bool is_visible(const CLI::App* app) { return !app->get_group().empty(); }

/// The deepest subcommand that the line chose.
CLI::App* chosen(CLI::App& app) {
  CLI::App* deepest = &app;
  while (!deepest->get_subcommands().empty()) deepest = deepest->get_subcommands().front();
  return deepest;
}

/// A word that no option or command takes.
Problem unknown_word(CLI::App& app) {
  const std::vector<std::string> extras = app.remaining(true);
  if (extras.empty()) return Problem::none();
  const std::string word = extras.front();
  const CommandLine command(chosen(app));
  const bool flag = word.size() > 1 && word[0] == '-';
  std::vector<std::string> known;
  if (flag) {
    known = command.option_names();
    for (const std::string& name : CommandLine(&app).option_names()) known.push_back(name);
    std::erase(known, "--help");  // similar to any short word, and never what the user meant
  } else {
    for (const CommandLine& sub : command.subcommands()) known.push_back(sub.name());
  }
  const std::string where = command.full_name();
  const std::string what = flag ? "option" : known.empty() ? "argument" : "command";
  const std::vector<std::string> near = closest(word.substr(0, word.find('=')), known, 1);
  const std::string advice =
      near.empty() ? fmt::format("see `{} --help`", where) : fmt::format("did you mean `{}`?", near[0]);
  return Problem(fmt::format("{} has no {} `{}`; {}", where, what, word, advice));
}

/// CLI11's own range check prints six decimals and names its bounds twice.
CLI::Validator number_check(double low, double high, const std::string& wanted) {
  return CLI::Validator(
      [=](std::string& text) {
        const auto value = text == "true" ? 1 : decimal_number(text);  // a flag that stands alone
        if (value && *value >= low && *value <= high) return std::string();
        return fmt::format("`{}` is not {}", text, wanted);
      },
      "");
}

/// CLI11 says "Could not convert: --max-steps = abc" and the like.
std::string in_our_words(const CLI::ParseError& error, const CommandLine& command) {
  const std::string text = error.what();
  const auto between = [&](const std::string& left, const std::string& right) {
    const size_t begin = text.find(left) + left.size(), end = right.empty() ? text.size() : text.find(right, begin);
    return text.substr(begin, end - begin);
  };
  const bool of_command = !command.subcommands().empty();
  if (dynamic_cast<const CLI::RequiredError*>(&error)) {
    if (!of_command) return fmt::format("{} is missing", between("", " is required"));
    std::vector<std::string> names;
    for (const CommandLine& sub : command.subcommands()) names.push_back(sub.name());
    return fmt::format("{} needs a command: {}", command.full_name(), fmt::join(names, ", "));
  }
  if (dynamic_cast<const CLI::ConversionError*>(&error) && text.starts_with("Could not convert: "))
    return fmt::format("{}: `{}` is not a number of the right kind", between("Could not convert: ", " = "), between(" = ", ""));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) && text.ends_with(" missing"))
    return fmt::format("{} needs a value", between("", ":"));
  if (dynamic_cast<const CLI::ExcludesError*>(&error))
    return fmt::format("give {} or {}, not both", between("", " excludes "), between(" excludes ", ""));
  if (dynamic_cast<const CLI::RequiresError*>(&error))
    return fmt::format("{} can only be given with {}", between("", " requires "), between(" requires ", ""));
  if (const size_t list = text.find(" not in {"); list != std::string::npos)
    return fmt::format("{} cannot be {}: use one of {}", between("", ": "), text.substr(text.find(": ") + 2, list - text.find(": ") - 2),
                       between(" not in {", "}"));
  return text;
}

template <class T>
Option add(CLI::App* app, const std::string& name, T& value, const std::string& help) {
  return Option(app->add_option(name, value, help));
}

/// Digits as they are read; what is wrong with the text, or "". CLI11 itself reads +2, " 2", 0x10, 010 as
/// eight, a number beyond 64 bits as the largest one, and nan.
template <class T>
std::string read_digits(std::string& text) {
  if constexpr (std::is_floating_point_v<T>) {
    return decimal_number(text) ? "" : fmt::format("`{}` is not a number", text);
  } else {
    const bool minus = std::is_signed_v<T> && text.starts_with('-');
    const auto digits =
        whole_number(std::string_view(text).substr(minus), uint64_t(std::numeric_limits<T>::max()));
    if (!digits)
      return fmt::format("`{}` is not a whole number{}", text, std::is_signed_v<T> ? "" : " from 0");
    text = (minus ? "-" : "") + std::to_string(*digits);
    return "";
  }
}

template <class T>
Option add_number(CLI::App* app, const std::string& name, T& value, const std::string& help) {
  CLI::Option* option = app->add_option(name, value, help);
  option->transform(CLI::Validator([](std::string& text) { return read_digits<T>(text); }, ""));
  return Option(option);
}

}  // namespace

// ---- Option -------------------------------------------------------------------------------------------

Option& Option::required(bool yes) { return option_->required(yes), *this; }
Option& Option::type_name(const std::string& name) { return option_->type_name(name), *this; }
Option& Option::range(double low, double high) {
  option_->type_name(fmt::format("{}..{}", low, high));
  option_->check(number_check(low, high, fmt::format("a number from {} to {}", low, high)));
  return *this;
}
Option& Option::positive() {
  option_->check(number_check(std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::max(), "a number above 0"));
  return *this;
}
Option& Option::one_of(const std::vector<std::string>& values) { return option_->check(CLI::IsMember(values)), *this; }
Option& Option::repeatable() { return option_->allow_extra_args(false)->take_all(), *this; }
Option& Option::excludes(const Option& other) { return option_->excludes(other.option_), *this; }
Option& Option::needs(const Option& other) { return option_->needs(other.option_), *this; }
Option& Option::hide() { return option_->group(""), *this; }
Option& Option::show_default() { return option_->capture_default_str(), *this; }

// ---- CommandLine --------------------------------------------------------------------------------------

Option CommandLine::add_option(const std::string& name, std::string& value, const std::string& help) {
  return add(app_, name, value, help);
}
Option CommandLine::add_option(const std::string& name, std::vector<std::string>& values, const std::string& help) {
  return add(app_, name, values, help);
}
Option CommandLine::add_option(const std::string& name, int& value, const std::string& help) {
  return add_number(app_, name, value, help);
}
Option CommandLine::add_option(const std::string& name, int64_t& value, const std::string& help) {
  return add_number(app_, name, value, help);
}
Option CommandLine::add_option(const std::string& name, uint64_t& value, const std::string& help) {
  return add_number(app_, name, value, help);
}
Option CommandLine::add_option(const std::string& name, double& value, const std::string& help) {
  return add_number(app_, name, value, help);
}
Option CommandLine::add_flag(const std::string& name, bool& value, const std::string& help) {
  return Option(app_->add_flag(name, value, help));
}
Option CommandLine::add_flag(const std::string& name, int64_t& value, const std::string& help) {
  CLI::Option* flag = app_->add_flag(name, value, help);
  const auto read = [](std::string& text) {
    return text == "true" ? "" : read_digits<int64_t>(text);
  };  // "true": alone
  flag->transform(CLI::Validator(read, ""));
  return Option(flag);
}
Option CommandLine::add_optional_value(const std::string& name, std::optional<std::string>& value,
                                       const std::string& help) {
  const auto take = [&value](const std::vector<std::string>& words) {
    value =
        words.empty() || words[0] == "true" ? "" : words[0];  // CLI11's value of an option that stands alone
    return true;
  };
  return Option(app_->add_option(name, take, help)->expected(0, 1));
}
Option CommandLine::get_option(const std::string& name) { return Option(app_->get_option(name)); }

CommandLine CommandLine::add_subcommand(const std::string& name, const std::string& help) {
  return CommandLine(app_->add_subcommand(name, help));
}
void CommandLine::require_subcommand() { app_->require_subcommand(1); }
void CommandLine::hide() { app_->group(""); }
void CommandLine::when_named(std::function<void()> call) { app_->callback(std::move(call)); }

std::string CommandLine::name() const { return app_->get_name(); }
std::string CommandLine::full_name() const {
  CLI::App* parent = app_->get_parent();
  return parent ? CommandLine(parent).full_name() + " " + name() : name();
}
std::string CommandLine::description() const { return app_->get_description(); }
std::string CommandLine::help() const {
  CLI::App* parent = app_->get_parent();
  return app_->help(parent ? CommandLine(parent).full_name() : "");
}
std::vector<std::string> CommandLine::option_names() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options())
    for (const std::string& name : option->get_lnames())
      if (!option->get_group().empty()) names.push_back("--" + name);
  return names;
}
std::vector<OptionText> CommandLine::options() const {
  std::vector<OptionText> all;
  for (const CLI::Option* option : app_->get_options()) {
    if (option->get_group().empty()) continue;
    OptionText text{.text = option->get_description(),
                    .is_positional = option->get_positional(),
                    .is_required = option->get_required()};
    if (text.is_positional) {
      text.names = option->get_name(true, false);
    } else {
      for (const std::string& name : option->get_snames())
        text.names += (text.names.empty() ? "-" : ", -") + name;
      for (const std::string& name : option->get_lnames())
        text.names += (text.names.empty() ? "--" : ", --") + name;
    }
    // CLI11 writes a value as "WHEN:{auto,always}".
    const std::string value = option->get_type_name();
    const size_t brace = value.find('{');
    if (option->get_items_expected_max() > 0 && !text.is_positional)
      text.value = value.substr(0, value.find(':'));
    if (brace != std::string::npos && value.back() == '}')
      for (size_t at = brace + 1, end; at < value.size(); at = end + 1) {
        end = value.find_first_of(",}", at);
        text.choices.push_back(value.substr(at, end - at));
      }
    all.push_back(std::move(text));
  }
  std::stable_partition(all.begin(), all.end(), [](const OptionText& o) { return o.is_positional; });
  return all;
}
std::vector<CommandLine> CommandLine::subcommands() const {
  std::vector<CommandLine> all;
  for (CLI::App* sub : app_->get_subcommands(std::function<bool(CLI::App*)>(is_visible))) all.emplace_back(sub);
  return all;
}

// ---- CommandLineProgram -------------------------------------------------------------------------------

CommandLineProgram::CommandLineProgram(const std::string& name, const std::string& description,
                                       const std::string& version, const std::string& footer)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->require_subcommand(1);
  app_->fallthrough();
  app_->set_help_flag("-h,--help", "show this help");
  app_->set_version_flag("--version", version);
  app_->footer(footer);   // before the commands are added, which inherit it
}
CommandLineProgram::~CommandLineProgram() = default;
CommandLine CommandLineProgram::root() { return CommandLine(app_.get()); }

// CLI11 reports help and version as errors, too, and has exit codes of its own above 100.
CommandLineProgram::Outcome CommandLineProgram::parse(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
    return {};
  } catch (const CLI::CallForVersion& version) {
    return {Outcome::print, std::string(version.what()) + "\n"};
  } catch (const CLI::CallForHelp&) {
    return {Outcome::print, CommandLine(chosen(*app_)).help()};
  } catch (const CLI::ParseError& error) {
    if (const Problem unknown = unknown_word(*app_); unknown.exists())
      return {Outcome::misused, unknown.text()};
    const CommandLine command(chosen(*app_));
    return {Outcome::misused, fmt::format("{}; see `{} --help`", in_our_words(error, command), command.full_name())};
  }
}

}  // namespace trainctl::cmd
