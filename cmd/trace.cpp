// trainctl trace: records what the ranks of a running run do in its next steps, and makes one file of it.
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/error.h"
#include "runtime/base/signals.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/observe/trace/merge.h"
#include "runtime/observe/trace/rank_choice.h"
#include "runtime/observe/trace/trace_file.h"
#include "runtime/run/record/journal.h"
#include "runtime/run/record/known_status.h"
#include "runtime/run/record/trace_request.h"

namespace trainctl::cmd {
namespace {

struct TraceOptions {
  RunArguments run;
  int64_t steps = 3;
  std::string ranks, out;
  double timeout_s = 600;
};

/// A supervisor looks for requests twice a second; a server of files may show them late.
constexpr double kTakenS = 20;
/// A server of files may show a rank's file so much later than the rank wrote it.
constexpr double kFilesS = 10;
constexpr double kTraceSayEveryS = 5, kLookEveryS = 0.05;

/// The signals that end the command, as long as this lives: it then leaves nothing behind.
class Interrupt {
 public:
  Interrupt() {
    const sigset_t set = heeded({SIGINT, SIGTERM, SIGHUP});
    ::sigprocmask(SIG_BLOCK, &set, &before_);
    fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~Interrupt() {
    ::close(fd_);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  /// The signal that has come; 0: none.
  int signal() {
    signalfd_siginfo info;
    if (::read(fd_, &info, sizeof info) == ssize_t(sizeof info)) signal_ = int(info.ssi_signo);
    return signal_;
  }

 private:
  sigset_t before_;
  int fd_ = -1, signal_ = 0;
};

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorCode::kUsage, sentence); }

/// The run, and what is known of it when the command begins.
struct Target {
  RunDirectory run;
  std::string id, name;  ///< name: for commands
  SupervisorPlace supervisor;
  parallel::MeshShape mesh;
  int64_t last_step = 0;
};

[[noreturn]] void not_running(FileSystem& fs, const RunDirectory& run, const std::string& id) {
  const auto known = status_of_run(fs, run);
  const std::string next = known && known->status.ended() && !known->status.advice.empty()
                               ? known->status.advice
                               : "trainctl status " + command_name(run);
  refuse(fmt::format(
      "run {} is not running{}, and only steps that are still to come can be traced; next: {}", id,
      known && known->status.ended() ? fmt::format(": it is {}", word_of(known->status.state)) : "", next));
}

/// The mesh of the attempt that runs, which may be narrower than the job's.
Target target_of(FileSystem& fs, const RunArguments& arguments) {
  const FoundRun found = find_run(arguments);
  const auto identity = read_identity(fs, found.run);
  Target target{
      .run = found.run, .id = identity ? identity->run_id : found.run.path, .name = command_name(found.run)};
  const auto place = supervisor_place(fs, found.run);
  if (!place) not_running(fs, found.run, target.id);
  target.supervisor = *place;
  if (supervisor_state(fs, found.run) == SupervisorState::stopped)
    refuse(fmt::format(
        "the supervisor of run {} (pid {}) is stopped and answers no request; let it go on with "
        "kill -CONT {}",
        target.id, place->pid, place->pid));
  if (!fs.exists(found.run.attempt()))
    refuse(fmt::format("run {} has not started its ranks yet; see `trainctl status {}`", target.id,
                       target.name));
  const AttemptFile attempt = AttemptFile::from_json(fs.read_text(found.run.attempt()));
  const ParsedJob job = parse_job({.text = fs.read_text(found.run.job()),
                                   .file = found.run.job(),
                                   .overrides = attempt.overrides,
                                   .environment = {}});
  if (!job.ok())
    throw Error(ErrorCode::kSpec, "the run's job.json does not parse: " + render(job.diagnostics, false));
  target.mesh = job.job.mesh();
  target.last_step = attempt.max_steps > 0 ? std::min(attempt.max_steps, job.job.schedule.total_steps)
                                           : job.job.schedule.total_steps;
  return target;
}

/// "step 12 of 20", or what the run does instead of steps.
std::string state_text(FileSystem& fs, const Target& target) {
  const auto status = try_read_status(fs, target.run.status()).status;
  if (!status) return "it has not written its state yet";
  if (status->state == RunState::running) return fmt::format("step {} of {}", status->step, target.last_step);
  return fmt::format("it is {}{}", word_of(status->state),
                     status->reason.empty() ? "" : ": " + status->reason);
}

/// Waits for the answer to a request.
class TraceWait {
 public:
  TraceWait(FileSystem& fs, const Target& target, const TraceOptions& options, const Context& context,
            size_t ranks)
      : fs_(fs), target_(target), options_(options), context_(context), ranks_(ranks) {}

  /// Error if there will be none; after a signal nullopt.
  std::optional<TraceAnswer> run(const TraceInquiry& inquiry, Interrupt& interrupt) {
    for (; interrupt.signal() == 0; clock_.sleep_s(kLookEveryS)) {
      const bool goes_on = supervisor_goes_on();  // before its last answer is read
      answer_ = inquiry.answer();
      if (answer_ && answer_->state == TraceState::complete) return answer_;
      if (answer_ && answer_->state == TraceState::failed) fail("was not traced: " + answer_->reason);
      if (!goes_on) fail("was not traced: its supervisor has ended or was replaced");
      check_deadlines();
      say();
    }
    return std::nullopt;
  }

 private:
  double waited_s() const { return clock_.monotonic_s() - began_s_; }

  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorCode::kWorker,
                fmt::format("run {} {}; see `trainctl status {}`", target_.id, why, target_.name));
  }

  bool supervisor_goes_on() const {
    const auto now = supervisor_place(fs_, target_.run);
    // Without a pid its line is being written.
    return now &&
           (now->pid == 0 || (now->pid == target_.supervisor.pid && now->host == target_.supervisor.host));
  }

  void check_deadlines() const {
    const double most_s = options_.timeout_s;
    if (!answer_ && waited_s() > std::min(kTakenS, most_s))
      throw Error(
          ErrorCode::kHang,
          fmt::format(
              "run {} did not take the request to trace within {}: {}; try again when `trainctl status "
              "{}` shows it running",
              target_.id, short_duration(waited_s()), state_text(fs_, target_), target_.name));
    if (waited_s() > most_s)
      throw Error(
          ErrorCode::kHang,
          fmt::format(
              "run {} has not recorded {} within {} ({}; {} of {} have written theirs); wait longer with "
              "--timeout SECONDS",
              target_.id, count_of(options_.steps, "step"), short_duration(waited_s()),
              state_text(fs_, target_), answer_ ? answer_->handed_in : 0, count_of(int64_t(ranks_), "rank")));
  }

  void say() {
    if (context_.quiet() || waited_s() < said_s_ + kTraceSayEveryS) return;
    said_s_ = waited_s();
    fmt::print(stderr, "run {}: {} after {} of at most {}: {}\n", target_.id,
               answer_ ? "recording" : "the request is not taken yet", short_duration(waited_s()),
               short_duration(options_.timeout_s), state_text(fs_, target_));
  }

  FileSystem& fs_;
  Clock& clock_ = real_clock();
  const Target& target_;
  const TraceOptions& options_;
  const Context& context_;
  const size_t ranks_;
  const double began_s_ = clock_.monotonic_s();
  double said_s_ = 0;
  std::optional<TraceAnswer> answer_;
};

std::vector<Recording> read_recordings(FileSystem& fs, const std::string& folder,
                                       const std::vector<int>& ranks) {
  Clock& clock = real_clock();
  const double until_s = clock.monotonic_s() + kFilesS;
  std::vector<Recording> recordings;
  for (const int rank : ranks) {
    const std::string path = folder + "/" + recording_file_name(rank);
    while (!fs.exists(path) && clock.monotonic_s() < until_s) {
      fs.list(folder);  // asks a server of files again
      clock.sleep_s(kLookEveryS);
    }
    recordings.push_back(Recording::decode(fs.read_text(path), path));
  }
  return recordings;
}

std::string default_trace_path(const Target& target, const trace::TraceSummary& summary) {
  return fmt::format("{}/steps-{}-{}.json.gz", target.run.file("trace"), summary.first_step,
                     summary.last_step);
}

void print_summary(const trace::TraceSummary& s, const std::string& path, uint64_t bytes,
                   const Context& context) {
  for (const std::string& note : s.notes) fmt::print(stderr, "note: {}\n", note);
  if (context.json) {
    print_json_text("trace", s.to_json(path, bytes));
    return;
  }
  if (context.quiet()) return;
  const std::string steps = s.first_step == s.last_step
                                ? fmt::format("step {}", s.first_step)
                                : fmt::format("steps {} to {}", s.first_step, s.last_step);
  fmt::print("trace      {} · {}\n", path, size_text(bytes));
  fmt::print("           {} of run {} · {} · {} · {} · {}\n", steps, s.run_id,
             int(s.ranks.size()) == s.of_ranks ? count_of(s.of_ranks, "rank")
                                               : fmt::format("{} of {} ranks", s.ranks.size(), s.of_ranks),
             count_of(int64_t(s.spans), "span"), count_of(int64_t(s.flows), "message"),
             s.alignment_error_s > 0
                 ? fmt::format("clocks of nodes aligned to {:.3g} ms", s.alignment_error_s * 1e3)
                 : "one clock");
  std::string waits;
  for (const trace::PeerTime& time : s.communication)
    if (time.wait_s > 0)
      waits += fmt::format("{}{} {:.3g} ms", waits.empty() ? "" : " · ", time.peers, time.wait_s * 1e3);
  if (!waits.empty()) fmt::print("waits      {} a step and rank\n", waits);
  fmt::print(
      "open it    at https://ui.perfetto.dev (the file stays on this machine), or in chrome://tracing\n");
}

int trace_run(const TraceOptions& options, const Context& context) {
  FileSystem& fs = real_file_system();
  const Target target = target_of(fs, options.run);
  const std::vector<int> ranks = options.ranks.empty()
                                     ? trace::sampled_ranks(target.mesh)
                                     : trace::ranks_of_list(options.ranks, target.mesh.world_size());
  const auto known = try_read_status(fs, target.run.status()).status;
  if (known && known->step >= target.last_step)
    refuse(fmt::format("run {} has done step {}, its last one; there is nothing left to trace", target.id,
                       known->step));
  if (known && known->step + options.steps > target.last_step && !context.quiet())
    fmt::print(stderr, "note: run {} ends with step {}: at most {} are left to trace\n", target.id,
               target.last_step, count_of(target.last_step - known->step, "step"));
  const auto lock = TraceLock::try_take(target.run);
  if (!lock)
    refuse(fmt::format("run {} is being traced by another command; wait until it has ended, and try again",
                       target.id));
  // Before the ranks record, so that a wrong name costs nothing.
  auto file = options.out.empty() ? nullptr : std::make_unique<trace::TraceFile>(fs, options.out);
  Interrupt interrupt;
  const TraceRequest request{
      .number = int64_t(real_clock().unix_s() * 1e6), .steps = options.steps, .ranks = ranks};
  const TraceInquiry inquiry(fs, target.run, request);
  const auto answer = TraceWait(fs, target, options, context, ranks.size()).run(inquiry, interrupt);
  if (!answer) {
    fmt::print(stderr, "run {}: the trace was given up; the run goes on\n", target.id);
    return 128 + interrupt.signal();
  }
  const trace::Merged merged = trace::merge({.run_id = target.id,
                                             .answer = *answer,
                                             .requested_steps = options.steps,
                                             .recordings = read_recordings(fs, inquiry.folder(), ranks),
                                             .events = lines_of(fs, target.run.events())});
  const std::string path = options.out.empty() ? default_trace_path(target, merged.summary) : options.out;
  if (!file) file = std::make_unique<trace::TraceFile>(fs, path);
  trace::write_chrome_trace(merged.trace, [&](std::string_view text) { file->write(text); });
  const uint64_t bytes = file->commit();
  fs.make_directories(target.run.file("trace"));
  fs.replace_text(target.run.file(kLastTrace),
                  json_text("trace", parse_ordered_json(merged.summary.to_json(path, bytes))));
  print_summary(merged.summary, path, bytes, context);
  return kExitDone;
}

}  // namespace

void add_trace(CommandLine& app, Context& context) {
  auto options = std::make_shared<TraceOptions>();
  CommandLine command =
      app.add_subcommand("trace", "record what the ranks of a running run do in its next steps");
  add_run_arguments(command, options->run, false);
  command.add_option("--steps", options->steps, "number of steps")
      .range(1, 1000)
      .type_name("N")
      .show_default();
  command
      .add_option(
          "--ranks", options->ranks,
          "ranks to record, such as 0,8,16-23, at most 64 (default: all; in runs of more than 64, whole "
          "pipelines, those of dp 0 first)")
      .type_name("LIST");
  command
      .add_option("-o,--out", options->out,
                  "the file, in Chrome's trace format; compressed if its name ends in .gz (default: "
                  "trace/steps-FIRST-LAST.json.gz in the folder of the run)")
      .type_name("FILE");
  command.add_option("--timeout", options->timeout_s, "give up after this many seconds")
      .type_name("SECONDS")
      .positive()
      .show_default();
  when_chosen(command, context, [options, &context] { return trace_run(*options, context); });
}

}  // namespace trainctl::cmd
