#include "runtime/supervise/loop/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <map>
#include <new>
#include <set>

#include "runtime/base/json.h"
#include "runtime/base/process_memory.h"
#include "runtime/machine/bundle.h"
#include "runtime/machine/session.h"
#include "runtime/run/agent/agent.h"
#include "runtime/run/wire/environment.h"
#include "runtime/spec/lineage.h"
#include "runtime/supervise/attempt/attempt.h"
#include "runtime/supervise/loop/attempt_places.h"
#include "runtime/supervise/attempt/attempt_times.h"
#include "runtime/supervise/history/going_back.h"
#include "runtime/supervise/history/save_history.h"
#include "runtime/supervise/loop/lock_watch.h"
#include "runtime/supervise/decide/recovery.h"
#include "runtime/supervise/loop/run_checkpoints.h"
#include "runtime/supervise/loop/run_end.h"
#include "runtime/supervise/loop/run_quarantine.h"
#include "runtime/supervise/loop/run_source.h"
#include "runtime/supervise/attempt/starter.h"
#include "runtime/supervise/decide/widths.h"

namespace trainctl {
namespace {

using nlohmann::json;
std::string dump(const json& j) { return dump_json(j); }

constexpr double kEndAgentsS = 3;
/// For agents that a dead supervisor left, which dial every 0.1 s.
constexpr double kOrphansS = 0.5;
/// After so many steps of an epoch its ranks have sealed a state of their own.
constexpr int64_t kOwnStatesAfter = 3;
/// A shorter wait for nodes is not worth a line.
constexpr double kSilentWaitS = 1;
/// For the agents of a supervisor that died: they dial every 0.1 s. Of one that is stopped: after its silence.
constexpr double kAttachLimitS = 3;

class Supervisor {
 public:
  Supervisor(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Clock& clock,
             Console& console)
      : plan_(plan),
        run_(run),
        fs_(fs),
        clock_(clock),
        console_(console),
        log_(fs, clock, run, console),
        end_(plan, run, fs, console, log_),
        checkpoints_(plan, run_, fs, clock, log_, lock_),
        recovery_(recovery_options(plan), clock.monotonic_s()),
        other_stops_(plan.slurm, fs, clock, run),
        source_(plan, run, fs, console),
        times_(log_, clock) {
    const JobSpec& job = plan_.job.job;
    last_step_ =
        plan_.max_steps > 0 ? std::min(plan_.max_steps, job.schedule.total_steps) : job.schedule.total_steps;
    RunStatus& status = log_.status();
    status.run_id = plan_.run_id;
    status.total_steps = job.schedule.total_steps;
    status.lineage_json = plan_.lineage_json;
    status.started_unix_s = clock.unix_s();
    status.heartbeat_s = job.fault_tolerance.heartbeat_seconds;
    status.step_timeout_s = job.fault_tolerance.step_timeout_seconds;
    log_.set_nodes([this] {
      if (!fleet_ || plan_.nodes.one_machine) return std::vector<NodeStatus>{};
      return node_statuses(recovery_, *fleet_, places_, clock_);
    });
    console_.set_total_steps(last_step_);
    log_.set_last_step(last_step_);
  }

  RunResult run() {
    StopSignals signals;
    signals.also([this] { return other_stops_.read(log_.pace(), console_); });
    SessionFolders::sweep();
    const SessionFolders folders;
    log_.supervisor_begins(plan_.take_over, plan_.lock ? plan_.lock->before() : "");
    try {
      const bool there = attach(folders);
      const bool finished = plan_.attach && !attached_ && source_.step() >= last_step_;
      if (!there) end_leftovers();
      if (!there && !finished) {
        fleet_.emplace(fleet_options(plan_, run_, folders), clock_);
        listen_to_fleet();
        // Agents of a dead supervisor dial by themselves; a second agent on a node would only end the first.
        if (orphans_ && !plan_.nodes.one_machine)
          await_agents(*fleet_, clock_, kOrphansS, [&] { return fleet_->ready_count() == fleet_->size(); });
        fleet_->start_agents();
      }
      read_quarantine(plan_, fs_, clock_, recovery_, console_);
      if (!plan_.change_json.empty()) log_.event(EventKind::change, plan_.change_json);
      for (const auto& [kind, fields] : plan_.events) log_.event(kind, fields);
      RunResult result = finished ? conclude_finished(signals) : decide(signals);
      const bool for_scheduler = other_stops_.time_is_up() || signals.warned() || requeue_;
      result.acts = last_acts(plan_.slurm, result.exit_code, for_scheduler);
      return result;
    } catch (const RunTaken&) {
      if (fleet_) fleet_->leave();
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
  /// Asks Recovery what comes next and does it, until the run is over.
  RunResult decide(StopSignals& signals) {
    if (attached_) run_attached(signals);
    while (true) {
      lock_.must_hold();
      recovery_.stop(signals.read());
      const Decision decision = recovery_.next(clock_.monotonic_s());
      if (const auto* start = std::get_if<StartAttempt>(&decision)) {
        begin(*start, signals);
      } else if (const auto* find = std::get_if<FindCheckpoint>(&decision)) {
        source_.find(*find, checkpoints_.find(find->at_most, [this] { lock_.turn(), fleet_->serve(); }),
                     pieces_here(plan_, run_, fs_), std::min(log_.status().step, last_step_ - 1), recovery_);
      } else if (const auto* wait = std::get_if<Wait>(&decision)) {
        await_news(*wait, signals);
      } else if (const auto* requeue = std::get_if<RequeueJob>(&decision)) {
        end_agents();
        finish_care(signals);
        requeue_ = true;
        return end_.conclude_idle(exit_status(ErrorCode::kStopped), requeue->why);
      } else {
        end_agents();
        finish_care(signals);
        return conclude(std::get<StopRun>(decision));
      }
    }
  }

  RunResult conclude(const StopRun& stop) {
    if (!verdict_) return end_.conclude_idle(stop.exit_code, nodes_text(stop.why));
    if (verdict_->outcome != Verdict::failed)
      return end_.conclude(*verdict_, other_stops_.time_is_up() ? "at the end of the job's time"
          : "on request");
    if (stop.exit_code == exit_status(ErrorCode::kStopped))
      return end_.conclude_idle(stop.exit_code, nodes_text(stop.why));
    verdict_->cause = stop.why;
    if (stop.exit_code == exit_status(ErrorCode::kCheckpoint)) verdict_->code = ErrorCode::kCheckpoint;
    log_.status().restarts = recovery_.restarts();
    return end_.conclude_failure(*verdict_, failure_folder_, source_.step());
  }

  /// The supervisor before published the last checkpoint and died before it recorded the end of the run.
  RunResult conclude_finished(StopSignals& signals) {
    end_agents();
    checkpoints_.begin(last_epoch(fs_, run_), source_.step());
    finish_care(signals);
    log_.status().step = log_.status().saved_step = source_.step();
    return end_.conclude(Verdict{.outcome = Verdict::finished}, "");
  }

  /// After an abort nothing is waited for.
  void finish_care(StopSignals& signals) {
    if (verdict_ && verdict_->outcome == Verdict::aborted) return;
    checkpoints_.finish(other_stops_.time_is_up() || signals.warned(),
                        [&] { return lock_.turn(), signals.read() == StopLevel::now; });
  }

  /// With what is known of the nodes that are not there.
  std::string nodes_text(const std::string& why) const {
    std::string text = why;
    for (int i = 0; i < fleet_size_; ++i)
      if (!problems_[size_t(i)].empty())
        text += fmt::format("; {}: {}", plan_.nodes.nodes[size_t(i)].name, problems_[size_t(i)]);
    return text;
  }

  /// Not a rank but this process could not go on: the run directory cannot be written. What broke it may
  /// break the record of it, too; that must not hide the first error.
  void give_up(int exit_code, const std::string& reason) {
    try {
      lock_.must_hold();
      end_agents();
      end_leftovers();
      end_.end(RunState::failed, exit_code, reason, "trainctl resume " + plan_.name);
    } catch (const RunTaken&) {
      if (fleet_) fleet_->leave();
    } catch (const std::exception& second) {
      fmt::print(stderr, "trainctl: nor could the end of the run be recorded: {}\n", second.what());
    }
  }

  /// Agents of a supervisor that was killed end everything after their grace time; one that is stopped
  /// (SIGSTOP) cannot. We hold the lock, so any process that carries this run's mark is a leftover.
  void end_leftovers() {
    for (int tries = 0; tries < 100 && signal_marked(kRunVariable, run_.path, SIGKILL) > 0; ++tries)
      clock_.sleep_s(0.02);
  }

  void end_agents() {
    if (!fleet_) return;
    fleet_size_ = fleet_->size();
    for (int i = 0; i < fleet_size_; ++i) problems_.push_back(fleet_->problem(i));
    // What is in no checkpoint yet stays in memory, for a resume.
    RunStatus& status = log_.status();
    const bool keeps_memory = status.saved_step < status.step;
    if (!keeps_memory) status.staged_step = -1;
    fleet_->end(kEndAgentsS, keeps_memory);
    fleet_.reset();
  }

  // ---- nodes

  Fleet::Handler handler() {
    return {.up = [this](int node, const wire::NodeHello&) { node_up(node); },
            .lost = [this](int node, const std::string& why) { node_lost(node, why); },
            .start_failed = [this](int node, const std::string& why) { start_failed(node, why); },
            .message = {}};
  }

  void listen_to_fleet() {
    if (!starter_) starter_.emplace(plan_.job.job, *fleet_, fs_, log_);
    fleet_->set_handler(handler());
    // Those that came or went while somebody else listened.
    for (int i = 0; i < fleet_->size(); ++i)
      if (fleet_->hello(i) && !is_up_.contains(i)) node_up(i);
  }

  void node_up(int node) {
    is_up_.insert(node);
    recovery_.node_ready(fleet_->name(node), plan_.nodes.nodes[size_t(node)].slots, clock_.monotonic_s());
    if (const double apart_s = std::abs(fleet_->clock_offset_s(node).value_or(0)); apart_s > kClocksApartS)
      console_.note(fmt::format(
          " ! the clock of {} is {:.1f} s apart from this one: times in its logs are, too; set it by NTP",
          fleet_->name(node), apart_s));
    log_.event(EventKind::node_up, node_up_json(*fleet_, node));
  }

  void node_lost(int node, const std::string& why, bool recorded = false) {  // as an event, by its attempt
    is_up_.erase(node);
    recovery_.node_lost(fleet_->name(node), why, clock_.monotonic_s());
    if (!recorded) log_.event(EventKind::node_lost, dump({{"node", fleet_->name(node)}, {"reason", why}}));
    console_.note(fmt::format(" ! {}: {}", fleet_->name(node), why));
  }

  /// An agent could not be started: the node is not awaited.
  void start_failed(int node, const std::string& why) {
    if (plan_.nodes.one_machine) throw Error(ErrorCode::kLauncher, why);
    recovery_.node_lost(fleet_->name(node), why, clock_.monotonic_s());
    if (std::exchange(start_problems_[node], why) == why) return;
    console_.note(fmt::format(" ! {}: {}", fleet_->name(node), why));
    log_.event(EventKind::node_failed, dump({{"node", fleet_->name(node)}, {"reason", why}}));
  }

  void await_news(const Wait& wait, StopSignals& signals) {
    const double now_s = clock_.monotonic_s();
    if (wait.why != waiting_for_) waiting_since_s_ = now_s, waiting_said_ = false;
    waiting_for_ = wait.why;
    if (!waiting_said_ && !wait.why.empty() && now_s - waiting_since_s_ > kSilentWaitS) {
      waiting_said_ = true;
      console_.note("   " + wait.why);
    }
    if (waiting_said_) log_.waiting(wait.why);
    const double left_s = std::min(wait.until_s, fleet_->deadline_s()) - clock_.monotonic_s();
    pollfd fds[] = {{.fd = fleet_->fd(), .events = POLLIN, .revents = 0},
                    {.fd = signals.fd(), .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, int(std::clamp(left_s, 0.0, 0.5) * 1000));
    lock_.turn();
    checkpoints_.turn();
    fleet_->serve();
  }

  /// Goes on with the ranks that a supervisor before has left running, or at least with its agents. False:
  /// there are neither.
  bool attach(const SessionFolders& folders) {
    if (!plan_.attach) return false;
    const AttemptFile& file = *plan_.attach;
    Fleet::Options options = fleet_options(plan_, run_, folders);
    options.attach_to = file.epoch;
    fleet_.emplace(std::move(options), clock_);
    const auto all_there = [&] { return nodes_there(*fleet_, file) == file.nodes.size(); };
    await_agents(*fleet_, clock_, std::max(kAttachLimitS, plan_.job.job.fault_tolerance.node_silence_seconds + 1), all_there);
    fleet_->end_attach();
    attached_ = nodes_there(*fleet_, file) > 0;
    if (!attached_ && fleet_->ready_count() == 0) {
      fleet_->end(kEndAgentsS);
      fleet_.reset();
      return false;
    }
    fleet_->keep_agents(true);
    listen_to_fleet();
    if (attached_) return true;
    for (int i = 0; i < fleet_->size(); ++i)
      if (const wire::NodeHello* hello = fleet_->hello(i); hello && hello->epoch)
        fleet_->machine(i).order({.kind = wire::Kind::kill, .epoch = *hello->epoch});
    fleet_->start_agents();
    return true;
  }

  // ---- attempts

  void begin(const StartAttempt& start, StopSignals& signals) {
    const ParsedJob job = at_width(plan_.job, start.width);
    if (!start.step) source_.begin_at_start();
    AttemptOptions options = options_for(job.job);
    place_ranks(options, plan_, *fleet_, job.job, start.nodes);
    if (!source_.is_reachable(nodes_of_attempt(options, *fleet_))) return recovery_.memory_out_of_reach();
    if (verdict_) announce(start);
    prepare_run_directory(job.job);
    const LaunchInput input{.job = &job.job,
                            .hosts = hosts_of(options, *fleet_),
                            .network = network_of(options, plan_, *fleet_),
                            .world_size = start.width.ranks,
                            .mpirun = plan_.mpirun,
                            .program = plan_.program,
                            .run_directory = run_.path,
                            .session_folder = options.session_folder,
                            .shared_memory_folder = options.shared_memory_folder,
                            .bundle = own_bundle(),
                            .homeless = !std::getenv("HOME"),
                            .root = ::geteuid() == 0,
                            .cross_memory_attach = plan_.cross_memory_attach};
    options.pmix = starter_->by_pmix(input);
    options.line = options.pmix ? rank_line(input) : mpirun_line(input);
    set_networks(options, plan_, *fleet_, input.network);
    options.file.overrides = overrides_of(plan_.job, start.width);
    times_.begun();
    recovery_.attempt_started(start, clock_.monotonic_s());
    run_one(std::move(options), signals);
  }

  /// Where the time of an attempt went. Its parts and those of the other attempts add up to the run's time.
  void announce(const StartAttempt& start) {
    RunStatus& status = log_.status();
    status.state = RunState::restarting;
    status.reason = start.why;
    status.restarts = recovery_.restarts();
    log_.event(RestartEvent{.restart = status.restarts,
                            .from_step = source_.step(),
                            .lost_steps = std::max<int64_t>(0, status.step - source_.step()),
                            .nodes = start.nodes,
                            .data = int(start.width.data),
                            .reason = start.why});
    console_.note(fmt::format(" ! {}", start.why));
    console_.note("   continuing from " + source_.text());
  }

  void run_attached(StopSignals& signals) {
    const AttemptFile& file = *plan_.attach;
    StartAttempt start{.width = widths_of(plan_.job).front()};
    if (file.memory) start.step = file.memory->step, start.in_memory = {file.memory->step, file.memory->epoch};
    int ranks = 0;
    for (const AttemptFile::Node& node : file.nodes) start.nodes.push_back(node.name), ranks += node.count;
    for (const Width& width : widths_of(plan_.job))
      if (width.ranks == ranks) start.width = width;
    const ParsedJob job = at_width(plan_.job, start.width);
    AttemptOptions options = options_for(job.job);
    options.attach = true;
    options.pmix = file.pmix;
    options.file = file;
    options.nodes = places_of(*fleet_, file);
    if (const auto known = read_status(fs_, run_.status())) {
      log_.status().saved_step = known->saved_step;
      log_.status().restarts = known->restarts;
    }
    // Newer than the status: what the supervisor before has taken.
    const std::vector<std::string> steps = lines_of(fs_, run_.metrics());
    if (!steps.empty()) log_.status().step = step_view(steps.back()).step;
    log_.status().epoch = file.epoch;
    checkpoints_.begin(file.epoch, INT64_MAX);
    console_.note(fmt::format("  the ranks of epoch {} are alive: attaching to them", file.epoch));
    times_.begun();
    recovery_.attempt_started(start, clock_.monotonic_s());
    run_one(std::move(options), signals);
  }

  void run_one(AttemptOptions options, StopSignals& signals) {
    places_ = options.nodes;
    const bool by_pmix = options.pmix;
    options.hooks = {.turn = [this] { lock_.turn(), checkpoints_.turn(); },
                     .node_up = [this](int node) { node_up(node); },
                     .node_lost = [this](int n, const auto& why) { node_lost(n, why, runs_ranks(places_, n)); },
                     .start_failed = [this](int n, const auto& w) { if (!plan_.nodes.one_machine) start_failed(n, w); },
                     .all_present = [this] { times_.all_present(); },
                     .progressed =
                         [this](int64_t step) {
                           recovery_.progressed(step);
                           if (source_.memory() && step == source_.step() + kOwnStatesAfter)
                             forget_other_meshes(*fleet_, places_, log_.status().epoch);
                           times_.stepped();
                         },
                     .saved = [this](int64_t step) { recovery_.saved(step), checkpoints_.published(); },
                     .regroup = [this] { return text_of(recovery_.regroup(clock_.monotonic_s())); }};
    const AttemptResult result = run_attempt(std::move(options), *fleet_, run_, fs_, clock_, log_, signals);
    lock_.must_hold();
    listen_to_fleet();
    verdict_ = result.verdict;
    const Verdict& v = *verdict_;
    AttemptEnd end{.how = v.outcome == Verdict::finished                      ? AttemptEnd::finished
                          : v.outcome == Verdict::stopped && result.regrouped ? AttemptEnd::regrouped
                          : v.outcome == Verdict::stopped                     ? AttemptEnd::stopped
                          : v.outcome == Verdict::aborted                     ? AttemptEnd::aborted
                                                                              : AttemptEnd::failed,
                   .code = v.code,
                   .cause = v.cause,
                   .rank = v.rank};
    for (const AttemptOptions::Node& place : places_)
      if (v.rank >= place.first && v.rank < place.first + place.count) end.node = fleet_->name(place.node);
    starter_->doubt(v, by_pmix);
    tell_quarantine(plan_, fs_, clock_, recovery_, log_, v.cause);
    times_.ended(v, result);
    if (v.outcome == Verdict::failed) failure_folder_ = end_.record_failure(v);
    recovery_.attempt_ended(end, clock_.monotonic_s());
  }

  /// Files of steps beyond the one gone back to are moved aside.
  void prepare_run_directory(const JobSpec& job) {
    RunStatus& status = log_.status();
    status.epoch = last_epoch(fs_, run_) + 1;
    status.step = source_.step();
    status.step_unix_s = 0;
    checkpoints_.pause();
    const int64_t moved = set_aside_beyond(fs_, run_, job, source_.step(), status.epoch, console_);
    checkpoints_.begin(status.epoch, source_.step());
    status.saved_step = source_.durable_step();
    status.staged_step = source_.memory() ? source_.step() : -1;
    log_.reopen_metrics();
    log_.event(StartEvent{.epoch = status.epoch,
                          .ranks = job.mesh().world_size(),
                          .from_step = source_.step(),
                          .tier = source_.tier(),
                          .checkpoint = source_.folder(),
                          .numerics = plan_.numerics,
                          .superseded_steps = moved});
  }

  AttemptOptions options_for(const JobSpec& job) {
    AttemptOptions options = attempt_options(plan_, run_, job, last_step_);
    options.saves.must_hold = [this] { lock_.must_hold(); };
    options.file.epoch = last_epoch(fs_, run_) + 1;
    source_.put_into(options.file);
    options.file.lineage_json = lineage_at(plan_.lineage_json, source_.step());
    recall_saves(fs_, run_, options.file, log_.status());
    return options;
  }

  const SupervisePlan& plan_;
  const RunDirectory run_;
  FileSystem& fs_;
  Clock& clock_;
  Console& console_;
  LockWatch lock_{plan_.lock, clock_};
  RunLog log_;
  RunEnd end_;
  RunCheckpoints checkpoints_;
  Recovery recovery_;
  OtherStops other_stops_;
  RunSource source_;
  int64_t last_step_ = 0;
  const bool orphans_ = fs_.exists(supervisor_file(run_.path));  ///< a supervisor before did not end its agents
  std::optional<Fleet> fleet_;
  std::vector<AttemptOptions::Node> places_;  ///< of the attempt that runs, or ran last
  bool attached_ = false, requeue_ = false, waiting_said_ = false;
  std::optional<Starter> starter_;
  std::map<int, std::string> start_problems_;
  std::set<int> is_up_;  ///< nodes that Recovery knows as ready
  AttemptTimes times_;
  std::optional<Verdict> verdict_;  ///< of the last attempt
  std::string failure_folder_, waiting_for_;
  double waiting_since_s_ = 0;
  int fleet_size_ = 0;
  std::vector<std::string> problems_;  ///< of the nodes, kept for the end
};

}  // namespace

uint64_t last_epoch(FileSystem& fs, const RunDirectory& run) {
  return fs.exists(run.attempt()) ? AttemptFile::from_json(fs.read_text(run.attempt())).epoch : 0;
}

RunResult supervise(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Clock& clock,
                    Console& console) {
  return Supervisor(plan, run, fs, clock, console).run();
}

}  // namespace trainctl
