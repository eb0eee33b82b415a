#include "runtime/supervise/loop/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <new>

#include "runtime/base/process_memory.h"
#include "runtime/machine/process.h"
#include "runtime/run/wire/environment.h"
#include "runtime/supervise/decide/widths.h"
#include "runtime/supervise/loop/run_alerts.h"
#include "runtime/supervise/loop/run_attempts.h"
#include "runtime/supervise/loop/run_data.h"
#include "runtime/supervise/loop/wait_notice.h"

namespace trainctl {
namespace {

constexpr double kRoomIntervalS = 0.5;  ///< between two looks whether a full disk has room

/// Ends this process and those of the run on this machine. Waits for no file and takes no lock of this
/// process: the thread that would do it in order hangs, perhaps in a write to the terminal.
[[noreturn]] void end_by_force(const std::string& run, const std::string& name, StopLevel level,
                               double asked_s) {
  for (int tries = 0; tries < 100 && signal_marked(kRunVariable, run, SIGKILL) > 0; ++tries)
    real_clock().sleep_s(0.02);
  const std::string text = fmt::format(
      "trainctl: the supervisor hangs in a call of the file system of {}, and a stop was requested {:.0f} s "
      "ago: everything of the run on this machine is killed; next: trainctl resume {}\n",
      run, asked_s, name);
  pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&ready, 1, 0) == 1) (void)!::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(level == StopLevel::now ? kStoppedAtOnce : exit_status(ErrorCode::kIo));
}

/// The loop: asks Recovery what comes next and has the parts of the supervisor do it, until the run is over.
class Supervisor {
 public:
  Supervisor(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Clock& clock,
             Console& console)
      : run_(plan, run, fs, clock, console),
        end_(run_),
        checkpoints_(plan, run_.directory, fs, clock, run_.log, run_.lock),
        recovery_(recovery_options(plan), clock.monotonic_s()),
        other_stops_(plan.slurm, fs, clock, run, run_.log.files()),
        data_(run_),
        source_(run_),
        alerts_(run_),
        loss_(run_, applied_remedies(fs, run)),
        fleet_(run_, recovery_),
        quarantine_(run_, recovery_),
        attempts_(run_, {recovery_, source_, checkpoints_, fleet_, quarantine_, end_, loss_}) {
    run_.log.set_watch({.event =
                            [this](EventKind kind, const std::string& json) {
                              alerts_.event(kind, json);
                              if (kind == EventKind::replicas_judged) quarantine_.judged(json);
                              if (kind == EventKind::burn_in) quarantine_.burned_in(json);
                              if (kind == EventKind::slow_ranks) quarantine_.slow_ranks(json);
                              if (kind == EventKind::slow_ranks_over) quarantine_.slow_ranks_over(json);
                            },
                        .step =
                            [this](const StepLine& line) {
                              alerts_.step(line);
                              loss_.step(line);
                              if (line.replayed) checkpoints_.verified(line.step);
                            },
                        .turn = [this] { alerts_.turn(); }});
    run_.log.look_for_slow_ranks(plan.job.job.fault_tolerance.slow_nodes != SlowNodes::off);
    run_.log.set_nodes([this] { return fleet_.statuses(attempts_.places()); });
  }

  RunResult run() {
    StopSignals signals;
    signals.also([this] { return other_stops_.read(run_.log.pace(), run_.log.console()); });
    signals.watch({.exit_timeout_s = exit_timeout_s(),
                   .act = [run = run_.directory.path, name = run_.plan.name](
                              StopLevel level, double asked_s) { end_by_force(run, name, level, asked_s); }});
    SessionFolders::sweep();
    const SessionFolders folders;
    run_.log.supervisor_begins(run_.plan.take_over, run_.plan.lock ? run_.plan.lock->before() : "");
    try {
      RunResult result = run_to_end(folders, signals);
      alerts_.finish();
      const bool for_scheduler = other_stops_.time_is_up() || signals.warned() || is_requeued_;
      result.acts = last_acts(run_.plan.slurm, result.exit_code, for_scheduler);
      return result;
    } catch (const RunTaken&) {
      fleet_.leave();
      throw;
    } catch (const Error& error) {
      give_up(exit_status(error.code()), error.what());
      throw;
    } catch (const std::bad_alloc&) {
      give_up(exit_status(ErrorCode::kPlan), out_of_memory_text());
      throw;
    } catch (const std::exception& error) {
      give_up(exit_status(ErrorCode::kInternal), error.what());
      throw;
    }
  }

 private:
  /// From the first look for what is left of the run to its end.
  RunResult run_to_end(const SessionFolders& folders, StopSignals& signals) {
    loss_.replay();
    const RunFleet::Left left = fleet_.attach(folders);
    const bool finished = run_.plan.attach && left != RunFleet::Left::ranks &&
                          source_.step() >= run_.last_step && !loss_.pending();
    if (left == RunFleet::Left::nothing) {
      fleet_.end_leftovers();
      if (!finished) fleet_.begin(folders);
    }
    quarantine_.begin();
    if (!run_.plan.change_json.empty()) run_.log.event(EventKind::change, run_.plan.change_json);
    for (const auto& [kind, fields] : run_.plan.events) run_.log.event(kind, fields);
    if (finished) return conclude_finished(signals);
    loss_.require_not_spent();
    if (left == RunFleet::Left::ranks) {
      data_.begin();
      attempts_.attach(signals);
    } else {
      if (const auto back = loss_.pending()) {
        recovery_.go_back(back->at_most, back->may_begin_again, back->why);
        run_.log.console().note("   " + back->text(newest_step(run_.fs, run_.directory)));
      }
      if (!run_.plan.resume_fixed) attempts_.doubt_state();
    }
    return decide(signals);
  }

  RunResult decide(StopSignals& signals) {
    while (true) {
      run_.lock.must_hold();
      recovery_.stop(signals.read());
      const Decision decision = recovery_.next(run_.clock.monotonic_s());
      if (const auto* start = std::get_if<StartAttempt>(&decision)) {
        if (is_writable(signals) && has_its_data(signals)) attempts_.begin(*start, signals);
      } else if (const auto* find = std::get_if<FindCheckpoint>(&decision)) {
        find_source(*find, signals);
      } else if (const auto* wait = std::get_if<Wait>(&decision)) {
        await_news(*wait, signals);
      } else if (const auto* requeue = std::get_if<RequeueJob>(&decision)) {
        fleet_.end();
        finish_care(signals);
        is_requeued_ = true;
        return end_.conclude_idle(exit_status(ErrorCode::kStopped), requeue->why);
      } else {
        fleet_.end();
        finish_care(signals);
        return conclude(std::get<StopRun>(decision));
      }
    }
  }

  void find_source(const FindCheckpoint& find, StopSignals& signals) {
    if (!attempts_.last()) run_.log.status().step = newest_step(run_.fs, run_.directory);
    RunCheckpoints::Found found = checkpoints_.find(find, [&] {
      run_.lock.turn();
      fleet_.fleet().serve();
      return signals.read() == StopLevel::none;
    });
    if (signals.read() != StopLevel::none) return;  // decide() ends the run
    source_.find(find, std::move(found), fleet_.pieces([this] { run_.lock.turn(); }),
                 std::min(run_.log.status().step, run_.last_step - 1),
                 lines_of(run_.fs, run_.directory.events()), recovery_);
    if (const auto lost = recovery_.take_not_gone_back()) {
      if (const auto back = loss_.pending(); back && back->at_most <= *lost) loss_.withdraw();
      attempts_.not_gone_back(*lost);
    }
    if (!attempts_.last() && source_.state().memory)
      run_.log.console().note("   the nodes hold a newer state: continuing from " + source_.state().text());
  }

  /// Whether the records of an attempt can be written. A run that was going on waits for a full or read-only
  /// disk, as its saves do; in turns, because decide() reads signals and the lock.
  bool is_writable(const StopSignals& signals) {
    if (!attempts_.last()) return true;
    const Problem problem = write_problem(run_.fs, run_.directory);
    const bool is_told = std::exchange(told_full_, problem.exists());
    if (problem.is_none()) return true;
    if (!is_told)
      run_.log.console().note(fmt::format(
          " ! waiting until the run can be written: {}; make room, or press Ctrl-C to end it here",
          problem.text()));
    await_news({run_.clock.monotonic_s() + kRoomIntervalS, ""}, signals);
    return false;
  }

  /// Error(kData): the data are others than those of the run. False: a stop is asked for.
  bool has_its_data(StopSignals& signals) {
    const bool is_same = data_.is_same([&] {
      run_.lock.turn();
      fleet_.fleet().serve();
      return signals.read() == StopLevel::none;
    });
    data_.begin();
    return is_same;
  }

  void await_news(const Wait& wait, const StopSignals& signals) {
    if (wait_notice_.turn(wait.why, run_.clock.monotonic_s())) run_.log.console().note("   " + wait.why);
    if (wait_notice_.is_printed()) run_.log.waiting(wait.why);
    const double began_s = run_.clock.monotonic_s();
    fleet_.poll(wait.until_s, signals.fd());
    run_.log.waited(run_.clock.monotonic_s() - began_s);
    run_.lock.turn();
    checkpoints_.turn();
    quarantine_.turn();
    fleet_.fleet().serve();
  }

  RunResult conclude(const StopRun& stop) {
    const std::optional<RunAttempts::Last>& last = attempts_.last();
    if (!last || last->went_back) return end_.conclude_idle(stop.exit_code, fleet_.with_problems(stop.why));
    if (last->verdict.outcome != Verdict::failed)
      return end_.conclude(last->verdict,
                           other_stops_.time_is_up() ? "at the end of the job's time" : "on request");
    if (stop.exit_code == exit_status(ErrorCode::kStopped))
      return end_.conclude_idle(stop.exit_code, fleet_.with_problems(stop.why));
    Verdict verdict = last->verdict;
    verdict.cause = stop.why;
    if (stop.exit_code == exit_status(ErrorCode::kCheckpoint)) verdict.code = ErrorCode::kCheckpoint;
    run_.log.status().restarts = recovery_.restarts();
    return end_.conclude_failure(verdict, last->failure_folder, source_.step());
  }

  /// The supervisor before published the last checkpoint and died before it recorded the end of the run.
  RunResult conclude_finished(StopSignals& signals) {
    fleet_.end();
    checkpoints_.begin(last_epoch(run_.fs, run_.directory), source_.step());
    finish_care(signals);
    run_.log.status().step = run_.log.status().saved_step = source_.step();
    return end_.conclude(Verdict{.outcome = Verdict::finished}, "");
  }

  double exit_timeout_s() const { return run_.plan.job.job.checkpoint.exit_timeout_seconds; }

  /// After an abort nothing is waited for.
  void finish_care(StopSignals& signals) {
    if (attempts_.last() && attempts_.last()->verdict.outcome == Verdict::aborted) return;
    checkpoints_.finish(signals.left_s(exit_timeout_s()), other_stops_.time_is_up() || signals.warned(),
                        [&] { return run_.lock.turn(), signals.read() == StopLevel::now; });
  }

  /// Not a rank but this process could not go on: the run directory cannot be written. What broke it may
  /// break the record of it, too; that must not hide the first error.
  void give_up(int exit_code, const std::string& reason) {
    try {
      run_.lock.must_hold();
      fleet_.end();
      fleet_.end_leftovers();
      const bool has_diverged = exit_code == exit_status(ErrorCode::kDiverged);
      end_.end({.exit_code = exit_code,
                .reason = reason,
                .advice = (has_diverged ? "trainctl report " : "trainctl resume ") + run_.plan.name});
      alerts_.finish();
    } catch (const RunTaken&) {
      fleet_.leave();
    } catch (const std::exception& second) {
      fmt::print(stderr, "trainctl: also failed to record the end of the run: {}\n", second.what());
    }
  }

  SupervisedRun run_;
  RunEnd end_;
  RunCheckpoints checkpoints_;
  Recovery recovery_;
  OtherStops other_stops_;
  RunData data_;
  RunSource source_;
  RunAlerts alerts_;
  LossWatch loss_;
  RunFleet fleet_;
  RunQuarantine quarantine_;
  RunAttempts attempts_;
  WaitNotice wait_notice_;
  bool is_requeued_ = false, told_full_ = false;
};

}  // namespace

Recovery::Options recovery_options(const SupervisePlan& plan) {
  const JobSpec& job = plan.job.job;
  const FaultSpec& fault = job.fault_tolerance;
  const bool at_start = plan.start && plan.resume_from == plan.start->checkpoint;
  Recovery::Options options{.widths = widths_of(plan.job),
                            .tensor = job.launcher.tensor_across_nodes ? 1 : job.parallelism.tensor,
                            .one_machine = plan.nodes.one_machine,
                            .step_fixed = plan.resume_fixed,
                            .was_saved = plan.was_saved,
                            .ask_nodes = plan.resume_asks_nodes,
                            .max_restarts = fault.max_restarts,
                            .too_few = fault.too_few_nodes == TooFewNodes::wait ? Recovery::TooFew::wait
                                       : fault.too_few_nodes == TooFewNodes::requeue
                                           ? Recovery::TooFew::requeue
                                           : Recovery::TooFew::stop,
                            .wait_limit_s = fault.wait_for_nodes_seconds,
                            .burn_in = job.launcher.burn_in > 0};
  for (const ClusterNode& node : plan.nodes.nodes) options.nodes.push_back(node.name);
  if (!plan.resume_from.empty() && !at_start) options.from_step = plan.resume_step;
  if (plan.resume_memory) {
    options.from_step = plan.resume_step;
    options.from_memory = plan.resume_memory->state;
  }
  return options;
}

RunResult supervise(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Clock& clock,
                    Console& console) {
  return Supervisor(plan, run, fs, clock, console).run();
}

}  // namespace trainctl
