#include "runtime/supervise/loop/run_attempts.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "runtime/base/ensure.h"
#include "runtime/base/json.h"
#include "runtime/machine/bundle.h"
#include "runtime/spec/lineage.h"
#include "runtime/supervise/decide/widths.h"
#include "runtime/supervise/history/save_history.h"

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

namespace {

/// Of the override that stage_layers_setting makes; nullopt: it is another.
std::optional<std::vector<int64_t>> stage_layers_of(const std::string& setting) {
  const std::string field = "parallelism.stage_layers=";
  if (!setting.starts_with(field)) return std::nullopt;
  const Json layers = try_parse_json(setting.substr(field.size()));
  if (!layers.is_array()) return std::nullopt;
  return layers.get<std::vector<int64_t>>();
}

}  // namespace

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
  for (const std::string& setting : file.overrides)
    if (auto layers = stage_layers_of(setting)) start.stage_layers = std::move(*layers);
  return start;
}

RunAttempts::RunAttempts(SupervisedRun& run, const Parts& parts)
    : run_(run), parts_(parts), epochs_(run, parts.source, parts.checkpoints), times_(run.log, run.clock) {}

Starter& RunAttempts::starter() {
  if (!starter_) starter_.emplace(run_.plan.job.job.launcher.start, parts_.fleet.fleet(), run_.fs, run_.log);
  return *starter_;
}

AttemptFacts RunAttempts::facts(const StartAttempt& start) const {
  const SupervisePlan& plan = run_.plan;
  AttemptFacts facts{.job = plan.job,
                     .run = run_.directory,
                     .one_machine = plan.nodes.one_machine,
                     .start = start,
                     .begin = parts_.source.state(),
                     .manifest = parts_.source.manifest(),
                     .new_data = parts_.source.has_new_data(),
                     .beginnings = beginnings_of(run_.fs, run_.directory),
                     .lineage_json = lineage_at(plan.lineage_json, parts_.source.step()),
                     .remedies = with(plan.remedies, parts_.loss.remedies()),
                     .disputes = open_disputes(lines_of(run_.fs, run_.directory.events())),
                     .epoch = last_epoch(run_.fs, run_.directory) + 1,
                     .last_step = run_.last_step,
                     .max_steps = plan.max_steps,
                     .matmul_flops_per_s = plan.matmul_flops_per_s,
                     .token = random_token(),
                     .launcher = {.mpirun = plan.mpirun,
                                  .program = plan.program,
                                  .bundle = own_bundle(),
                                  .homeless = !std::getenv("HOME"),
                                  .root = ::geteuid() == 0,
                                  .cross_memory_attach = plan.cross_memory_attach}};
  const Fleet& fleet = parts_.fleet.fleet();
  ENSURE(plan.nodes.nodes.size() == size_t(fleet.size()));
  for (int i = 0; i < fleet.size(); ++i) facts.nodes.push_back({plan.nodes.nodes[size_t(i)], fleet.hello(i)});
  PastSaves past = past_saves(lines_of(run_.fs, run_.directory.events()));
  facts.saves = std::move(past.tiers);
  run_.log.status().save_intervals = std::move(past.intervals);
  return facts;
}

void RunAttempts::begin(const StartAttempt& start, StopSignals& signals) {
  if (!start.step) parts_.source.begin_at_start();
  const AttemptFacts facts = this->facts(start);
  if (!is_reachable(facts)) return parts_.recovery.memory_out_of_reach();
  AttemptPlan plan = plan_attempt(facts);
  if (const std::string note = second_copies_note(plan.weakness, known_weakness_); !note.empty())
    run_.log.console().note(note);
  if (last_) epochs_.restart(start, parts_.recovery.restarts());
  epochs_.begin(plan.limits.ranks);
  parts_.loss.begin(parts_.source.step(), start.step.has_value());
  const bool pmix = starter().by_pmix(plan.launch);
  LaunchLine line = pmix ? rank_line(plan.launch) : mpirun_line(plan.launch);
  run(start, with_start(std::move(plan), pmix, std::move(line)), signals);
}

void RunAttempts::attach(StopSignals& signals) {
  ENSURE(run_.plan.attach && !last_);
  const AttemptFile& file = *run_.plan.attach;
  const StartAttempt start =
      start_of(file, widths_of(run_.plan.job), run_.plan.start ? run_.plan.start->checkpoint : "");
  AttemptPlan plan = plan_attach(facts(start), file);
  epochs_.attach(file);
  run(start, std::move(plan), signals);
}

AttemptHooks RunAttempts::hooks() {
  RunFleet& fleet = parts_.fleet;
  return {.turn =
              [this] {
                run_.lock.turn();
                parts_.checkpoints.turn();
                parts_.quarantine.turn();
                if (const Problem lost = parts_.checkpoints.lost_state(); lost.exists())
                  throw Error(ErrorCode::kDiverged, lost.text());
                parts_.loss.require_not_spent();
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
          .must_hold = run_.lock.check(),
          .regroup = [this] { return text_of(parts_.recovery.regroup(run_.clock.monotonic_s())); },
          .goes_back = [this] { return parts_.loss.pending().has_value(); }};
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

void RunAttempts::run(const StartAttempt& start, AttemptPlan plan, StopSignals& signals) {
  times_.begun();
  parts_.recovery.attempt_started(start, run_.clock.monotonic_s());
  doubt_.reset();
  places_ = plan.nodes;
  keeps_other_meshes_ = parts_.source.state().memory.has_value();
  const bool by_pmix = plan.pmix;
  const AttemptResult result = run_attempt(std::move(plan), hooks(), parts_.fleet.fleet(), run_.directory,
                                           run_.fs, run_.clock, run_.log, signals);
  run_.lock.must_hold();
  run_.log.await_files();
  parts_.fleet.listen();
  ended(result, by_pmix);
}

/// A run that has come to its end goes back, too: what it decided must not depend on how fast its ranks were.
bool RunAttempts::went_back(const AttemptResult& result) {
  const auto back = parts_.loss.pending();
  if (!back) return false;
  parts_.recovery.go_back(back->at_most, back->may_begin_again, back->why);
  const bool goes = result.went_back || result.verdict.outcome == Verdict::finished;
  // Until the next epoch begins: for newer ones, what it goes back to would be removed.
  if (goes) parts_.checkpoints.pause();
  return goes;
}

bool RunAttempts::doubt_state() {
  doubt_ = back_to_verified(lines_of(run_.fs, run_.directory.events()),
                            [this] { return lines_of(run_.fs, run_.directory.metrics()); });
  if (!doubt_) return false;
  parts_.recovery.go_back(doubt_->at_most, doubt_->may_begin_again, doubt_->why);
  parts_.recovery.or_back_to(std::max(doubt_->at_most, doubt_->doubt - 1));
  run_.log.console().note(" ! " + doubt_->why);
  return true;
}

void RunAttempts::not_gone_back(int64_t at_most) {
  if (!doubt_ || at_most < doubt_->at_most) return;
  const std::string text = not_verified_text(*doubt_);
  run_.log.event(EventKind::state_not_verified, dump_json(Json{{"step", doubt_->doubt}, {"text", text}}));
  doubt_.reset();
  run_.log.console().note(" ! " + text);
}

void RunAttempts::ended(const AttemptResult& result, bool by_pmix) {
  const Verdict& verdict = result.verdict;
  parts_.loss.require_not_spent();
  AttemptEnd end = end_of(verdict, result.regrouped);
  const bool back = went_back(result);
  if (back) end.how = AttemptEnd::went_back;
  // Until the next epoch begins: for newer checkpoints, what it goes back to would be removed.
  if (verdict.outcome == Verdict::failed && doubt_state()) parts_.checkpoints.pause();
  end.is_undecided = verdict.outcome == Verdict::failed && verdict.code == ErrorCode::kHardware &&
                     is_undecided(lines_of(run_.fs, run_.directory.events()));
  for (const AttemptPlan::Node& place : places_)
    if (verdict.rank >= place.first && verdict.rank < place.first + place.count) end.node = place.name;
  if (verdict.start_node >= 0) {
    end.node = places_[size_t(verdict.start_node)].name;
    end.start_failed = true;
  }
  starter().doubt(verdict, by_pmix);
  parts_.quarantine.tell();
  times_.ended(verdict, result);
  last_ = {.verdict = verdict, .failure_folder = "", .went_back = back};
  if (verdict.outcome == Verdict::failed) last_->failure_folder = parts_.end.record_failure(verdict);
  parts_.recovery.attempt_ended(end, run_.clock.monotonic_s());
}

}  // namespace trainctl
