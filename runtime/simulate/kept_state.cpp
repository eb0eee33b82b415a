#include "runtime/simulate/kept_state.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl::simulate {
namespace {

constexpr const char* kRun = "simulated";

}  // namespace

void KeptStates::begins(uint64_t epoch, int64_t step) {
  beginnings_ = with_beginning(std::move(beginnings_), {epoch, step});
  // The run goes on from here: later checkpoints are set aside.
  std::erase_if(published_, [&](int64_t saved) { return saved > step; });
}

void KeptStates::copied(StateId state, bool second) {
  std::erase_if(copies_, [&](const Copies& copies) { return copies.second == second; });
  copies_.push_back({state, second, {}});
}

void KeptStates::lose(int place) {
  for (Copies& copies : copies_) copies.lost.insert(place);
}

void KeptStates::forget_memory() { copies_.clear(); }

void KeptStates::published(int64_t step) {
  if (!published_.empty() && step <= published_.back()) return;
  published_.push_back(step);
  const size_t newest = size_t(options_.keep_last);
  if (published_.size() <= newest) return;
  const auto oldest = published_.end() - 1 - ptrdiff_t(newest);
  if (options_.keep_every <= 0 || *oldest % options_.keep_every != 0) published_.erase(oldest);
}

/// A piece for all places that are sound, and one for each place that was lost since.
std::vector<NodePieces> KeptStates::pieces() const {
  std::vector<NodePieces> nodes{{"sound", {}}};
  for (const Copies& copies : copies_) {
    const int ranks = 1 + int(copies.lost.size());
    const auto piece = [&](int rank) {
      return wire::HeldPiece{.step = copies.state.step,
                             .epoch = copies.state.epoch,
                             .rank = rank,
                             .ranks = ranks,
                             .run_id = kRun};
    };
    nodes.front().pieces.push_back(piece(0));
    int rank = 0;
    for (const int place : copies.lost) {
      ++rank;
      if (!copies.second || size_t(place) >= options_.partners.size()) continue;
      const int partner = options_.partners[size_t(place)];
      if (!copies.lost.contains(partner)) nodes.front().pieces.push_back(piece(rank));
    }
  }
  return nodes;
}

KeptStates::Choice KeptStates::choose(std::optional<int64_t> at_most,
                                      const std::vector<StateId>& refused) const {
  SourceQuestion question{
      .run_id = kRun, .beginnings = beginnings_, .at_most = at_most, .refused = refused, .memory = pieces()};
  for (const int64_t step : published_)
    if (!at_most || step <= *at_most) question.directory_step = step;
  const std::optional<Source> source = choose_source(question).source;
  if (!source) return {};
  if (source->tier != Tier::memory) return {LoadFrom::directory, source->state};
  const auto used = std::find_if(copies_.begin(), copies_.end(), [&](const Copies& copies) {
    return copies.state == source->state && int(copies.lost.size()) + 1 == source->ranks;
  });
  ENSURE(used != copies_.end(), "step {}", source->state.step);
  return {used->lost.empty() ? LoadFrom::memory : LoadFrom::partner, source->state};
}

}  // namespace trainctl::simulate
