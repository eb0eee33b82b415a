#include "runtime/supervise/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <new>
#include <set>

#include "ckpt/checkpoint.h"
#include "runtime/base/json.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/text.h"
#include "runtime/machine/bundle.h"
#include "runtime/machine/session.h"
#include "runtime/run/agent.h"
#include "runtime/run/environment.h"
#include "runtime/spec/lineage.h"
#include "runtime/supervise/attempt.h"
#include "runtime/supervise/quarantine.h"
#include "runtime/supervise/recovery.h"
#include "runtime/supervise/run_end.h"
#include "runtime/supervise/starter.h"
#include "runtime/supervise/widths.h"

namespace trainctl {
namespace {

using nlohmann::json;

std::string dump(const json& j) { return dump_json(j); }

/// Ranks read the spec, open data and build the model before the first step, all of them on the same few
/// cores.
double start_timeout_s(int ranks) { return 60 + 1.0 * ranks; }
constexpr double kEndAgentsS = 3;
/// For agents that a dead supervisor left, which dial every 0.1 s.
constexpr double kOrphansS = 0.5;
/// Clocks of nodes that differ by more are worth a line.
constexpr double kClocksApartS = 5;
/// A shorter wait for nodes is not worth a line.
constexpr double kSilentWaitS = 1;
/// For the agents of a supervisor that died: they dial every 0.1 s.
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
        recovery_(recovery_options(plan), clock.monotonic_s()),
        other_stops_(plan.slurm, fs, clock, run),
        resume_from_(plan.resume_from),
        resume_step_(plan.resume_step) {
    const JobSpec& job = plan_.job.job;
    last_step_ =
        plan_.max_steps > 0 ? std::min(plan_.max_steps, job.schedule.total_steps) : job.schedule.total_steps;
    times_.free_s = clock.monotonic_s();
    RunStatus& status = log_.status();
    status.run_id = plan_.run_id;
    status.total_steps = job.schedule.total_steps;
    status.lineage_json = plan_.lineage_json;
    status.started_unix_s = clock.unix_s();
    status.heartbeat_s = job.fault_tolerance.heartbeat_seconds;
    status.step_timeout_s = job.fault_tolerance.step_timeout_seconds;
    log_.set_nodes([this] { return node_statuses(); });
    console_.set_total_steps(last_step_);
    log_.set_last_step(last_step_);
  }

  RunResult run() {
    StopSignals signals;
    signals.also([this] { return other_stops_.read(log_.pace(), console_); });
    SessionFolders::sweep();
    const SessionFolders folders;
    log_.event("supervisor", dump({{"pid", ::getpid()}}));
    try {
      if (!attach(folders)) {
        end_leftovers();
        fleet_.emplace(fleet_options(folders), clock_);
        listen_to_fleet();
        await_living_agents();
        fleet_->start_agents();
      }
      read_quarantine();
      if (!plan_.change_json.empty()) log_.event("change", plan_.change_json);
      RunResult result = decide(signals);
      const bool for_scheduler = other_stops_.time_is_up() || signals.warned() || requeue_;
      result.acts = last_acts(plan_.slurm, result.exit_code, for_scheduler);
      return result;
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
      recovery_.stop(signals.read());
      const Decision decision = recovery_.next(clock_.monotonic_s());
      if (const auto* start = std::get_if<StartAttempt>(&decision)) {
        begin(*start, signals);
      } else if (const auto* find = std::get_if<FindCheckpoint>(&decision)) {
        find_checkpoint(find->at_most);
      } else if (const auto* wait = std::get_if<Wait>(&decision)) {
        await_news(*wait, signals);
      } else if (const auto* requeue = std::get_if<RequeueJob>(&decision)) {
        end_agents();
        requeue_ = true;
        return end_.conclude_idle(exit_status(ErrorCode::kStopped), requeue->why);
      } else {
        end_agents();
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
    return end_.conclude_failure(*verdict_, failure_folder_, resume_step_);
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
      end_agents();
      end_leftovers();
      end_.end("failed", exit_code, reason, "trainctl resume " + plan_.name);
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
    fleet_->end(kEndAgentsS);
    fleet_.reset();
  }

  // ---- nodes

  Fleet::Options fleet_options(const SessionFolders& folders) const {
    const FaultSpec& fault = plan_.job.job.fault_tolerance;
    Fleet::Options options{.run_directory = run_.path,
                           .program = plan_.program,
                           .mpirun = plan_.mpirun,
                           .start = plan_.nodes.start,
                           .listen = plan_.nodes.listen.empty() ? "unix:" + folders.session() + "/supervisor"
                                                                : plan_.nodes.listen,
                           .numerics = plan_.nodes.one_machine ? "" : plan_.numerics,
                           .silence_s = fault.node_silence_seconds,
                           .grace_s = fault.grace_seconds};
    for (const ClusterNode& node : plan_.nodes.nodes) options.nodes.push_back(node.name);
    return options;
  }

  /// Agents of a supervisor that died dial by themselves: others beside them would only be in their way.
  void await_living_agents() {
    if (plan_.nodes.one_machine || !orphans_) return;
    const double until_s = clock_.monotonic_s() + kOrphansS;
    while (fleet_->ready_count() < fleet_->size() && clock_.monotonic_s() < until_s) {
      pollfd fd{.fd = fleet_->fd(), .events = POLLIN, .revents = 0};
      ::poll(&fd, 1, 50);
      fleet_->serve();
    }
  }

  void listen_to_fleet() {
    fleet_->set_handler({.up = [this](int node, const wire::NodeHello&) { node_up(node); },
                         .lost = [this](int node, const std::string& why) { node_lost(node, why); },
                         .start_failed = [this](int node, const std::string& why) { start_failed(node, why); },
                         .message = {}});
    // Those that came or went while somebody else listened.
    for (int i = 0; i < fleet_->size(); ++i)
      if (fleet_->hello(i) && !is_up_.contains(i)) node_up(i);
  }

  void node_up(int node) {
    is_up_.insert(node);
    const wire::NodeHello& hello = *fleet_->hello(node);
    recovery_.node_ready(fleet_->name(node), plan_.nodes.nodes[size_t(node)].slots, clock_.monotonic_s());
    if (const double apart_s = std::abs(hello.unix_s - clock_.unix_s()); apart_s > kClocksApartS)
      console_.note(fmt::format(" ! the clock of {} is {:.0f} s apart from this one: times in its logs are, too; set it by NTP",
                                fleet_->name(node), apart_s));
    log_.event("node_up", dump({{"node", fleet_->name(node)}, {"address", fleet_->hello(node)->address}}));
  }

  void node_lost(int node, const std::string& why) {
    is_up_.erase(node);
    recovery_.node_lost(fleet_->name(node), why, clock_.monotonic_s());
    console_.note(fmt::format(" ! {}: {}", fleet_->name(node), why));
  }

  std::vector<NodeStatus> node_statuses() const {
    std::vector<NodeStatus> list;
    if (!fleet_ || plan_.nodes.one_machine) return list;
    const double offset_s = clock_.unix_s() - clock_.monotonic_s();
    for (const PoolNode& pool : recovery_.pool()) {
      const int node = fleet_->find(pool.name);
      NodeStatus status{.name = pool.name, .state = "absent", .since_unix_s = pool.since_s + offset_s};
      for (const AttemptOptions::Node& place : places_)
        if (place.node == node && recovery_.running()) status.first = place.first, status.count = place.count;
      if (pool.state == PoolNode::ready) status.state = pool.quarantined ? "quarantined" : status.count > 0 ? "running" : "spare";
      if (pool.state == PoolNode::lost) status.state = "lost", status.reason = pool.why;
      if (node >= 0 && fleet_->heard_s(node) > 0) status.heard_unix_s = fleet_->heard_s(node) + offset_s;
      list.push_back(status);
    }
    return list;
  }

  /// An agent could not be started: the node is not awaited.
  void start_failed(int node, const std::string& why) {
    recovery_.node_lost(fleet_->name(node), why, clock_.monotonic_s());
    if (start_problems_[node] == why) return;
    start_problems_[node] = why;
    console_.note(fmt::format(" ! {}: {}", fleet_->name(node), why));
    log_.event("node_failed", dump({{"node", fleet_->name(node)}, {"reason", why}}));
  }

  /// The list of nodes in quarantine: read before the first attempt, and told of nodes on which this run failed.
  void read_quarantine() {
    try {
      const std::string path = quarantine_path("");
      if (path.empty()) return;
      for (const std::string& name : QuarantineFile(fs_, clock_, path).read().nodes_out(clock_.unix_s()))
        for (const ClusterNode& node : plan_.nodes.nodes)
          if (node.name == name && !plan_.nodes.one_machine) {
            recovery_.set_quarantined(name, true);
            console_.note(fmt::format(" ! {} is in quarantine (see `trainctl nodes`)", name));
          }
    } catch (const Error& error) {
      console_.note(fmt::format(" ! the quarantine list cannot be read: {}", error.what()));
    }
  }

  void tell_quarantine(const Verdict& v) {
    for (const std::string& name : recovery_.take_quarantined()) {
      log_.event("quarantine", dump({{"node", name}, {"cause", v.cause}}));
      try {
        QuarantineFile(fs_, clock_, quarantine_path("")).update([&](QuarantineList& list) {
          list.add(name, -1,
                   {.kind = NodeEvidence::failure, .run = plan_.run_id, .epoch = log_.status().epoch, .cause = v.cause, .unix_s = clock_.unix_s()},
                   {.failures = 1}, clock_.unix_s());
        });
        console_.note(fmt::format(" ! {} failed again and again: in quarantine (`trainctl nodes --lift {}`)", name, name));
      } catch (const Error& error) {
        console_.note(fmt::format(" ! {} could not be put on the quarantine list: {}", name, error.what()));
      }
    }
  }

  void await_news(const Wait& wait, StopSignals& signals) {
    const double now_s = clock_.monotonic_s();
    if (wait.why != waiting_for_) waiting_since_s_ = now_s, waiting_said_ = false;
    waiting_for_ = wait.why;
    if (!waiting_said_ && !wait.why.empty() && now_s - waiting_since_s_ > kSilentWaitS) {
      waiting_said_ = true;
      console_.note("   " + wait.why);
    }
    const double left_s = std::min(wait.until_s, fleet_->deadline_s()) - clock_.monotonic_s();
    pollfd fds[] = {{.fd = fleet_->fd(), .events = POLLIN, .revents = 0},
                    {.fd = signals.fd(), .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, int(std::clamp(left_s, 0.0, 0.5) * 1000));
    fleet_->serve();
  }

  /// Goes on with ranks that a supervisor before has left running. False: there are none.
  bool attach(const SessionFolders& folders) {
    if (!plan_.attach) return false;
    const AttemptFile& file = *plan_.attach;
    Fleet::Options options = fleet_options(folders);
    options.attach_to = file.epoch;
    fleet_.emplace(std::move(options), clock_);
    const auto missing = [&] {
      return std::any_of(file.nodes.begin(), file.nodes.end(), [&](const AttemptFile::Node& node) {
        const int index = fleet_->find(node.name);
        return index < 0 || !fleet_->hello(index) || fleet_->hello(index)->epoch != file.epoch;
      });
    };
    const double until_s = clock_.monotonic_s() + kAttachLimitS;
    while (missing() && clock_.monotonic_s() < until_s) {
      pollfd fd{.fd = fleet_->fd(), .events = POLLIN, .revents = 0};
      ::poll(&fd, 1, 50);
      fleet_->serve();
    }
    if (missing()) {
      fleet_->end(kEndAgentsS);
      fleet_.reset();
      return false;
    }
    attached_ = true;
    fleet_->keep_agents(true);
    listen_to_fleet();
    return true;
  }

  // ---- attempts

  /// Whether the attempt begins from the checkpoint of another run.
  bool at_start() const { return plan_.start && resume_from_ == plan_.start->checkpoint; }

  void begin(const StartAttempt& start, StopSignals& signals) {
    const ParsedJob job = at_width(plan_.job, start.width);
    if (!start.step) {
      resume_from_ = plan_.start ? plan_.start->checkpoint : "";
      resume_step_ = plan_.start ? plan_.start->step : 0;
    }
    if (verdict_) announce(start);
    AttemptOptions options = options_for(job.job);
    place_ranks(options, job.job, start.nodes);
    prepare_run_directory(job.job);
    const LaunchInput input{.job = &job.job,
                            .hosts = hosts_of(options),
                            .network = network_of(options),
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
    options.pmix = start_by_pmix(input);
    options.line = options.pmix ? rank_line(input) : mpirun_line(input);
    set_networks(options, input.network);
    options.file.overrides = overrides_of(plan_.job, start.width);
    outage_.begun_s = times_.begun_s = clock_.monotonic_s();
    recovery_.attempt_started(start, clock_.monotonic_s());
    run_one(std::move(options), signals);
  }

  /// Where the time of an attempt went. Its parts and those of the other attempts add up to the run's time.
  void record_times(const Verdict& v, std::optional<double> evidence_s) {
    const double now_s = clock_.monotonic_s(), end_s = evidence_s.value_or(now_s);
    const auto or_end = [&](double time_s) { return time_s > 0 ? std::min(time_s, end_s) : end_s; };
    // After an attach steps may have come before the last rank.
    const double up_s = or_end(times_.up_s), first_s = std::max(up_s, or_end(times_.first_s));
    const double last_s = times_.first_s > 0 ? std::max(first_s, or_end(times_.last_s)) : first_s;
    log_.event("attempt", dump({{"epoch", log_.status().epoch},
                                {"outcome", v.outcome == Verdict::failed ? name_of(v.code) : "ended"},
                                {"deciding_s", times_.begun_s - times_.free_s},
                                {"starting_s", up_s - times_.begun_s},
                                {"first_step_s", first_s - up_s},
                                {"stepping_s", last_s - first_s},
                                {"detecting_s", end_s - last_s},
                                {"ending_s", now_s - end_s}}));
    times_ = {.free_s = now_s};
  }

  /// The first step after a failure is done: what the way there took.
  void end_outage() {
    if (outage_.cause.empty()) return;
    const double now_s = clock_.monotonic_s();
    log_.event("recovered", dump({{"epoch", log_.status().epoch},
                                  {"cause", outage_.cause},
                                  {"ending_s", outage_.ended_s - outage_.evidence_s},
                                  {"deciding_s", outage_.begun_s - outage_.ended_s},
                                  {"starting_s", outage_.up_s - outage_.begun_s},
                                  {"first_step_s", now_s - outage_.up_s},
                                  {"seconds", now_s - outage_.evidence_s}}));
    outage_ = {};
  }

  void announce(const StartAttempt& start) {
    RunStatus& status = log_.status();
    status.state = "restarting";
    status.reason = start.why;
    status.restarts = recovery_.restarts();
    log_.event("restart", dump({{"restart", status.restarts},
                                {"from_step", resume_step_},
                                {"lost_steps", std::max<int64_t>(0, status.step - resume_step_)},
                                {"nodes", start.nodes},
                                {"data", start.width.data},
                                {"reason", start.why}}));
    console_.note(fmt::format(" ! {}", start.why));
    console_.note(fmt::format("   going on from {}", start.step
                                                         ? fmt::format("checkpoint step {}", resume_step_)
                                                     : plan_.start ? plan_.start->checkpoint
                                                                   : "step 0: there is no checkpoint"));
  }

  void run_attached(StopSignals& signals) {
    const AttemptFile& file = *plan_.attach;
    StartAttempt start{.width = widths_of(plan_.job).front()};
    int ranks = 0;
    for (const AttemptFile::Node& node : file.nodes) start.nodes.push_back(node.name), ranks += node.count;
    for (const Width& width : widths_of(plan_.job))
      if (width.ranks == ranks) start.width = width;
    const ParsedJob job = at_width(plan_.job, start.width);
    AttemptOptions options = options_for(job.job);
    options.attach = true;
    options.pmix = file.pmix;
    options.file = file;
    for (const AttemptFile::Node& node : file.nodes)
      options.nodes.push_back({.node = fleet_->find(node.name), .first = node.first, .count = node.count});
    if (const auto known = read_status(fs_, run_.status())) {
      log_.status().saved_step = known->saved_step;
      log_.status().restarts = known->restarts;
    }
    // Newer than the status: what the supervisor before has taken.
    const std::vector<std::string> steps = lines_of(fs_, run_.metrics());
    if (!steps.empty()) log_.status().step = step_view(steps.back()).step;
    log_.status().epoch = file.epoch;
    console_.note(fmt::format("  the ranks of epoch {} are alive: attaching to them", file.epoch));
    times_.begun_s = clock_.monotonic_s();
    recovery_.attempt_started(start, times_.begun_s);
    run_one(std::move(options), signals);
  }

  void run_one(AttemptOptions options, StopSignals& signals) {
    places_ = options.nodes;
    const bool by_pmix = options.pmix;
    options.hooks = {.node_up = [this](int node) { node_up(node); },
                     .node_lost = [this](int node, const std::string& why) { node_lost(node, why); },
                     .all_present = [this] { outage_.up_s = times_.up_s = clock_.monotonic_s(); },
                     .progressed =
                         [this](int64_t step) {
                           recovery_.progressed(step);
                           times_.last_s = clock_.monotonic_s();
                           if (times_.first_s == 0) times_.first_s = times_.last_s;
                           end_outage();
                         },
                     .saved = [this](int64_t step) { recovery_.saved(step); },
                     .regroup = [this] { return regroup_text(); }};
    const AttemptResult result = run_attempt(std::move(options), *fleet_, run_, fs_, clock_, log_, signals);
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
    doubt_pmix(v, by_pmix);
    if (v.outcome == Verdict::failed || result.regrouped) {
      const double now_s = clock_.monotonic_s();
      outage_ = {.cause = result.regrouped ? "regroup" : name_of(v.code), .evidence_s = result.first_evidence_s.value_or(now_s), .ended_s = now_s};
    }
    tell_quarantine(v);
    record_times(v, result.first_evidence_s);
    if (v.outcome == Verdict::failed) failure_folder_ = record_failure(v);
    recovery_.attempt_ended(end, clock_.monotonic_s());
  }

  std::string regroup_text() const {
    switch (recovery_.regroup(clock_.monotonic_s())) {
      case Recovery::Regroup::wider:
        return "a node is free again: saving, then going on wider";
      case Recovery::Regroup::without_quarantined:
        return "a node is in quarantine: saving, then going on without it";
      case Recovery::Regroup::none:
        return "";
    }
    return "";
  }

  /// Files of steps beyond the one gone back to are moved aside.
  void prepare_run_directory(const JobSpec& job) {
    RunStatus& status = log_.status();
    status.epoch = last_epoch(fs_, run_) + 1;
    status.step = resume_step_;
    status.step_unix_s = 0;
    status.saved_step = resume_from_.empty() || at_start() ? -1 : resume_step_;
    const int64_t moved =
        supersede_metrics(fs_, run_.metrics(), resume_step_,
                          run_.file(fmt::format("metrics.superseded-e{}.jsonl", status.epoch).c_str()));
    log_.reopen_metrics();
    const std::string checkpoints = run_.checkpoints(job);
    // A rename that a dead supervisor has under way must not find its folder any more.
    try {
      fs_.remove_tree(checkpoints + "/.saving");
    } catch (const Error&) {
      // There is none.
    }
    const ckpt::Superseded aside = ckpt::supersede(fs_, checkpoints, resume_step_, status.epoch);
    if (!aside.steps.empty())
      console_.note(fmt::format(
          "   {} beyond step {} ({}) moved to {}: removed once {} new ones are saved; to keep "
          "them, move them out of {}",
          count_of(int64_t(aside.steps.size()), "checkpoint"), resume_step_, size_text(aside.bytes),
          aside.path, std::max(job.checkpoint.keep_last, 2), checkpoints));
    log_.event("start", dump({{"epoch", status.epoch},
                              {"ranks", job.mesh().world_size()},
                              {"from_step", resume_step_},
                              {"checkpoint", resume_from_},
                              {"numerics", plan_.numerics},
                              {"superseded_steps", moved}}));
  }

  AttemptOptions options_for(const JobSpec& job) const {
    const FaultSpec& fault = job.fault_tolerance;
    AttemptOptions options;
    const std::string scratch = "trainctl." + random_token().substr(0, 12);
    options.session_folder = "/tmp/" + scratch;
    options.shared_memory_folder = "/dev/shm/" + scratch;
    options.limits = {.ranks = job.mesh().world_size(),
                      .target_step = last_step_,
                      .heartbeat_s = fault.heartbeat_seconds,
                      .step_timeout_s = fault.step_timeout_seconds,
                      .setup_timeout_s = fault.setup_timeout_seconds,
                      .data_timeout_s = fault.data_timeout_seconds,
                      .load_timeout_s = fault.load_timeout_seconds,
                      .evaluation_timeout_s = fault.evaluation_timeout_seconds,
                      .save_timeout_s = fault.save_timeout_seconds,
                      .start_timeout_s = start_timeout_s(job.mesh().world_size())};
    options.saves = {.ranks = options.limits.ranks,
                     .directory = run_.checkpoints(job),
                     .keep_last = job.checkpoint.keep_last,
                     .keep_every_steps = job.checkpoint.keep_every_steps};
    options.file = {.epoch = last_epoch(fs_, run_) + 1,
                    .resume_from = resume_from_,
                    .max_steps = plan_.max_steps,
                    .new_data = at_start() && plan_.start->new_data,
                    .lineage_json = lineage_at(plan_.lineage_json, resume_step_),
                    .threads_per_rank = job.parallelism.threads_per_rank,
                    .matmul_flops_per_s = plan_.matmul_flops_per_s};
    return options;
  }

  /// Whether the agents start the ranks themselves; decided before the first attempt.
  bool start_by_pmix(const LaunchInput& input) {
    if (pmix_) return *pmix_;
    const RankStart wanted = plan_.job.job.launcher.start;
    std::string problem = wanted == RankStart::mpirun ? "launcher.start = mpirun" : "";
    for (int i = 0; i < fleet_->size() && problem.empty(); ++i)
      if (const wire::NodeHello* hello = fleet_->hello(i); hello && !hello->pmix_problem.empty())
        problem = fmt::format("{}: {}", fleet_->name(i), hello->pmix_problem);
    if (wanted == RankStart::pmix && !problem.empty())
      throw Error(ErrorCode::kPreflight, fmt::format("launcher.start = pmix does not work on {}", problem));
    if (wanted == RankStart::automatic && problem.empty())
      problem = pmix_start_problem(rank_line(input), fs_, starts_cache_path());
    pmix_ = problem.empty();
    for (int i = 0; i < fleet_->size() && !*pmix_; ++i)
      if (const wire::NodeHello* hello = fleet_->hello(i); hello && !hello->mpirun_problem.empty())
        throw Error(ErrorCode::kPreflight, fmt::format("{}: {}; install OpenMPI there, or leave the node out", fleet_->name(i),
                                                       hello->mpirun_problem));
    log_.event("starter", dump({{"start", *pmix_ ? "pmix" : "mpirun"}, {"reason", problem}}));
    return *pmix_;
  }

  /// Where PMIx was our choice and no rank came to its first step, mpirun may do better.
  void doubt_pmix(const Verdict& v, bool by_pmix) {
    if (!by_pmix || plan_.job.job.launcher.start != RankStart::automatic || !v.before_first_step || !v.lost_nodes.empty()) return;
    if (v.outcome != Verdict::failed || (v.code != ErrorCode::kWorker && v.code != ErrorCode::kHang)) return;
    pmix_ = false;
    log_.event("starter", dump({{"start", "mpirun"}, {"reason", v.cause}}));
  }

  void place_ranks(AttemptOptions& options, const JobSpec& job, const std::vector<std::string>& names) const {
    std::vector<ClusterNode> nodes;
    for (const std::string& name : names) nodes.push_back(plan_.nodes.nodes[size_t(fleet_->find(name))]);
    const PlacementResult placed =
        place(job.mesh(), nodes, {.tensor_across_nodes = job.launcher.tensor_across_nodes});
    if (!placed.ok()) throw Error(ErrorCode::kPreflight, placed.refusal);
    for (const RankRange& range : placed.placement.ranges)
      options.nodes.push_back(
          {.node = fleet_->find(nodes[size_t(range.node)].name), .first = range.first, .count = range.count});
  }

  std::vector<LaunchHost> hosts_of(const AttemptOptions& options) const {
    std::vector<LaunchHost> hosts;
    for (const AttemptOptions::Node& node : options.nodes)
      hosts.push_back(
          {fleet_->hello(node.node) ? fleet_->hello(node.node)->host : fleet_->name(node.node), node.count});
    return hosts;
  }

  /// The one network of all connections of agents, "" where they differ.
  std::string network_of(const AttemptOptions& options) const {
    if (!plan_.job.job.launcher.network.empty()) return plan_.job.job.launcher.network;
    std::string network;
    for (const AttemptOptions::Node& node : options.nodes) {
      const wire::NodeHello* hello = fleet_->hello(node.node);
      if (!hello || (!network.empty() && hello->network != network)) return "";
      network = hello->network;
    }
    return network;
  }

  /// What differs between nodes: the name of the interface that leads to the others.
  void set_networks(AttemptOptions& options, const std::string& network) const {
    if (options.nodes.size() < 2 || !plan_.job.job.launcher.network.empty()) return;
    const auto& given = plan_.job.job.launcher.env;
    const auto is_given = [&](const std::string& name) {
      return std::any_of(given.begin(), given.end(), [&](const auto& variable) { return variable.first == name; });
    };
    for (AttemptOptions::Node& node : options.nodes) {
      const wire::NodeHello* hello = fleet_->hello(node.node);
      if (!hello || hello->interface.empty()) continue;
      // The second "=" asks for that name alone: without it NCCL takes every interface that begins so.
      if (!is_given("NCCL_SOCKET_IFNAME")) node.environment.emplace_back("NCCL_SOCKET_IFNAME", "=" + hello->interface);
      if (network.empty() && !is_given("OMPI_MCA_btl_tcp_if_include"))
        node.environment.emplace_back("OMPI_MCA_btl_tcp_if_include", hello->interface);
    }
  }

  std::string record_failure(const Verdict& v) {
    const json fields = {{"epoch", log_.status().epoch},
                         {"step", log_.status().step},
                         {"code", exit_status(v.code)},
                         {"code_name", name_of(v.code)},
                         {"rank", v.rank},
                         {"cause", v.cause},
                         {"effect", v.effect}};
    log_.event("failure", dump(fields));
    try {
      return collect_failure(fs_, run_, dump(fields), v.rank, plan_.job.job.mesh().world_size());
    } catch (const Error& error) {
      console_.note(fmt::format(" ! what is known of the failure could not be kept: {}", error.what()));
      return run_.file("failures");
    }
  }

  void find_checkpoint(std::optional<int64_t> at_most) {
    std::unique_ptr<ckpt::Checkpoint> checkpoint;
    int skipped = 0;
    if (!at_most || *at_most >= 0)
      checkpoint = ckpt::open_latest(fs_, run_.checkpoints(plan_.job.job), at_most.value_or(-1),
                                     [&](const std::string& path, const std::string& reason) {
                                       ++skipped;
                                       console_.note(fmt::format(" ! {} is skipped: {}", path, reason));
                                     });
    if (!checkpoint) return recovery_.no_checkpoint(skipped);
    resume_from_ = checkpoint->path();
    resume_step_ = checkpoint->state().step;
    recovery_.checkpoint_found(resume_step_);
  }

  const SupervisePlan& plan_;
  const RunDirectory run_;
  FileSystem& fs_;
  Clock& clock_;
  Console& console_;
  RunLog log_;
  RunEnd end_;
  Recovery recovery_;
  OtherStops other_stops_;
  std::string resume_from_;
  int64_t resume_step_ = 0, last_step_ = 0;
  const bool orphans_ = fs_.exists(supervisor_file(run_.path));  ///< a supervisor before did not end its agents
  std::optional<Fleet> fleet_;
  std::vector<AttemptOptions::Node> places_;  ///< of the attempt that runs, or ran last
  bool attached_ = false, requeue_ = false;
  std::optional<bool> pmix_;
  std::map<int, std::string> start_problems_;
  std::set<int> is_up_;  ///< nodes that Recovery knows as ready
  /// From the first sign of a failure to the first step of the next attempt; monotonic times.
  struct Outage {
    std::string cause;  ///< "": there is none
    double evidence_s = 0, ended_s = 0, begun_s = 0, up_s = 0;
  } outage_;
  /// Of this attempt; free_s: since when none ran before it.
  struct {
    double free_s = 0, begun_s = 0, up_s = 0, first_s = 0, last_s = 0;
  } times_;
  std::optional<Verdict> verdict_;  ///< of the last attempt
  std::string failure_folder_, waiting_for_;
  double waiting_since_s_ = 0;
  bool waiting_said_ = false;
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
