#include "data/split_pieces.h"

#include <algorithm>

namespace trainctl::data {
namespace {

std::vector<Stretch> find_all(std::string_view text, std::string_view wanted) {
  std::vector<Stretch> stretches;
  size_t done = 0;
  for (size_t at = text.find(wanted); at != text.npos; at = text.find(wanted, done)) {
    if (at > done) stretches.push_back({done, at, false});
    done = at + wanted.size();
    stretches.push_back({at, done, true});
  }
  if (done < text.size()) stretches.push_back({done, text.size(), false});
  return stretches;
}

/// Joins each match to the piece on its left, unless that is a match, too.
std::vector<Stretch> joined_to_previous(const std::vector<Stretch>& stretches) {
  std::vector<Stretch> pieces;
  bool after_match = false;
  for (const Stretch& s : stretches) {
    if (s.is_match && !after_match && !pieces.empty())
      pieces.back().end = s.end;
    else
      pieces.push_back(s);
    after_match = s.is_match;
  }
  return pieces;
}

/// The same from right to left.
std::vector<Stretch> joined_to_next(const std::vector<Stretch>& stretches) {
  std::vector<Stretch> pieces;
  bool before_match = false;
  for (auto s = stretches.rbegin(); s != stretches.rend(); ++s) {
    if (s->is_match && !before_match && !pieces.empty())
      pieces.back().begin = s->begin;
    else
      pieces.push_back(*s);
    before_match = s->is_match;
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<Stretch> joined_where_equal(const std::vector<Stretch>& stretches) {
  std::vector<Stretch> pieces;
  for (const Stretch& s : stretches) {
    if (!pieces.empty() && pieces.back().is_match == s.is_match)
      pieces.back().end = s.end;
    else
      pieces.push_back(s);
  }
  return pieces;
}

std::vector<Stretch> without_matches(std::vector<Stretch> stretches) {
  stretches.erase(
      std::remove_if(stretches.begin(), stretches.end(), [](const Stretch& s) { return s.is_match; }),
      stretches.end());
  return stretches;
}

std::vector<Stretch> pieces_of(std::vector<Stretch> stretches, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::removed: return without_matches(std::move(stretches));
    case SplitBehavior::isolated: return stretches;
    case SplitBehavior::merged_with_previous: return joined_to_previous(stretches);
    case SplitBehavior::merged_with_next: return joined_to_next(stretches);
    case SplitBehavior::contiguous: return joined_where_equal(stretches);
  }
  return stretches;
}

}  // namespace

std::optional<KnownPattern> scanner_of(const std::vector<PieceStage>& stages) {
  if (stages.size() != 1) return std::nullopt;
  const PieceStage& stage = stages[0];
  if (!std::holds_alternative<KnownPattern>(stage.pattern)) return std::nullopt;
  // The known patterns leave nothing between their matches.
  const bool keeps_matches = stage.behavior == SplitBehavior::isolated ||
                             (stage.behavior == SplitBehavior::removed && stage.inverted);
  if (!keeps_matches) return std::nullopt;
  return std::get<KnownPattern>(stage.pattern);
}

PieceSplitter::PieceSplitter(const std::vector<PieceStage>& stages) : stages_(stages) {
  for (const PieceStage& stage : stages) {
    const auto* regex = std::get_if<std::shared_ptr<const Regex>>(&stage.pattern);
    matchers_.push_back(regex ? std::make_unique<Regex::Matcher>(**regex) : nullptr);
  }
}

PieceSplitter::~PieceSplitter() = default;

void PieceSplitter::split(std::string_view text, const std::function<void(std::string_view)>& on_piece) {
  if (!text.empty()) split_from(0, text, on_piece);
}

void PieceSplitter::split_from(size_t stage, std::string_view text,
                               const std::function<void(std::string_view)>& on_piece) {
  if (stage == stages_.size()) return on_piece(text);
  const PieceStage& split = stages_[stage];
  if (std::holds_alternative<SpaceBefore>(split.pattern)) {
    if (text.front() == ' ') return split_from(stage + 1, text, on_piece);
    return split_from(stage + 1, " " + std::string(text), on_piece);
  }
  std::vector<Stretch> stretches = stretches_of(stage, text);
  if (split.inverted)
    for (Stretch& s : stretches) s.is_match = !s.is_match;
  for (const Stretch& s : pieces_of(std::move(stretches), split.behavior))
    split_from(stage + 1, text.substr(s.begin, s.end - s.begin), on_piece);
}

std::vector<Stretch> PieceSplitter::stretches_of(size_t stage, std::string_view text) {
  const PieceStage& split = stages_[stage];
  if (const auto* wanted = std::get_if<std::string>(&split.pattern)) return find_all(text, *wanted);
  std::vector<Stretch> stretches;
  if (matchers_[stage]) {
    matchers_[stage]->divide(text, stretches);
    return stretches;
  }
  scan(std::get<KnownPattern>(split.pattern), text, [&](std::string_view piece) {
    const size_t begin = size_t(piece.data() - text.data());
    stretches.push_back({begin, begin + piece.size(), true});
  });
  return stretches;
}

}  // namespace trainctl::data
