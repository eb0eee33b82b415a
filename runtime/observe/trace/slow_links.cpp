#include "runtime/observe/trace/slow_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "runtime/observe/trace/peer_times.h"

namespace trainctl::trace {
namespace {

constexpr size_t kLeastPairs = 3;

struct Wait {
  int64_t begin_ns = 0, end_ns = 0;
};
/// A rank, the peer for which alone it waited last, the kind of their group, and the step.
using WaitKey = std::tuple<int, int, std::string_view, int64_t>;

/// Two ranks of a group of this kind.
struct Pair {
  std::string_view peers;
  int first = 0, second = 0;
  auto operator<=>(const Pair&) const = default;
};
/// What the pairs of a comparison have in common: the kind of their group, and how far apart they lie in it
/// (0: each of them exchanges the same with all others).
using PairKind = std::pair<std::string_view, int>;

double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// For how long spans of both lists were open at one time. Each list is by time and without overlaps.
double overlap_s(const std::vector<Wait>& a, const std::vector<Wait>& b) {
  int64_t ns = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    ns += std::max<int64_t>(0, std::min(a[i].end_ns, b[j].end_ns) - std::max(a[i].begin_ns, b[j].begin_ns));
    ++(a[i].end_ns < b[j].end_ns ? i : j);
  }
  return double(ns) * 1e-9;
}

class Links {
 public:
  explicit Links(const std::vector<RankTrace>& ranks) {
    for (const RankTrace& rank : ranks) node_of_.emplace(rank.recording.rank, rank.node);
    for (const RankTrace& rank : ranks) read(rank);
  }

  std::vector<SlowLink> slow() const {
    std::vector<SlowLink> found;
    const double step_s = steps_s_.empty() ? 0 : middle_of(steps_s_);
    for (const auto& [kind, pairs] : pairs_by_kind()) {
      std::vector<double> seconds, distances;
      for (const Pair& pair : pairs) seconds.push_back(waited_s(pair));
      if (seconds.size() < kLeastPairs || !(step_s > 0)) continue;
      const double usual = middle_of(seconds);
      for (const double s : seconds) distances.push_back(std::abs(s - usual));
      const double scatter = 1.4826 * middle_of(distances);
      for (size_t i = 0; i < pairs.size(); ++i)
        if (const double more = seconds[i] - usual;
            seconds[i] >= kLeastTimesUsual * usual &&
            more > std::max(kLeastLinkShare * step_s, kLinkDeviations * scatter))
          found.push_back({.first = pairs[i].first,
                           .second = pairs[i].second,
                           .wait_s = seconds[i],
                           .usual_s = usual,
                           .share = more / step_s,
                           .first_node = node_of_.at(pairs[i].first),
                           .second_node = node_of_.at(pairs[i].second)});
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const SlowLink& a, const SlowLink& b) { return a.share > b.share; });
    return found;
  }

 private:
  void read(const RankTrace& rank) {
    const Recording& of = rank.recording;
    if (of.on_device) return;
    for (const PlacedSpan& placed : rank.spans) {
      const Span& span = of.spans[placed.index];
      if (span.kind == SpanKind::step) {
        steps_s_.push_back(double(placed.end_ns - placed.begin_ns) * 1e-9);
        if (std::find(steps_.begin(), steps_.end(), span.step) == steps_.end()) steps_.push_back(span.step);
      }
      if (span.group == Span::kNone) continue;
      const SpanGroup& group = of.groups[span.group];
      const std::string_view peers = peers_of_group(group.name);
      const bool is_one = std::popcount(span.peers) == 1;
      for (uint64_t left = span.peers; left != 0; left &= left - 1) {
        const int r = std::countr_zero(left);
        const int peer = r < int(group.members.size()) ? group.members[size_t(r)] : of.rank;
        if (peer == of.rank || !node_of_.contains(peer) || are_on_one_node(of.rank, peer)) continue;
        if (span.kind == SpanKind::waited && is_one)
          waits_[{of.rank, peer, peers, span.step}].push_back({placed.begin_ns, placed.end_ns});
        if (span.kind != SpanKind::exchange) continue;
        int& distance = pairs_[{peers, std::min(of.rank, peer), std::max(of.rank, peer)}];
        if (is_one) distance = std::abs(r - group.own);
      }
    }
  }

  bool are_on_one_node(int a, int b) const {
    return !node_of_.at(a).empty() && node_of_.at(a) == node_of_.at(b);
  }

  std::map<PairKind, std::vector<Pair>> pairs_by_kind() const {
    std::map<PairKind, std::vector<Pair>> kinds;
    for (const auto& [pair, distance] : pairs_) kinds[{pair.peers, distance}].push_back(pair);
    return kinds;
  }

  double waited_s(const Pair& pair) const {
    std::vector<double> of_steps;
    for (const int64_t step : steps_) {
      const auto a = waits_.find({pair.first, pair.second, pair.peers, step}),
                 b = waits_.find({pair.second, pair.first, pair.peers, step});
      of_steps.push_back(a == waits_.end() || b == waits_.end() ? 0 : overlap_s(a->second, b->second));
    }
    return of_steps.empty() ? 0 : middle_of(std::move(of_steps));
  }

  std::unordered_map<int, std::string> node_of_;  // of the ranks of the trace
  std::map<WaitKey, std::vector<Wait>> waits_;
  std::map<Pair, int> pairs_;  // of all exchanges; as PairKind has the distance
  std::vector<int64_t> steps_;
  std::vector<double> steps_s_;
};

}  // namespace

std::string SlowLink::text() const {
  const auto rank = [](int r, const std::string& node) {
    return node.empty() ? fmt::format("{}", r) : fmt::format("{} ({})", r, node);
  };
  return fmt::format(
      "ranks {} and {} wait for each other for {:.1f} ms of a step, pairs like them for {:.1f} ms: the link "
      "between them is slow",
      rank(first, first_node), rank(second, second_node), 1e3 * wait_s, 1e3 * usual_s);
}

std::vector<SlowLink> slow_links(const std::vector<RankTrace>& ranks) { return Links(ranks).slow(); }

}  // namespace trainctl::trace
