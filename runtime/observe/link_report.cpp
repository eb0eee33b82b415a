#include "runtime/observe/link_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

constexpr double kSlowLinkShare = 1.0 / 3;
constexpr int kLeastLinksOfKind = 3;
constexpr size_t kMostLinksNamed = 8;

std::string rank_text(const LinkResult& result, int rank) {
  return fmt::format("rank {} ({})", rank, result.hosts[size_t(rank)]);
}

bool is_within(const LinkResult& result, const LinkRate& link) {
  return result.hosts[size_t(link.a)] == result.hosts[size_t(link.b)];
}

/// What the fastest quarter has; 0: too few to say.
double usual_rate(const LinkResult& result, bool within) {
  std::vector<double> rates;
  for (const LinkRate& link : result.links)
    if (is_within(result, link) == within) rates.push_back(link.bytes_per_s);
  if (int(rates.size()) < kLeastLinksOfKind) return 0;
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() * 3 / 4];
}

/// Of the open links: how many each rank has, how many of them are bad, and of how many of the bad ones the
/// other end has fewer.
struct RankLinks {
  int all = 0, bad = 0, with_better_peer = 0;
  bool has_most() const { return bad >= 2 && 2 * bad > all; }
};
std::vector<RankLinks> count_links(const LinkResult& result, const std::vector<bool>& bad,
                                   const std::vector<bool>& open) {
  std::vector<RankLinks> ranks(result.hosts.size());
  for (size_t i = 0; i < open.size(); ++i)
    for (const int rank : {result.links[i].a, result.links[i].b}) {
      ranks[size_t(rank)].all += open[i];
      ranks[size_t(rank)].bad += open[i] && bad[i];
    }
  for (size_t i = 0; i < open.size(); ++i) {
    if (!open[i] || !bad[i]) continue;
    RankLinks &a = ranks[size_t(result.links[i].a)], &b = ranks[size_t(result.links[i].b)];
    a.with_better_peer += b.bad < a.bad;
    b.with_better_peer += a.bad < b.bad;
  }
  return ranks;
}

/// Ranks and links of one kind that are to blame for `bad`, one of those of result.links each.
struct BadEnds {
  std::vector<int> ranks;
  std::vector<const LinkRate*> links;
  std::set<std::string> hosts;  ///< of those ranks, and of others most of whose links are bad
};
BadEnds ends_of(const LinkResult& result, const std::vector<bool>& bad, bool within) {
  BadEnds ends;
  std::vector<bool> open;
  for (const LinkRate& link : result.links) open.push_back(is_within(result, link) == within);
  for (;;) {
    // The rank with the most bad links, of those with a majority; then without its links. If all of them
    // lead to ranks with as many, nothing says which end it is.
    const std::vector<RankLinks> ranks = count_links(result, bad, open);
    int worst = -1;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      if (ranks[rank].has_most() && ranks[rank].with_better_peer > 0 &&
          (worst < 0 || ranks[rank].bad > ranks[size_t(worst)].bad))
        worst = int(rank);
    if (worst < 0) {
      for (size_t rank = 0; rank < ranks.size(); ++rank)
        if (ranks[rank].has_most()) ends.hosts.insert(result.hosts[rank]);
      break;
    }
    ends.ranks.push_back(worst);
    ends.hosts.insert(result.hosts[size_t(worst)]);
    for (size_t i = 0; i < open.size(); ++i)
      if (result.links[i].a == worst || result.links[i].b == worst) open[i] = false;
  }
  for (size_t i = 0; i < open.size(); ++i)
    if (open[i] && bad[i]) ends.links.push_back(&result.links[i]);
  return ends;
}

/// Adds a sentence for each, and blames the hosts of ranks. Whether links differ by groups.
bool accuse(LinkReport& report, const LinkResult& result, const std::vector<bool>& bad, bool is_slow,
            bool within, std::vector<std::string>& sentences) {
  const BadEnds ends = ends_of(result, bad, within);
  const char* const word = is_slow ? "slow" : "not as they were sent";
  const char* const where = within ? "within its host" : "to other hosts";
  const size_t all_hosts = std::set<std::string>(result.hosts.begin(), result.hosts.end()).size();
  const bool by_groups = is_slow && 3 * ends.hosts.size() > all_hosts;
  if (by_groups)
    sentences.push_back(fmt::format(
        "links {} differ by groups, as the network is built: on {} of {} most are "
        "slow, and none is to blame",
        within ? "within hosts" : "between hosts", ends.hosts.size(), count_of(int64_t(all_hosts), "host")));
  std::set<std::string> hosts;
  for (const int rank : ends.ranks) {
    double best = 0;
    for (size_t i = 0; i < bad.size(); ++i) {
      const LinkRate& link = result.links[i];
      if (bad[i] && is_within(result, link) == within && (link.a == rank || link.b == rank))
        best = std::max(best, link.bytes_per_s);
    }
    const std::string what =
        is_slow ? fmt::format("most links of {} {} are slow, these at most {}", rank_text(result, rank),
                              where, rate_text(best))
                : fmt::format("bits of most links of {} {} are wrong", rank_text(result, rank), where);
    sentences.push_back(what);
    if (!by_groups && hosts.insert(result.hosts[size_t(rank)]).second)
      report.blamed.push_back({result.hosts[size_t(rank)], is_slow, "links: " + what});
  }
  for (const LinkRate* link : ends.links)
    sentences.push_back(fmt::format("bytes between {} and {} are {}, {}", rank_text(result, link->a),
                                    rank_text(result, link->b), word, rate_text(link->bytes_per_s)));
  return by_groups;
}

}  // namespace

std::string rate_text(double bytes_per_s) { return size_text(uint64_t(bytes_per_s)) + "/s"; }

LinkReport judge_links(const LinkResult& result) {
  LinkReport report;
  report.check.name = "links";
  const double usual[] = {usual_rate(result, false), usual_rate(result, true)};
  std::vector<bool> wrong, slow;
  std::vector<std::string> sentences;
  for (const LinkRate& link : result.links) {
    wrong.push_back(link.wrong_bits);
    slow.push_back(!link.wrong_bits && link.bytes_per_s < kSlowLinkShare * usual[is_within(result, link)]);
  }
  for (const bool within : {false, true}) accuse(report, result, wrong, false, within, sentences);
  const bool is_wrong = !sentences.empty();
  bool by_groups = false;
  for (const bool within : {false, true}) by_groups |= accuse(report, result, slow, true, within, sentences);
  report.check.verdict = is_wrong            ? DoctorCheck::fail
                         : sentences.empty() ? DoctorCheck::ok
                                             : DoctorCheck::warn;
  std::vector<std::string> kinds;
  for (const bool within : {false, true})
    if (usual[within] > 0)
      kinds.push_back(fmt::format("{} {}", rate_text(kSlowLinkShare * usual[within]),
                                  within ? "within a host" : "between hosts"));
  report.expected = kinds.empty()
                        ? "all bytes as they were sent; fewer than three links have no usual rate"
                        : fmt::format("all bytes as they were sent; at least {}", fmt::join(kinds, ", "));
  if (result.links.empty()) {
    report.check.verdict = DoctorCheck::warn;
    report.check.found = "one rank has no links";
    report.check.advice =
        "start it on several nodes, with mpirun or srun --mpi=pmix: without its MPI plugin srun starts each "
        "process as the only rank";
    return report;
  }
  if (sentences.empty()) {
    const auto by_rate = [](const LinkRate& a, const LinkRate& b) { return a.bytes_per_s < b.bytes_per_s; };
    const auto [least, most] = std::minmax_element(result.links.begin(), result.links.end(), by_rate);
    report.check.found =
        fmt::format("{} of {} in {}, {} .. {}", count_of(int64_t(result.links.size()), "link"),
                    count_of(int64_t(result.hosts.size()), "rank"), count_of(result.rounds, "round"),
                    rate_text(least->bytes_per_s), rate_text(most->bytes_per_s));
    return report;
  }
  const size_t named = std::min(kMostLinksNamed, sentences.size());
  report.check.found =
      fmt::format("{}", fmt::join(sentences.begin(), sentences.begin() + ptrdiff_t(named), "; "));
  if (named < sentences.size()) report.check.found += fmt::format("; and {} more", sentences.size() - named);
  report.check.advice =
      !report.blamed.empty() ? "leave the node out (--quarantine) and look at its network card"
      : by_groups            ? "compare it with the network's plan; measure nodes of one group by themselves"
                             : "look at the cables and ports between them, then measure again";
  return report;
}

std::string render_links(const LinkReport& report, bool color) {
  return render_check(report.check, report.check.name.size(), "expected: " + report.expected, color);
}

std::string links_json(const LinkReport& report, const LinkResult& result) {
  OrderedJson links = OrderedJson::array(), blamed = OrderedJson::array(), hosts = OrderedJson::array();
  for (const LinkRate& link : result.links)
    links.push_back(
        {{"a", link.a}, {"b", link.b}, {"bytes_per_s", link.bytes_per_s}, {"wrong_bits", link.wrong_bits}});
  for (const LinkBlame& b : report.blamed)
    blamed.push_back({{"host", b.host}, {"kind", b.is_slow ? "slow" : "wrong"}, {"cause", b.cause}});
  for (const std::string& host : result.hosts) hosts.push_back(host);
  return dump_json(OrderedJson{{"v", 1},
                               {"ok", report.check.verdict != DoctorCheck::fail},
                               {"hosts", hosts},
                               {"rounds", result.rounds},
                               {"verdict", verdict_word(report.check.verdict)},
                               {"found", report.check.found},
                               {"expected", report.expected},
                               {"advice", report.check.advice},
                               {"blamed", blamed},
                               {"links", links}},
                   2);
}

}  // namespace trainctl
