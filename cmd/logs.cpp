// trainctl logs: the logs of a run's ranks, its launcher and its nodes, merged and with their source in
// front of each line.
#include <regex.h>
#include <unistd.h>

#include <deque>
#include <memory>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "cmd/watch.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/observe/terminal/run_logs.h"
#include "runtime/observe/text_table.h"

namespace trainctl::cmd {
namespace {

using terminal::LogLine;

struct LogsOptions {
  RunArguments run;
  std::string ranks, pattern, failure;
  bool follow = false;
  int tail = 0;
};

/// New lines are looked for so often: files may lie on another machine, which announces nothing. Of thousands of
/// files less often.
constexpr double kLogsLookS = 0.25, kLookOfFileS = 0.0005;

/// An extended regular expression, as grep -E takes it.
class Pattern {
 public:
  explicit Pattern(const std::string& text) : any_(text.empty()) {
    if (any_) return;
    const int error = ::regcomp(&regex_, text.c_str(), REG_EXTENDED | REG_NOSUB);
    if (error == 0) return;
    char reason[256];
    ::regerror(error, &regex_, reason, sizeof reason);
    throw Error(ErrorCode::kUsage,
                fmt::format("--grep: `{}` is not an extended regular expression: {}", text, reason));
  }
  ~Pattern() {
    if (!any_) ::regfree(&regex_);
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  bool matches(const std::string& line) const {
    return any_ || ::regexec(&regex_, line.c_str(), 0, nullptr, 0) == 0;
  }

 private:
  bool any_;
  regex_t regex_{};
};

/// Prints lines with their sources in one column.
class LinePrinter {
 public:
  explicit LinePrinter(const Context& context) : json_(context.json), color_(context.color_out) {}
  void print(const std::deque<LogLine>& lines) {
    for (const LogLine& line : lines) width_ = std::max(width_, columns_of(source_text(line)));
    for (const LogLine& line : lines) print(line);
    std::fflush(stdout);
  }

 private:
  static std::string source_text(const LogLine& line) {
    return line.failure > 0 ? fmt::format("{} (failure {})", line.source, line.failure) : line.source;
  }
  void print(const LogLine& line) {
    if (json_) {
      OrderedJson j{{"source", line.source}, {"text", line.text}};
      if (line.rank >= 0) j["rank"] = line.rank;
      if (line.failure > 0) j["failure"] = line.failure;
      if (line.unix_s > 0) j["t"] = line.unix_s;
      return print_json("log", j, -1);
    }
    static const char* const kColors[] = {"\033[36m", "\033[33m", "\033[32m", "\033[35m", "\033[34m"};
    const std::string source = padded_to(source_text(line), width_);
    if (!color_) return fmt::print("{} | {}\n", source, line.text);
    const char* color = line.source == "failure" ? "\033[1;31m" : kColors[size_t(line.rank + 1) % 5];
    fmt::print("{}{} |\033[0m {}\n", color, source, line.text);
  }
  bool json_, color_;
  int width_ = 0;
};

terminal::LogSelection selection_of(const LogsOptions& options, const RunDirectory& run) {
  terminal::LogSelection selection;
  if (!options.ranks.empty())
    if (const Problem problem = terminal::parse_ranks(options.ranks, selection.ranks); problem.exists())
      throw Error(ErrorCode::kUsage, "--rank: " + problem.text());
  if (const int ranks = terminal::ranks_of(real_file_system(), run);
      ranks > 0 && !selection.ranks.empty() && terminal::last_of(selection.ranks) >= ranks)
    throw Error(ErrorCode::kUsage,
                fmt::format("--rank: {} has {}", folder_name(run),
                            ranks == 1 ? "only rank 0" : fmt::format("the ranks 0 to {}", ranks - 1)));
  if (options.failure.empty()) return selection;
  const int last = terminal::last_failure(real_file_system(), run);
  if (last == 0) throw Error(ErrorCode::kUsage, fmt::format("{} has had no failure", folder_name(run)));
  terminal::RankRanges number;
  if (options.failure == "last") {
    selection.failure = last;
  } else if (terminal::parse_ranks(options.failure, number).is_none() && number.size() == 1 &&
             number[0].first == number[0].second && number[0].first >= 1 && number[0].first <= last) {
    selection.failure = number[0].first;
  } else {
    throw Error(ErrorCode::kUsage,
                fmt::format("--failure: `{}` is none of the run's; write a number from 1 to {}, or last",
                            options.failure, last));
  }
  return selection;
}

bool is_over(const RunDirectory& run, double& left_since_s) {
  const double now_s = real_clock().monotonic_s();
  if (supervisor_state(real_file_system(), run) != SupervisorState::none) left_since_s = now_s;
  const auto status = try_read_status(real_file_system(), run.status()).status;
  return (status && status->ended() && left_since_s < now_s) || now_s - left_since_s > kLeftS;
}

int logs(const LogsOptions& options, const Context& context) {
  const FoundRun found = find_run(options.run);
  const Pattern pattern(options.pattern);
  if (const TriedStatus tried = try_read_status(real_file_system(), found.run.status());
      tried.problem.exists())
    fmt::print(stderr, "warning: {}\n", tried.problem.text());
  terminal::RunLogs reader(real_file_system(), found.run, selection_of(options, found.run));
  LinePrinter printer(context);
  bool any = false;
  const auto print_new = [&](bool all, size_t most) {
    std::deque<LogLine> lines;
    for (LogLine& line : reader.read(all)) {
      if (!pattern.matches(line.text)) continue;
      lines.push_back(std::move(line));
      if (most > 0 && lines.size() > most) lines.pop_front();
    }
    any |= !lines.empty();
    printer.print(lines);
  };
  if (!options.follow) {
    print_new(true, size_t(options.tail));
    if (!any && !context.quiet())
      fmt::print(stderr, "no line{}{}\n", options.pattern.empty() ? "" : " matches " + options.pattern,
                 options.ranks.empty() ? "" : " of ranks " + options.ranks);
    return kExitDone;
  }
  print_new(false, size_t(options.tail));
  double left_since_s = real_clock().monotonic_s();
  repeat(std::max(kLogsLookS, kLookOfFileS * double(reader.files())), [&] {
    const bool over = is_over(found.run, left_since_s);
    print_new(over, 0);
    return !over && !std::ferror(stdout);
  });
  return kExitDone;
}

}  // namespace

void add_logs(CommandLine& app, Context& context) {
  auto options = std::make_shared<LogsOptions>();
  CommandLine command =
      app.add_subcommand("logs", "print the logs of a run's ranks, launcher and nodes, merged; also those "
                                 "of failures");
  add_run_arguments(command, options->run, false);
  command.add_option("-r,--rank", options->ranks,
      "only these ranks, for example 0,3-7").type_name("LIST");
  command.add_option("-g,--grep", options->pattern, "only lines that match this extended regular expression")
      .type_name("PATTERN");
  command.add_option("-n,--tail", options->tail,
      "only the last N lines").range(1, 1 << 30).type_name("N");
  Option follow = command.add_flag("-f,--follow", options->follow,
                                   "print new lines until the run ends; Ctrl-C quits");
  command
      .add_option("--failure", options->failure, "the logs kept with this failure: a number from 1, or "
                                                 "`last`")
      .type_name("N")
      .excludes(follow);
  when_chosen(command, context, [options, &context] { return logs(*options, context); });
}

}  // namespace trainctl::cmd
