#include "runtime/supervise/decide/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "runtime/base/ensure.h"
#include "runtime/base/problem.h"
#include "runtime/base/text.h"

namespace trainctl {
namespace {

/// The pieces of one (step, epoch, ranks).
struct Set {
  StateId state;
  int ranks = 0;
  std::map<int, std::pair<std::string, uint64_t>> whole;  // rank -> node and bytes
  std::vector<std::pair<int, std::string>> others;        // rank and node: further whole pieces
  std::map<int, std::string> damaged;                     // rank -> why

  std::string name() const { return fmt::format("step {} in memory", state.step); }
};

/// Newest first; of one step the latest epoch, then the set of more ranks.
std::vector<Set> sets_of(const SourceQuestion& question) {
  std::map<std::tuple<StateId, int>, Set> sets;
  for (const NodePieces& node : question.memory)
    for (const wire::HeldPiece& piece : node.pieces) {
      if (piece.run_id != question.run_id || piece.ranks < 1 || piece.rank < 0 || piece.rank >= piece.ranks)
        continue;
      const StateId state{piece.step, piece.epoch};
      Set& set = sets[{state, piece.ranks}];
      set.state = state;
      set.ranks = piece.ranks;
      if (!piece.problem.empty())
        set.damaged.try_emplace(piece.rank, piece.problem);
      else if (!set.whole.try_emplace(piece.rank, node.node, piece.bytes).second)
        set.others.emplace_back(piece.rank, node.node);
    }
  std::vector<Set> newest_first;
  for (auto at = sets.rbegin(); at != sets.rend(); ++at) newest_first.push_back(std::move(at->second));
  return newest_first;
}

/// Why the set cannot be used. Sets that are no part of the run's line need no words.
Problem problem_of(const Set& set, const SourceQuestion& question) {
  if (std::find(question.refused.begin(), question.refused.end(), set.state) != question.refused.end())
    return Problem(fmt::format("{} is passed over: it could not be loaded", set.name()));
  if (int(set.whole.size()) == set.ranks) return Problem::none();
  for (const auto& [rank, why] : set.damaged)
    if (!set.whole.contains(rank))
      return Problem(
          fmt::format("{} is passed over: the piece of rank {} is damaged: {}", set.name(), rank, why));
  int missing = 0;
  while (set.whole.contains(missing)) ++missing;
  return Problem(
      fmt::format("{} is passed over: no node has the piece of rank {}, and {} of {} pieces are there",
                  set.name(), missing, set.whole.size(), set.ranks));
}

/// Null: it is not doubted.
const DoubtedState* doubt_about(const Set& set, const SourceQuestion& question) {
  for (const DoubtedState& doubted : question.doubted)
    if (doubted.step == set.state.step && set.state.epoch < doubted.epoch) return &doubted;
  return nullptr;
}

Source source_of(const Set& set) {
  ENSURE(int(set.whole.size()) == set.ranks, "{} of {} pieces", set.whole.size(), set.ranks);
  Source source{.tier = Tier::memory, .state = set.state, .ranks = set.ranks, .others = set.others};
  for (const auto& [rank, piece] : set.whole) {
    source.nodes.push_back(piece.first);
    source.bytes += piece.second;
  }
  return source;
}

}  // namespace

std::string BeginFrom::text() const {
  if (memory) {
    const std::set<std::string> nodes(memory->nodes.begin(), memory->nodes.end());
    return fmt::format("step {}, from the memory of {}", step, count_of(int64_t(nodes.size()), "node"));
  }
  if (of_parent) return folder;
  return folder.empty() ? "step 0: there is no checkpoint" : fmt::format("checkpoint step {}", step);
}

std::string BeginFrom::tier() const {
  if (memory) return std::string(word_of(Tier::memory));
  if (from_store) return std::string(word_of(Tier::store));
  return folder.empty() ? "" : std::string(word_of(Tier::directory));
}

bool in_line(const std::vector<Beginning>& beginnings, StateId state) {
  const auto first = std::min_element(beginnings.begin(), beginnings.end(),
                                      [](const auto& a, const auto& b) { return a.epoch < b.epoch; });
  if (first == beginnings.end() || state.epoch < first->epoch) return false;
  return std::all_of(beginnings.begin(), beginnings.end(), [&](const Beginning& beginning) {
    return beginning.epoch <= state.epoch || beginning.step >= state.step;
  });
}

std::vector<Beginning> with_beginning(std::vector<Beginning> beginnings, Beginning next) {
  // An earlier epoch that began later says nothing more than this one, but the first epoch is kept: it says
  // how old pieces may be.
  for (size_t i = beginnings.size(); i-- > 1;)
    if (beginnings[i].step >= next.step) beginnings.erase(beginnings.begin() + ptrdiff_t(i));
  beginnings.push_back(next);
  return beginnings;
}

std::optional<int64_t> store_newer_than(std::optional<int64_t> directory_step, bool is_resume) {
  if (directory_step && !is_resume) return std::nullopt;
  return directory_step.value_or(-1);
}

SourceChoice choose_source(const SourceQuestion& question) {
  SourceChoice choice;
  const int64_t directory_step = question.directory_step.value_or(-1);
  std::optional<Source> doubted;
  for (const Set& set : sets_of(question)) {
    if (question.at_most && set.state.step > *question.at_most) continue;
    if (set.state.step < directory_step || !in_line(question.beginnings, set.state)) continue;
    if (const Problem problem = problem_of(set, question); problem.exists()) {
      choice.passed_over.push_back(problem.text());
      continue;
    }
    if (const DoubtedState* doubt = doubt_about(set, question)) {
      choice.passed_over.push_back(fmt::format("{} is passed over: {}", set.name(), doubt->why));
      choice.doubted_steps.push_back(set.state.step);
      if (!doubted) doubted = source_of(set);
      continue;
    }
    choice.source = source_of(set);
    return choice;
  }
  if (question.directory_step)
    choice.source = Source{.tier = Tier::directory, .state = {.step = *question.directory_step}};
  else if (doubted) {
    choice.source = std::move(doubted);  // better than none
    choice.passed_over.push_back(fmt::format("step {} in memory is used all the same: there is no older state",
                                             choice.source->state.step));
  }
  return choice;
}

}  // namespace trainctl
