// The program around the commands: global flags, mistyped words, and the one place where outcomes become
// exit statuses.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "cmd/commands.h"
#include "runtime/base/error.h"
#include "runtime/spec/suggest.h"

#ifndef TRAINCTL_VERSION
#define TRAINCTL_VERSION "0.1.0"
#endif

namespace trainctl::cmd {

namespace {

constexpr const char* kExitCodes = R"(exit codes of trainctl

   0  done, valid, identical
   1  internal error: a bug; please report it                                   retry: no
   2  command line not understood                                               retry: no
   3  job spec invalid                                                          retry: no
   4  plan infeasible: does not fit, does not divide, not enough devices        retry: no
   5  preflight failed: driver, file system, bad device                         retry: after fixing it
   6  data missing, corrupt, of the wrong vocabulary, or changed                retry: no
   7  checkpoint missing, corrupt or incompatible                               retry: no
   8  training diverged                                                         retry: no
   9  hang: watchdog expired and restarts are exhausted                         retry: maybe
  10  a rank crashed and restarts are exhausted                                 retry: maybe
  11  hardware fault; the message names the nodes                               retry: on other nodes
  12  launching failed: mpirun, ssh, sbatch                                     retry: maybe
  20  differences or warnings found (where a command was asked to look)
  75  stopped on request, time limit or preemption; checkpoint saved            retry: yes, `trainctl resume`
 128+n  killed by signal n

In a Slurm script:  rc=$?; [ $rc -eq 75 ] && scontrol requeue $SLURM_JOB_ID; exit $rc
)";

/// Colours are wanted on this stream: asked for, or a terminal and nobody objected (https://no-color.org).
bool wants_color(const std::string& choice, int stream) {
  if (choice != "auto") return choice == "always";
  const char* no_color = std::getenv("NO_COLOR");
  return (!no_color || !*no_color) && isatty(stream);
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// The deepest subcommand that the line chose.
CLI::App* chosen(CLI::App& app) {
  CLI::App* deepest = &app;
  while (!deepest->get_subcommands().empty()) deepest = deepest->get_subcommands().front();
  return deepest;
}

/// "trainctl data tokenize"
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent ? full_name(*parent) + " " + command.get_name() : command.get_name();
}

std::string help_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return command.help(parent ? full_name(*parent) : "");
}

/// One sentence on a word that nobody expected, "" if every word was.
std::string unknown_word(CLI::App& app) {
  const std::vector<std::string> extras = app.remaining(true);
  if (extras.empty()) return "";
  const std::string word = extras.front();
  CLI::App* command = chosen(app);
  const bool flag = word.size() > 1 && word[0] == '-';
  std::vector<std::string> known;
  if (flag) {
    known = option_names(*command);
    for (const std::string& name : option_names(app)) known.push_back(name);
  } else {
    for (const CLI::App* sub :
         command->get_subcommands([](const CLI::App* s) { return !s->get_group().empty(); }))
      known.push_back(sub->get_name());
  }
  const std::string where = full_name(*command);
  const std::string what = flag ? "option" : known.empty() ? "argument" : "command";
  const std::vector<std::string> near = closest(word.substr(0, word.find('=')), known, 1);
  return fmt::format(
      "{} has no {} `{}`; {}", where, what, word,
      near.empty() ? fmt::format("see `{} --help`", where) : fmt::format("did you mean `{}`?", near[0]));
}

void add_help(CLI::App& app, Context& context) {
  auto topic = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("help", "help on a command, or on exit-codes");
  command->add_option("TOPIC", *topic, "a command, or exit-codes");
  const auto named = [&app](const std::string& name) {
    return app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == name; });
  };
  when_chosen(command, context, [topic, named, &app] {
    if (topic->empty()) {
      fmt::print("{}", app.help());
    } else if (*topic == "exit-codes") {
      fmt::print("{}", kExitCodes);
    } else if (const auto found = named(*topic); !found.empty()) {
      fmt::print("{}", help_of(*found.front()));
    } else {
      std::vector<std::string> topics{"exit-codes"};
      for (const Command& known : commands()) topics.push_back(known.name);
      const std::vector<std::string> near = closest(*topic, topics, 1);
      throw Error(ErrorCode::kUsage,
                  fmt::format("there is no help on `{}`; {}", *topic,
                              near.empty() ? std::string("try `trainctl --help`")
                                           : fmt::format("did you mean `{}`?", near[0])));
    }
    return kExitDone;
  });
}

void add_global_flags(CLI::App& app, Context& context, std::string& color, int& verbose, bool& quiet) {
  app.add_flag("-v,--verbose", verbose, "say more; -vv: say everything");
  app.add_flag("-q,--quiet", quiet, "say only what is wrong");
  app.add_flag("--json", context.json, "print the result as JSON on stdout");
  app.add_option("--color", color, "auto, always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("WHEN");
  app.set_version_flag("--version", std::string("trainctl ") + TRAINCTL_VERSION);
}

/// Says what is wrong on stderr (or as JSON on stdout) and gives the exit status.
int report(const Context& context, ErrorCode code, const std::string& message) {
  if (context.json) {
    std::string escaped;
    for (const char c : message) {
      if (c == '"' || c == '\\') escaped += '\\';
      if (static_cast<unsigned char>(c) < 0x20)
        escaped += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      else
        escaped += c;
    }
    fmt::print("{{\"error\": \"{}\", \"message\": \"{}\", \"exit\": {}}}\n", name_of(code), escaped,
               exit_status(code));
  }
  const bool color = context.color_err;
  fmt::print(stderr, "{}{}:{} {}\n", color ? "\x1b[1;31m" : "",
             code == ErrorCode::kInternal ? "internal error" : "error", color ? "\x1b[0m" : "", message);
  return exit_status(code);
}

/// CLI11 reports help and version as errors, too, and has exit codes of its own above 100.
int report_parse_error(CLI::App& app, Context& context, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::CallForVersion*>(&error)) {
    fmt::print("{}\n", error.what());
    return kExitDone;
  }
  if (dynamic_cast<const CLI::CallForHelp*>(&error) || dynamic_cast<const CLI::CallForAllHelp*>(&error)) {
    fmt::print("{}", help_of(*chosen(app)));
    return kExitDone;
  }
  const std::string unknown = unknown_word(app);
  if (!unknown.empty()) return report(context, ErrorCode::kUsage, unknown);
  return report(context, ErrorCode::kUsage,
                fmt::format("{}; see `{} --help`", error.what(), full_name(*chosen(app))));
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  Context context;
  context.program = argc > 0 ? argv[0] : "trainctl";
  context.arguments.assign(argv + std::min(argc, 1), argv + argc);
  std::string color = "auto";
  int verbose = 0;
  bool quiet = false;
  CLI::App app(
      "Pretrains transformer language models on one laptop or many nodes, and survives what breaks.",
      "trainctl");
  app.require_subcommand(1);
  app.fallthrough();
  add_global_flags(app, context, color, verbose, quiet);
  app.footer(  // before the commands, which show it too
      "Everywhere: -v -q --json --color WHEN. Exit codes: `trainctl help exit-codes`. Job spec: `trainctl explain`.");
  for (const Command& command : commands()) command.add(app, context);
  add_help(app, context);
  const auto apply_flags = [&] {
    context.verbosity = quiet ? -1 : verbose;
    context.color_out = wants_color(color, STDOUT_FILENO);
    context.color_err = wants_color(color, STDERR_FILENO);
  };
  try {
    if (argc <= 1) {
      fmt::print("{}", app.help());
      return exit_status(ErrorCode::kUsage);
    }
    app.parse(argc, argv);
    apply_flags();
    ENSURE(context.action, "no action for this command");
    return context.action();
  } catch (const CLI::ParseError& error) {
    apply_flags();
    return report_parse_error(app, context, error);
  } catch (const Error& error) {
    return report(context, error.code(), error.what());
  } catch (const std::exception& error) {
    return report(context, ErrorCode::kInternal, error.what());
  }
}

}  // namespace trainctl::cmd
