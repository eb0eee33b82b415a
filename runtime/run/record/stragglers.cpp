#include "runtime/run/record/stragglers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "runtime/base/ensure.h"

namespace trainctl {
namespace {

/// Of a normal distribution: its standard deviation over its median distance from the median, and the
/// deviation of a median of n numbers times the root of n.
constexpr double kOfMedianDistance = 1.4826, kOfMedians = 1.2533;
/// A stage of fewer ranks has no median that says anything.
constexpr size_t kLeastOfStage = 3;

template <typename T>
double straggler_median(std::vector<T>& values) {
  ENSURE(!values.empty());
  const auto middle = values.begin() + ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return double(*middle);
  return (double(*middle) + double(*std::max_element(values.begin(), middle))) / 2;
}

/// The standard deviation that normal numbers with this scatter have.
double scatter_of(const std::vector<double>& values, double middle) {
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - middle));
  return kOfMedianDistance * straggler_median(distances);
}

const std::string& name_of_node(int rank, std::span<const NodeRanks> nodes) {
  static const std::string none;
  for (const NodeRanks& node : nodes)
    if (rank >= node.first && rank < node.first + node.count) return node.name;
  return none;
}

void add_rank(Straggler& straggler, int rank, double share) {
  if (straggler.ranks.size() < Straggler::kMostRanks) straggler.ranks.push_back(rank);
  ++straggler.count;
  straggler.share = std::max(straggler.share, share);
}

}  // namespace

std::string Straggler::who() const {
  if (ranks.empty()) return "a link";
  std::string text = fmt::format("{} {}", count == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
  if (count > int(ranks.size())) text += fmt::format(" and {} more", count - int(ranks.size()));
  return node.empty() ? text : node + ", " + text;
}

std::string Straggler::text() const {
  const double percent = 100 * share;
  switch (kind) {
    case StragglerKind::compute:
      return fmt::format("{}: computing takes {:.0f} % longer than on the other ranks of the stage", who(),
                         percent);
    case StragglerKind::data:
      return fmt::format("{}: data come late, by {:.0f} % of a step more than on the others: a slow disk",
                         who(), percent);
    case StragglerKind::save:
      return fmt::format("{}: saves take longer, by {:.0f} % of a step more than on the others: a slow disk",
                         who(), percent);
    case StragglerKind::link:
      if (ranks.empty())
        return fmt::format(
            "waits have grown by {:.0f} % of a step, and no rank computes longer: a link is slow; `trainctl "
            "trace` on the run may name it, or `trainctl doctor --links` on the nodes",
            percent);
      return fmt::format(
          "{}: they wait for each other, by {:.0f} % of a step more than others, and none of them computes "
          "longer: a link between them is slow",
          who(), percent);
  }
  return "";
}

void Stragglers::add_number(Number number, std::span<const RankTimes> ranks, double RankTimes::*member,
                            double step_s) {
  const auto value = [&](const RankTimes& t) { return member ? t.*member : t.compute_s(); };
  const size_t each = ranks.size() / size_t(stages_);
  for (size_t first = 0; first < ranks.size(); first += each) {
    std::vector<double> of_stage;
    for (const RankTimes& t : ranks.subspan(first, each))
      if (t.came() && std::isfinite(value(t))) of_stage.push_back(value(t));
    if (of_stage.size() < kLeastOfStage) continue;
    const double median = straggler_median(of_stage), whole = number == compute ? median : step_s;
    for (size_t r = first; r < first + each && whole > 0; ++r)
      if (ranks[r].came() && std::isfinite(value(ranks[r])))
        rings_[number][r].add((value(ranks[r]) - median) / whole, window_of(number));
  }
}

void Stragglers::step(std::span<const RankTimes> ranks, int stages) {
  if (ranks.empty() || stages < 1 || ranks.size() % size_t(stages) != 0) return;
  if (rings_[compute].size() != ranks.size() || stages_ != stages) {
    forget();
    stages_ = stages;
    for (std::vector<Ring>& ring : rings_) ring.resize(ranks.size());
  }
  std::vector<double> steps;
  double least_wait_s = std::numeric_limits<double>::infinity();
  bool saved = false;
  for (const RankTimes& t : ranks) {
    if (!t.came()) continue;
    steps.push_back(t.step_s);
    least_wait_s = std::min(least_wait_s, t.communication_s);
    saved |= t.checkpoint_s > 0;
  }
  if (steps.size() < kLeastOfStage) return;
  const double step_s = straggler_median(steps);
  if (!(step_s > 0)) return;
  ++reports_, ++since_;
  add_number(compute, ranks, nullptr, step_s);
  add_number(data, ranks, &RankTimes::data_s, step_s);
  if (saved) add_number(save, ranks, &RankTimes::checkpoint_s, step_s);
  if (stages > 1) add_number(pipeline, ranks, &RankTimes::pipeline_s, step_s);
  const double wait = least_wait_s / std::max(step_s - least_wait_s, 1e-9);
  if (first_waits_.size() < kWindow) {
    first_waits_.push_back(wait);
    return;
  }
  newest_waits_.push_back(wait);
  if (newest_waits_.size() > kWindow) newest_waits_.pop_front();
}

std::vector<Stragglers::Excess> Stragglers::excess_of(Number number) const {
  const std::vector<Ring>& rings = rings_[number];
  std::vector<Excess> all(rings.size(), {.middle = std::numeric_limits<double>::quiet_NaN()});
  std::vector<double> middles;
  const size_t least = number == save ? kSaves / 2 : kLeastReports;
  for (size_t r = 0; r < rings.size(); ++r) {
    const auto known = rings[r].known(window_of(number));
    if (known.size() < least) continue;
    std::vector<double> values(known.begin(), known.end());
    all[r].middle = straggler_median(values);
    all[r].error = kOfMedians * scatter_of(values, all[r].middle) / std::sqrt(double(values.size()));
    middles.push_back(all[r].middle);
  }
  if (middles.size() < kLeastOfStage) return all;
  const double middle = straggler_median(middles), scatter = scatter_of(middles, middle);
  const double share = int(middles.size()) < kFewRanks ? kLeastShareOfFew : kLeastShare;
  for (Excess& one : all)
    one.is_out = one.middle > std::max({share, kDeviations * scatter, kDeviations * one.error});
  return all;
}

void Stragglers::add_group(std::vector<Straggler>& found, StragglerKind kind, const std::vector<Excess>& all,
                           std::span<const NodeRanks> nodes) const {
  std::map<std::string, Straggler> by_node;
  for (size_t r = 0; r < all.size(); ++r) {
    if (!all[r].is_out) continue;
    const std::string& node = name_of_node(int(r), nodes);
    Straggler& straggler = by_node.try_emplace(node, Straggler{.kind = kind, .node = node}).first->second;
    add_rank(straggler, int(r), all[r].middle);
  }
  for (auto& [node, straggler] : by_node) found.push_back(std::move(straggler));
}

/// What one rank takes longer, the others of its column wait longer.
void Stragglers::add_columns(std::vector<Straggler>& found, const std::vector<Excess>& waits,
                             const std::vector<Excess>& computing, const std::vector<Excess>& reading) const {
  const size_t each = waits.size() / size_t(stages_);
  for (size_t column = 0; column < each; ++column) {
    Straggler straggler{.kind = StragglerKind::link};
    double explained = 0;
    for (size_t r = column; r < waits.size(); r += each) {
      if (waits[r].is_out) add_rank(straggler, int(r), waits[r].middle);
      for (const std::vector<Excess>* of : {&computing, &reading})
        if (std::isfinite((*of)[r].middle)) explained = std::max(explained, (*of)[r].middle);
    }
    if (straggler.count >= 2 && straggler.share > 2 * explained) found.push_back(std::move(straggler));
  }
}

void Stragglers::add_grown_waits(std::vector<Straggler>& found) const {
  if (newest_waits_.size() < kWindow) return;
  std::vector<double> before(first_waits_.begin(), first_waits_.end()),
      now(newest_waits_.begin(), newest_waits_.end());
  const double was = straggler_median(before), is = straggler_median(now);
  const double error =
      kOfMedians * (scatter_of(before, was) + scatter_of(now, is)) / std::sqrt(double(kWindow));
  if (is - was > std::max(2 * kLeastShare, kDeviations * error))
    found.push_back({.kind = StragglerKind::link, .share = is - was});
}

std::vector<Straggler> Stragglers::judge(std::span<const NodeRanks> nodes) {
  since_ = 0;
  std::vector<Straggler> found;
  const std::vector<Excess> computing = excess_of(compute), reading = excess_of(data);
  add_group(found, StragglerKind::compute, computing, nodes);
  add_group(found, StragglerKind::data, reading, nodes);
  add_group(found, StragglerKind::save, excess_of(save), nodes);
  const size_t others = found.size();
  if (stages_ > 1) add_columns(found, excess_of(pipeline), computing, reading);
  // Of what is named, the waits follow.
  if (others == 0 && found.empty()) add_grown_waits(found);
  return found;
}

}  // namespace trainctl
