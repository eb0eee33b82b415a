#include "runtime/supervise/loop/run_source.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "ckpt/folders.h"
#include "ckpt/memory_folder.h"
#include "ckpt/open_part.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/run/wire/folder_pieces.h"

namespace trainctl {

RunSource::RunSource(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, RunLog& log)
    : plan_(plan),
      run_(run),
      fs_(fs),
      log_(log),
      folder_(plan.resume_memory ? "" : plan.resume_from),
      from_store_(plan.resume_from_store),
      memory_(plan.resume_memory),
      step_(plan.resume_step) {}

void RunSource::begin_at_start() {
  memory_.reset();
  from_store_ = false;
  folder_ = plan_.start ? plan_.start->checkpoint : "";
  step_ = plan_.start ? plan_.start->step : 0;
}

void RunSource::find(const FindCheckpoint& find, RunCheckpoints::Found found, std::vector<NodePieces> memory,
                     int64_t newest_step, const std::vector<std::string>& events, Recovery& recovery) {
  const auto identity = read_identity(fs_, run_);
  const std::vector<Suspect> suspects = suspect_checkpoints(events);
  SourceQuestion question{.run_id = identity ? identity->run_id : "",
                          .beginnings = beginnings_of(fs_, run_),
                          .at_most = std::min(find.at_most.value_or(newest_step), newest_step),
                          .refused = find.refused,
                          .doubted = doubted_states(suspects),
                          .memory = std::move(memory)};
  if (found.checkpoint) question.directory_step = found.checkpoint->state().step;
  const SourceChoice choice = choose_source(question);
  for (const std::string& why : choice.passed_over) log_.console().note(" ! " + why);
  record_suspects(choice, suspects, found);
  if (!choice.source) {
    memory_.reset();
    return recovery.no_checkpoint(int(found.skipped.size()));
  }
  step_ = choice.source->state.step;
  const bool is_same = from_store_ && found.checkpoint && found.checkpoint->path() == folder_;
  from_store_ = (found.from_store || is_same) && choice.source->tier == Tier::directory;
  if (choice.source->tier == Tier::memory) {
    memory_ = choice.source;
    folder_.clear();
    return recovery.checkpoint_found(step_, choice.source->state);
  }
  memory_.reset();
  ENSURE(found.checkpoint);  // choose_source takes the directory's state only where there is one
  folder_ = found.checkpoint->path();
  recovery.checkpoint_found(step_);
}

void RunSource::record_suspects(const SourceChoice& choice, const std::vector<Suspect>& suspects,
                                const RunCheckpoints::Found& found) const {
  for (const Suspect& suspect : suspects) {
    const auto& steps = choice.doubted_steps;
    if (std::find(steps.begin(), steps.end(), suspect.step) == steps.end()) continue;
    const std::pair event{EventKind::checkpoint_suspect, suspect.event_json()};
    // Of the directory's checkpoint of this step it is recorded already.
    if (std::find(found.events.begin(), found.events.end(), event) == found.events.end())
      log_.event(event.first, event.second);
  }
}

std::string RunSource::text() const {
  if (memory_) {
    const std::set<std::string> nodes(memory_->nodes.begin(), memory_->nodes.end());
    return fmt::format("step {}, from the memory of {}", step_, count_of(int64_t(nodes.size()), "node"));
  }
  if (at_start()) return folder_;
  return folder_.empty() ? "step 0: there is no checkpoint" : fmt::format("checkpoint step {}", step_);
}

std::string RunSource::tier() const {
  if (memory_) return std::string(word_of(Tier::memory));
  if (from_store_) return std::string(word_of(Tier::store));
  return folder_.empty() ? "" : std::string(word_of(Tier::directory));
}

namespace {

/// Where `node` lets others read its pieces; null: it is not there, or has no server.
const wire::PieceServerAddress* server_of(const Fleet& fleet, const std::string& node) {
  const int index = fleet.find(node);
  const wire::NodeHello* hello = index < 0 ? nullptr : fleet.hello(index);
  return hello && hello->pieces.exists() ? &hello->pieces : nullptr;
}

}  // namespace

bool RunSource::is_reachable(const Fleet& fleet) const {
  if (!memory_ || plan_.nodes.one_machine) return true;
  return std::all_of(memory_->nodes.begin(), memory_->nodes.end(),
                     [&](const std::string& node) { return server_of(fleet, node) != nullptr; });
}

std::vector<wire::PieceHolder> RunSource::holders(const Fleet& fleet) const {
  if (!memory_ || plan_.nodes.one_machine) return {};
  std::map<std::string, wire::PieceHolder> first, others;
  const auto add = [](wire::PieceHolder& holder, const wire::PieceServerAddress& server, int rank) {
    holder.server = server;
    if (!holder.ranks.empty() && holder.ranks.back().first + holder.ranks.back().count == rank)
      ++holder.ranks.back().count;
    else
      holder.ranks.push_back({rank, 1});
  };
  ENSURE(memory_->nodes.size() == size_t(memory_->ranks), "{} nodes for {} ranks", memory_->nodes.size(),
         memory_->ranks);
  for (int rank = 0; rank < memory_->ranks; ++rank) {
    const std::string& node = memory_->nodes[size_t(rank)];
    const wire::PieceServerAddress* const server = server_of(fleet, node);
    ENSURE(server, "the piece of rank {} is not reachable", rank);  // is_reachable() was asked before
    add(first[node], *server, rank);
  }
  std::vector<std::pair<int, std::string>> further = memory_->others;
  std::sort(further.begin(), further.end());
  for (const auto& [rank, node] : further)
    if (const wire::PieceServerAddress* server = server_of(fleet, node)) add(others[node], *server, rank);
  std::vector<wire::PieceHolder> list;
  for (auto* holders : {&first, &others})  // a rank takes the first that it finds
    for (auto& [node, holder] : *holders) list.push_back(std::move(holder));
  return list;
}

int64_t RunSource::durable_step() const {
  if (!memory_) return folder_.empty() || at_start() ? -1 : step_;
  const auto steps = ckpt::list_steps(fs_, run_.checkpoints(plan_.job.job.checkpoint));
  const auto newest = std::find_if(steps.begin(), steps.end(), [&](int64_t step) { return step <= step_; });
  return newest == steps.end() ? -1 : *newest;
}

namespace {

/// The manifest that the ranks must find in `folder`; "" where COMMIT cannot be read: they report why.
std::string manifest_in(FileSystem& fs, const std::string& folder) {
  if (folder.empty()) return "";
  try {
    return ckpt::manifest_sha256(*ckpt::stored_folder(fs, folder));
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

void RunSource::put_into(AttemptFile& file) const {
  ENSURE(file.epoch > 0);
  ENSURE(!memory_ || folder_.empty(), "a state in memory and in {}", folder_);
  file.resume_from = folder_;
  file.resume_manifest = manifest_in(fs_, folder_);
  file.from_store = from_store_;
  file.new_data = at_start() && plan_.start->new_data;
  file.beginnings = with_beginning(beginnings_of(fs_, run_), {file.epoch, step_});
  if (memory_)
    file.memory = MemoryState{.step = step_,
                              .epoch = memory_->state.epoch,
                              .ranks = memory_->ranks,
                              .whole = plan_.nodes.one_machine};
}

std::vector<Beginning> beginnings_of(FileSystem& fs, const RunDirectory& run) {
  const auto newest = newest_attempt(fs, run);
  return newest ? newest->file.beginnings : std::vector<Beginning>{};
}

void forget_other_meshes(Fleet& fleet, const std::vector<AttemptOptions::Node>& places, uint64_t epoch) {
  int ranks = 0;
  for (const AttemptOptions::Node& place : places) ranks += place.count;
  for (const AttemptOptions::Node& place : places)
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
    pollfd fd{.fd = fleet.fd(), .events = POLLIN, .revents = 0};
    ::poll(&fd, 1, int(std::ceil(std::clamp(left_s, 0.0, 0.1) * 1000)));
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
