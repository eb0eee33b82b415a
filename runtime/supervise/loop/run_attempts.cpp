#include "runtime/supervise/loop/run_attempts.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "runtime/base/ensure.h"
#include "runtime/machine/bundle.h"
#include "runtime/supervise/decide/widths.h"
#include "runtime/supervise/loop/attempt_places.h"
#include "runtime/supervise/loop/run_quarantine.h"

namespace trainctl {
namespace {

AttemptEnd::How how_of(const Verdict& verdict, bool regrouped) {
  switch (verdict.outcome) {
    case Verdict::finished: return AttemptEnd::finished;
    case Verdict::stopped: return regrouped ? AttemptEnd::regrouped : AttemptEnd::stopped;
    case Verdict::aborted: return AttemptEnd::aborted;
    case Verdict::failed: return AttemptEnd::failed;
  }
  return AttemptEnd::failed;
}

}  // namespace

AttemptEnd end_of(const Verdict& verdict, bool regrouped) {
  return {
      .how = how_of(verdict, regrouped), .code = verdict.code, .cause = verdict.cause, .rank = verdict.rank};
}

std::string second_copies_note(const Problem& weakness, std::string& known) {
  const std::string before = std::exchange(known, weakness.text_or_empty());
  if (known == before) return "";
  return "   second copies of the memory of nodes: " + (known.empty() ? "no such weakness any more" : known);
}

StartAttempt start_of(const AttemptFile& file, const std::vector<Width>& widths,
                      const std::string& parent_checkpoint) {
  ENSURE(!widths.empty());
  StartAttempt start{.width = widths.front()};
  if (file.memory) {
    start.step = file.memory->step;
    start.in_memory = {file.memory->step, file.memory->epoch};
  } else if (!file.resume_from.empty() && file.resume_from != parent_checkpoint && !file.beginnings.empty()) {
    start.step = file.beginnings.back().step;
  }
  int ranks = 0;
  for (const AttemptFile::Node& node : file.nodes) {
    start.nodes.push_back(node.name);
    ranks += node.count;
  }
  for (const Width& width : widths)
    if (width.ranks == ranks) start.width = width;
  return start;
}

RunAttempts::RunAttempts(SupervisedRun& run, const Parts& parts)
    : run_(run), parts_(parts), epochs_(run, parts.source, parts.checkpoints), times_(run.log, run.clock) {}

Starter& RunAttempts::starter() {
  if (!starter_) starter_.emplace(run_.plan.job.job.launcher.start, parts_.fleet.fleet(), run_.fs, run_.log);
  return *starter_;
}

LaunchInput RunAttempts::launch_input(const AttemptOptions& options) const {
  const Fleet& fleet = parts_.fleet.fleet();
  const JobSpec& job = run_.plan.job.job;
  return {.env = job.launcher.env,
          .nccl_buffer_kib = job.parallelism.nccl.buffer_kib,
          .hosts = hosts_of(options, fleet),
          .network = network_of(options, run_.plan, fleet),
          .world_size = options.limits.ranks,
          .mpirun = run_.plan.mpirun,
          .program = run_.plan.program,
          .run_directory = run_.directory.path,
          .session_folder = options.session_folder,
          .shared_memory_folder = options.shared_memory_folder,
          .bundle = own_bundle(),
          .homeless = !std::getenv("HOME"),
          .root = ::geteuid() == 0,
          .cross_memory_attach = run_.plan.cross_memory_attach};
}

void RunAttempts::begin(const StartAttempt& start, StopSignals& signals) {
  const Fleet& fleet = parts_.fleet.fleet();
  const ParallelSpec parallelism = at_width(run_.plan.job, start.width).job.parallelism;
  if (!start.step) parts_.source.begin_at_start();
  AttemptOptions options = epochs_.options(parallelism);
  place_ranks(options, run_.plan, fleet, parallelism.mesh(), start.nodes);
  if (!parts_.source.is_reachable(fleet)) return parts_.recovery.memory_out_of_reach();
  options.holders = parts_.source.holders(fleet);
  const Problem weakness = place_second_copies(options, run_.plan, parallelism.mesh());
  if (const std::string note = second_copies_note(weakness, known_weakness_); !note.empty())
    run_.log.console().note(note);
  if (last_) epochs_.restart(start, parts_.recovery.restarts());
  epochs_.begin(options.limits.ranks);
  const LaunchInput input = launch_input(options);
  options.pmix = starter().by_pmix(input);
  options.line = options.pmix ? rank_line(input) : mpirun_line(input);
  set_networks(options, run_.plan, fleet, input.network);
  options.file.overrides = overrides_of(run_.plan.job, start.width);
  times_.begun();
  parts_.recovery.attempt_started(start, run_.clock.monotonic_s());
  run(std::move(options), signals);
}

void RunAttempts::attach(StopSignals& signals) {
  ENSURE(run_.plan.attach && !last_);
  const AttemptFile& file = *run_.plan.attach;
  const StartAttempt start =
      start_of(file, widths_of(run_.plan.job), run_.plan.start ? run_.plan.start->checkpoint : "");
  AttemptOptions options = epochs_.options(at_width(run_.plan.job, start.width).job.parallelism);
  options.attach = true;
  options.pmix = file.pmix;
  options.file = file;
  options.nodes = places_of(parts_.fleet.fleet(), file);
  epochs_.attach(file);
  times_.begun();
  parts_.recovery.attempt_started(start, run_.clock.monotonic_s());
  run(std::move(options), signals);
}

AttemptHooks RunAttempts::hooks() {
  RunFleet& fleet = parts_.fleet;
  return {.turn =
              [this] {
                run_.lock.turn();
                parts_.checkpoints.turn();
                if (const Problem lost = parts_.checkpoints.lost_state(); lost.exists())
                  throw Error(ErrorCode::kDiverged, lost.text());
              },
          .node_up = [&fleet](int node) { fleet.node_up(node); },
          .node_lost =
              [this](int node, const NodeLoss& loss) {
                parts_.fleet.node_lost(node, loss, runs_ranks(places_, node));
              },
          .start_failed =
              [this](int node, const std::string& why) {
                if (!run_.plan.nodes.one_machine) parts_.fleet.start_failed(node, why);
              },
          .all_present = [this] { times_.all_present(); },
          .progressed = [this](int64_t step) { progressed(step); },
          .saved = [this](int64_t step) { parts_.recovery.saved(step), parts_.checkpoints.published(); },
          .regroup = [this] { return text_of(parts_.recovery.regroup(run_.clock.monotonic_s())); }};
}

void RunAttempts::progressed(int64_t step) {
  parts_.recovery.progressed(step);
  // What the ranks began from is needed until all of them hold something newer, or it is saved.
  const RunStatus& status = run_.log.status();
  if (keeps_other_meshes_ && std::max(status.staged_step, status.saved_step) > parts_.source.step()) {
    keeps_other_meshes_ = false;
    forget_other_meshes(parts_.fleet.fleet(), places_, status.epoch);
  }
  times_.stepped();
}

void RunAttempts::run(AttemptOptions options, StopSignals& signals) {
  places_ = options.nodes;
  keeps_other_meshes_ = parts_.source.memory().has_value();
  const bool by_pmix = options.pmix;
  options.hooks = hooks();
  const AttemptResult result = run_attempt(std::move(options), parts_.fleet.fleet(), run_.directory, run_.fs,
                                           run_.clock, run_.log, signals);
  run_.lock.must_hold();
  run_.log.await_files();
  parts_.fleet.listen();
  ended(result, by_pmix);
}

void RunAttempts::ended(const AttemptResult& result, bool by_pmix) {
  const Verdict& verdict = result.verdict;
  AttemptEnd end = end_of(verdict, result.regrouped);
  for (const AttemptOptions::Node& place : places_)
    if (verdict.rank >= place.first && verdict.rank < place.first + place.count)
      end.node = parts_.fleet.fleet().name(place.node);
  if (verdict.start_node >= 0) {
    end.node = parts_.fleet.fleet().name(places_[size_t(verdict.start_node)].node);
    end.start_failed = true;
  }
  starter().doubt(verdict, by_pmix);
  tell_quarantine(run_.plan, run_.fs, run_.clock, parts_.recovery, run_.log);
  times_.ended(verdict, result);
  last_ = {.verdict = verdict, .failure_folder = ""};
  if (verdict.outcome == Verdict::failed) last_->failure_folder = parts_.end.record_failure(verdict);
  parts_.recovery.attempt_ended(end, run_.clock.monotonic_s());
}

}  // namespace trainctl
