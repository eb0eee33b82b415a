// trainctl help: a command's help, the pages about jobs and runs, and the table of exit codes.
#include <memory>
#include <optional>

#include "cmd/commands.h"
#include "cmd/help_pages.h"
#include "cmd/output.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/spec/suggest.h"
#include "runtime/supervise/decide/recovery.h"

namespace trainctl::cmd {
namespace {

struct ExitCode {
  int code;  ///< 128: 128 and the number of a signal
  const char *meaning, *retry;
};

constexpr ExitCode kExitCodes[] = {
    {0, "done, valid, identical", ""},
    {1, "internal error: a bug; please report it", "no"},
    {2, "command line not understood", "no"},
    {3, "job spec invalid", "no"},
    {4, "plan infeasible: does not fit, does not divide, not enough devices", "no"},
    {5, "preflight or a file operation failed: driver, file system, bad device", "after fixing it"},
    {6, "data missing, corrupt, of the wrong vocabulary, or changed", "no"},
    {7, "checkpoint missing, corrupt or incompatible", "no"},
    {8, "training diverged", "no"},
    {9, "hang: watchdog expired and restarts are exhausted", "maybe"},
    {10, "a rank crashed and restarts are exhausted", "maybe"},
    {11, "hardware fault: a GPU failed or fell off the bus", "after fixing it"},
    {12, "launching failed: mpirun", "maybe"},
    {20, "differences or warnings found (where a command was asked to look)", ""},
    {75, "stopped on request, time limit or preemption; what was done is saved", "yes, `trainctl resume`"},
    {kStoppedAtOnce, "stopped at once: SIGQUIT, second Ctrl-C, `stop --now`; not saved",
     "yes, `trainctl resume`"},
    {128, "killed by signal n", ""},
};

constexpr const char* kInSlurm =
    "In a Slurm script:  rc=$?; [ $rc -eq 75 ] && scontrol requeue $SLURM_JOB_ID; exit $rc\n";

void print_exit_codes(const Context& context) {
  if (!context.json) {
    fmt::print("{}", exit_codes());
    return;
  }
  OrderedJson codes = OrderedJson::array();
  for (const ExitCode& row : kExitCodes)
    codes.push_back({{"code", row.code}, {"meaning", row.meaning}, {"retry", row.retry}});
  print_json("exit-codes", {{"codes", std::move(codes)}});
}

/// The help of a command, a page, or the exit codes.
void help(const CommandLine& app, const std::string& topic, const Context& context) {
  if (topic.empty()) return print_page(app.help(), context.json);
  if (topic == "exit-codes") return print_exit_codes(context);
  std::vector<std::string> topics{"exit-codes"};
  for (const HelpPage& page : help_pages()) {
    if (page.topic == topic) return print_page(page.text, context.json);
    topics.push_back(page.topic);
  }
  for (const CommandLine& sub : app.subcommands()) {
    if (sub.name() == topic) return print_page(sub.help(), context.json);
    topics.push_back(sub.name());
  }
  const std::vector<std::string> near = closest(topic, topics, 1);
  throw Error(ErrorCode::kUsage, fmt::format("there is no help on `{}`; {}", topic,
                                             near.empty() ? std::string("try `trainctl --help`")
                                                          : fmt::format("did you mean `{}`?", near[0])));
}

}  // namespace

std::string exit_codes() {
  std::string text = "exit codes of trainctl\n\n";
  for (const ExitCode& row : kExitCodes) {
    const std::string code = row.code == 128 ? "128+n" : std::to_string(row.code);
    const std::string line = fmt::format("{:>{}}  {}", code, row.code == 128 ? 6 : 4, row.meaning);
    text += *row.retry ? fmt::format("{:<80} retry: {}\n", line, row.retry) : line + "\n";
  }
  return text + "\n" + kInSlurm;
}

void add_help(CommandLine& app, Context& context) {
  auto topic = std::make_shared<std::string>();
  CommandLine command = app.add_subcommand("help", "help on a command, on job, runs or exit-codes");
  command.add_option("TOPIC", *topic, "a command, job, runs or exit-codes");
  when_chosen(command, context, [topic, app, &context] {
    help(app, *topic, context);
    return kExitDone;
  });
}

}  // namespace trainctl::cmd
