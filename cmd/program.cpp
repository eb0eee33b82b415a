// The program around the commands: global flags, and the one place where outcomes become exit statuses.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cmd/commands.h"
#include "cmd/output.h"
#include "cmd/standard_streams.h"
#include "runtime/base/error.h"
#include "runtime/base/process_memory.h"

namespace trainctl::cmd {

namespace {

/// Whether this stream gets colours: on request, or on a terminal without NO_COLOR (https://no-color.org).
bool wants_color(const std::string& choice, int stream) {
  if (choice != "auto") return choice == "always";
  const char* no_color = std::getenv("NO_COLOR");
  return (!no_color || !*no_color) && isatty(stream);
}

void add_global_flags(CommandLine app, Context& context, std::string& color) {
  app.add_flag("-q,--quiet", context.only_errors, "print only errors");
  app.add_flag("--json", context.json, "print the result as JSON on stdout");
  app.add_option("--color", color, "when the output has colours")
      .one_of({"auto", "always", "never"})
      .type_name("WHEN");
}

/// Reports the error on stderr, with --json also on stdout, and returns the exit status.
int report_failure(const Context& context, ErrorCode code, const std::string& message) {
  if (context.json) print_error_json(code, message);
  const bool color = context.color_err;
  fmt::print(stderr, "{}{}:{} {}\n", color ? "\x1b[1;31m" : "",
             code == ErrorCode::kInternal ? "internal error" : "error", color ? "\x1b[0m" : "", message);
  return exit_status(code);
}

int run_command_line(int argc, const char* const* argv) {
  Context context;
  context.program = argc > 0 ? argv[0] : "trainctl";
  context.arguments.assign(argv + std::min(argc, 1), argv + argc);
  std::string color = "auto";
  CommandLineProgram program("trainctl",
                             "Pretrains transformer language models on the CPU cores or NVIDIA GPUs of one "
                             "machine or many, and continues after failures.",
                             std::string("trainctl ") + TRAINCTL_VERSION,
                             "Every command takes -q, --json and --color WHEN. More: `trainctl help job`, "
                             "`trainctl help runs`, `trainctl help exit-codes`; fields of a job: `trainctl "
                             "explain`.");
  CommandLine root = program.root();
  add_global_flags(root, context, color);
  for (const Command& command : commands()) command.add(root, context);
  add_help(root, context);
  if (argc <= 1) {
    fmt::print("{}", root.help());
    return exit_status(ErrorCode::kUsage);
  }
  const CommandLineProgram::Outcome line = program.parse(argc, argv);
  // A line that is not understood sets no variable.
  for (int i = 1; i < argc; ++i) context.json |= std::string_view(argv[i]) == "--json";
  context.color_out = wants_color(color, STDOUT_FILENO);
  context.color_err = wants_color(color, STDERR_FILENO);
  try {
    switch (line.kind) {
      case CommandLineProgram::Outcome::print: return print_page(line.text, context.json), kExitDone;
      case CommandLineProgram::Outcome::misused: return report_failure(context, ErrorCode::kUsage, line.text);
      case CommandLineProgram::Outcome::understood: break;
    }
    ENSURE(context.action, "no action for this command");
    return context.action();
  } catch (const Error& error) {
    return report_failure(context, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report_failure(context, ErrorCode::kPlan, out_of_memory_text());
  } catch (const std::exception& error) {
    if (std::ferror(stdout)) return kExitDone;  // reported by run_program
    return report_failure(context, ErrorCode::kInternal, error.what());
  }
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  if (argc > 2 && std::string_view(argv[1]) == "remote") return remote_shell(argc, argv);
  const int status = run_command_line(argc, argv);
  // Scripts read stdout: a result that could not be written is a failure. A reader that closed the pipe is
  // not.
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && !std::ferror(stdout);
  if (written || errno == EPIPE || has_no_reader(STDOUT_FILENO) || status != kExitDone) return status;
  fmt::print(stderr, "error: the result cannot be written to stdout: {}\n", errno ? std::strerror(errno) : "a write failed");
  return exit_status(ErrorCode::kIo);
}

}  // namespace trainctl::cmd
