#include "runtime/supervise/loop/run_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ckpt/folders.h"
#include "ckpt/memory_folder.h"
#include "ckpt/open_part.h"
#include "runtime/base/error.h"
#include "runtime/run/wire/folder_pieces.h"
#include "runtime/supervise/loop/run_epochs.h"

namespace trainctl {
namespace {

constexpr double kAskTurnS = 0.1;

}  // namespace

RunSource::RunSource(SupervisedRun& run) : run_(run) {
  const SupervisePlan& plan = run.plan;
  if (plan.resume_memory)
    state_ = {.step = plan.resume_step, .memory = plan.resume_memory};
  else
    state_ = checkpoint_in(plan.resume_from, plan.resume_step, plan.resume_from_store);
}

BeginFrom RunSource::checkpoint_in(std::string folder, int64_t step, bool from_store) const {
  const bool of_parent = run_.plan.start && folder == run_.plan.start->checkpoint;
  return {.step = step, .folder = std::move(folder), .of_parent = of_parent, .from_store = from_store};
}

void RunSource::begin_at_start() {
  state_ = run_.plan.start ? checkpoint_in(run_.plan.start->checkpoint, run_.plan.start->step, false)
                           : BeginFrom{};
}

void RunSource::find(const FindCheckpoint& find, RunCheckpoints::Found found, std::vector<NodePieces> memory,
                     int64_t newest_step, const std::vector<std::string>& events, Recovery& recovery) {
  const auto identity = read_identity(run_.fs, run_.directory);
  const std::vector<Suspect> suspects = suspect_checkpoints(events);
  SourceQuestion question =
      source_question(run_.fs, run_.directory, identity ? identity->run_id : "", suspects,
                      std::min(find.at_most.value_or(newest_step), newest_step));
  question.refused = find.refused;
  question.memory = std::move(memory);
  if (found.checkpoint) question.directory_step = found.checkpoint->state().step;
  const SourceChoice choice = choose_source(question);
  for (const std::string& why : choice.passed_over) run_.log.console().note(" ! " + why);
  record_suspects(choice, suspects, found);
  if (!choice.source) {
    state_.memory.reset();
    return recovery.no_checkpoint(int(found.skipped.size()));
  }
  const int64_t step = choice.source->state.step;
  if (choice.source->tier == Tier::memory) {
    state_ = {.step = step, .memory = choice.source};
    return recovery.checkpoint_found(step, choice.source->state);
  }
  ENSURE(found.checkpoint);  // choose_source takes the directory's state only where there is one
  const bool is_same = state_.from_store && found.checkpoint->path() == state_.folder;
  state_ = checkpoint_in(found.checkpoint->path(), step, found.from_store || is_same);
  recovery.checkpoint_found(step);
}

void RunSource::record_suspects(const SourceChoice& choice, const std::vector<Suspect>& suspects,
                                const RunCheckpoints::Found& found) const {
  for (const Suspect& suspect : suspects) {
    const auto& steps = choice.doubted_steps;
    if (std::find(steps.begin(), steps.end(), suspect.step) == steps.end()) continue;
    const std::pair event{EventKind::checkpoint_suspect, suspect.event_json()};
    // Of the directory's checkpoint of this step it is recorded already.
    if (std::find(found.events.begin(), found.events.end(), event) == found.events.end())
      run_.log.event(event.first, event.second);
  }
}

int64_t RunSource::durable_step() const {
  if (!state_.memory) return state_.folder.empty() || state_.of_parent ? -1 : state_.step;
  const auto steps = ckpt::list_steps(run_.fs, run_.directory.checkpoints(run_.plan.job.job.checkpoint));
  const auto newest =
      std::find_if(steps.begin(), steps.end(), [&](int64_t step) { return step <= state_.step; });
  return newest == steps.end() ? -1 : *newest;
}

std::string RunSource::manifest() const {
  if (state_.folder.empty()) return "";
  try {
    return ckpt::manifest_sha256(*ckpt::stored_folder(run_.fs, state_.folder));
  } catch (const Error&) {
    return "";  // COMMIT cannot be read: the ranks report why
  }
}

std::vector<Beginning> beginnings_of(FileSystem& fs, const RunDirectory& run) {
  const auto newest = newest_attempt(fs, run);
  return newest ? newest->file.beginnings : std::vector<Beginning>{};
}

SourceQuestion source_question(FileSystem& fs, const RunDirectory& run, const std::string& run_id,
                               const std::vector<Suspect>& suspects, int64_t newest_step) {
  return {.run_id = run_id,
          .beginnings = beginnings_of(fs, run),
          .at_most = newest_step,
          .refused = {},
          .doubted = doubted_states(suspects),
          .memory = {},
          .directory_step = {}};
}

void forget_other_meshes(Fleet& fleet, const std::vector<AttemptPlan::Node>& places, uint64_t epoch) {
  int ranks = 0;
  for (const AttemptPlan::Node& place : places) ranks += place.count;
  for (const AttemptPlan::Node& place : places)
    fleet.machine(place.node).order({.kind = wire::Kind::keep_only, .epoch = epoch, .number = ranks});
}

std::vector<NodePieces> ask_for_pieces(Fleet& fleet, Clock& clock, double limit_s,
                                       const Fleet::Handler& handler, const std::function<void()>& turn) {
  // A number of its own: an answer to an earlier question may come late.
  const auto number = int64_t(clock.monotonic_s() * 1e6);
  std::vector<NodePieces> answers;
  std::set<int> asked;
  Fleet::Handler listening = handler;
  listening.lost = [&](int node, const NodeLoss& loss) {
    asked.erase(node);
    if (handler.lost) handler.lost(node, loss);
  };
  listening.message = [&](int node, wire::Message&& message) {
    if (message.kind != wire::Kind::pieces || message.number != number) return;
    asked.erase(node);
    answers.push_back({fleet.name(node), wire::PiecesAnswer::from_json(message.payload).pieces});
  };
  fleet.set_handler(listening);
  for (int node = 0; node < fleet.size(); ++node) {
    if (!fleet.hello(node)) continue;
    asked.insert(node);
    fleet.machine(node).order({.kind = wire::Kind::pieces, .number = number});
  }
  const double until_s = clock.monotonic_s() + limit_s;
  while (!asked.empty() && clock.monotonic_s() < until_s) {
    const double left_s = std::min(until_s, fleet.deadline_s()) - clock.monotonic_s();
    fleet.await(std::min(left_s, kAskTurnS));
    turn();
    fleet.serve();
  }
  fleet.set_handler(handler);
  return answers;
}

NodePieces pieces_here(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs) {
  const std::string& node = plan.nodes.nodes.front().name;
  return {node, wire::folder_pieces(fs, ckpt::memory_folder_path(run.path, node))};
}

}  // namespace trainctl
