// The program around the commands: global flags, mistyped words, and the one place where outcomes become
// exit statuses.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cmd/commands.h"
#include "runtime/base/error.h"
#include "runtime/base/process_memory.h"
#include "runtime/spec/suggest.h"


namespace trainctl::cmd {

namespace {

constexpr const char* kExitCodes = R"(exit codes of trainctl

   0  done, valid, identical
   1  internal error: a bug; please report it                                   retry: no
   2  command line not understood                                               retry: no
   3  job spec invalid                                                          retry: no
   4  plan infeasible: does not fit, does not divide, not enough devices        retry: no
   5  preflight or a file operation failed: driver, file system, bad device     retry: after fixing it
   6  data missing, corrupt, of the wrong vocabulary, or changed                retry: no
   7  checkpoint missing, corrupt or incompatible                               retry: no
   8  training diverged                                                         retry: no
   9  hang: watchdog expired and restarts are exhausted                         retry: maybe
  10  a rank crashed and restarts are exhausted                                 retry: maybe
  11  hardware fault: a GPU failed or fell off the bus                          retry: after fixing it
  12  launching failed: mpirun                                                  retry: maybe
  20  differences or warnings found (where a command was asked to look)
  75  stopped on request, time limit or preemption; checkpoint saved            retry: yes, `trainctl resume`
 128+n  killed by signal n

In a Slurm script:  rc=$?; [ $rc -eq 75 ] && scontrol requeue $SLURM_JOB_ID; exit $rc
)";

}  // namespace

const char* exit_codes() { return kExitCodes; }

namespace {

/// Whether this stream gets colours: on request, or on a terminal without NO_COLOR (https://no-color.org).
bool wants_color(const std::string& choice, int stream) {
  if (choice != "auto") return choice == "always";
  const char* no_color = std::getenv("NO_COLOR");
  return (!no_color || !*no_color) && isatty(stream);
}

void add_help(CommandLine app, Context& context) {
  auto topic = std::make_shared<std::string>();
  CommandLine command = app.add_subcommand("help", "help on a command, or on exit-codes");
  command.add_option("TOPIC", *topic, "a command, or exit-codes");
  when_chosen(command, context, [topic, app] {
    if (topic->empty()) {
      fmt::print("{}", app.help());
      return kExitDone;
    }
    if (*topic == "exit-codes") {
      fmt::print("{}", kExitCodes);
      return kExitDone;
    }
    std::vector<std::string> topics{"exit-codes"};
    for (const CommandLine& sub : app.subcommands()) {
      if (sub.name() == *topic) {
        fmt::print("{}", sub.help());
        return kExitDone;
      }
      topics.push_back(sub.name());
    }
    const std::vector<std::string> near = closest(*topic, topics, 1);
    throw Error(ErrorCode::kUsage, fmt::format("there is no help on `{}`; {}", *topic,
                                               near.empty() ? std::string("try `trainctl --help`")
                                                            : fmt::format("did you mean `{}`?", near[0])));
  });
}

void add_global_flags(CommandLine app, Context& context, std::string& color) {
  app.add_flag("-q,--quiet", context.only_errors, "print only what is wrong");
  app.add_flag("--json", context.json, "print the result as JSON on stdout");
  app.add_option("--color", color, "auto, always or never").one_of({"auto", "always", "never"}).type_name("WHEN");
}

/// Reports the error on stderr (or as JSON on stdout) and returns the exit status.
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

int run_command_line(int argc, const char* const* argv) {
  Context context;
  context.program = argc > 0 ? argv[0] : "trainctl";
  context.arguments.assign(argv + std::min(argc, 1), argv + argc);
  std::string color = "auto";
  CommandLineProgram program("trainctl",
                             "Pretrains transformer language models on the CPU cores or NVIDIA GPUs of one "
                             "machine or many, and survives what breaks.",
                             std::string("trainctl ") + TRAINCTL_VERSION,
                             "Everywhere: -q --json --color WHEN. Exit codes: `trainctl help exit-codes`. "
                             "Job spec: `trainctl explain`.");
  CommandLine root = program.root();
  add_global_flags(root, context, color);
  for (const Command& command : commands()) command.add(root, context);
  add_help(root, context);
  if (argc <= 1) {
    fmt::print("{}", root.help());
    return exit_status(ErrorCode::kUsage);
  }
  const CommandLineProgram::Outcome line = program.parse(argc, argv);
  context.color_out = wants_color(color, STDOUT_FILENO);
  context.color_err = wants_color(color, STDERR_FILENO);
  try {
    switch (line.kind) {
      case CommandLineProgram::Outcome::print: return fmt::print("{}", line.text), kExitDone;
      case CommandLineProgram::Outcome::misused: return report(context, ErrorCode::kUsage, line.text);
      case CommandLineProgram::Outcome::understood: break;
    }
    ENSURE(context.action, "no action for this command");
    return context.action();
  } catch (const Error& error) {
    return report(context, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(context, ErrorCode::kPlan, out_of_memory_text());
  } catch (const std::exception& error) {
    if (std::ferror(stdout)) return kExitDone;  // reported by run_program
    return report(context, ErrorCode::kInternal, error.what());
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
  if (written || errno == EPIPE || status != kExitDone) return status;
  fmt::print(stderr, "error: the result cannot be written to stdout: {}\n", errno ? std::strerror(errno) : "a write failed");
  return exit_status(ErrorCode::kIo);
}

}  // namespace trainctl::cmd
