#include "runtime/run/record/slow_ranks.h"

#include <fmt/format.h>

#include "runtime/base/json.h"

namespace trainctl {
namespace {

using nlohmann::json;

/// "rank 5", "ranks 4, 5, 6 and 3 more".
std::string ranks_text(const json& outliers) {
  const json& ranks = outliers.at("ranks");
  const int count = outliers.at("count");
  std::string text = count == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size(); ++i) text += fmt::format("{}{}", i ? ", " : " ", ranks[i].get<int>());
  if (count > int(ranks.size())) text += fmt::format(" and {} more", count - int(ranks.size()));
  return text;
}

}  // namespace

std::vector<SlowRanks::Notice> SlowRanks::step(const std::string& step_json, double unix_s) {
  std::vector<Notice> notices;
  const json step = try_parse_json(step_json);
  if (!step.is_object() || !step.contains("ranks") || !step["ranks"].is_object()) return notices;
  std::map<std::string, json> now;
  for (const json& o : step["ranks"].value("outliers", json::array())) {
    if (o.value("of", "") != "compute_s") continue;
    const std::string node = o.value("node", "");
    now[node.empty() ? ranks_text(o) : node] = o;
  }
  for (const auto& [who, o] : now) {
    Seen& seen = seen_[who];
    seen.absent_in_a_row = 0;
    if (seen.in_a_row++ == 0) seen.since_s = unix_s;
    if (seen.in_a_row < kReports || unix_s - seen.since_s < kSeconds || seen.noticed) continue;
    seen.noticed = true;
    const double worst = o.at("worst"), median = o.at("median");
    json fields = o;
    fields["step"] = step.value("step", int64_t(0));
    const std::string ranks = ranks_text(o);
    notices.push_back({EventKind::slow_ranks, dump_json(fields),
                       fmt::format(" ! {}{}: computing takes {:.2g} times as long as on the other ranks of "
                                   "the stage ({:.3g} s against {:.3g} s)",
                                   who, who == ranks ? "" : ", " + ranks, worst / median, worst, median)});
  }
  for (auto it = seen_.begin(); it != seen_.end();) {
    Seen& seen = it->second;
    if (now.count(it->first)) {
      ++it;
      continue;
    }
    seen.in_a_row = 0;
    if (seen.absent_in_a_row++ == 0) seen.absent_since_s = unix_s;
    if (seen.absent_in_a_row < kReports || unix_s - seen.absent_since_s < kSeconds) {
      ++it;
      continue;
    }
    if (seen.noticed)
      notices.push_back({EventKind::slow_ranks_over,
                         dump_json(json{{"who", it->first}, {"step", step.value("step", int64_t(0))}}),
                         fmt::format("   {}: computing takes as long as on the others again", it->first)});
    it = seen_.erase(it);
  }
  return notices;
}

}  // namespace trainctl
