#include "runtime/base/record.h"
#include "runtime/run/record/slow_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trainctl {
namespace {

/// "rank 5", "ranks 4, 5, 6 and 3 more".
std::string ranks_text(const Outliers& o) {
  std::string text = fmt::format("{} {}", o.count == 1 ? "rank" : "ranks", fmt::join(o.ranks, ", "));
  if (o.count > int(o.ranks.size())) text += fmt::format(" and {} more", o.count - int(o.ranks.size()));
  return text;
}

}  // namespace

std::vector<SlowRanks::Notice> SlowRanks::step(const StepLine& line, double unix_s) {
  std::vector<Notice> notices;
  if (!line.ranks) return notices;
  std::map<std::string, Outliers> now;
  for (const Outliers& o : line.ranks->outliers)
    if (o.of == RankNumber::compute_s) now[o.node.empty() ? ranks_text(o) : o.node] = o;
  for (const auto& [who, o] : now) {
    Seen& seen = seen_[who];
    seen.absent_in_a_row = 0;
    if (seen.in_a_row++ == 0) seen.since_s = unix_s;
    if (seen.in_a_row < kReports || unix_s - seen.since_s < kSeconds || seen.noticed) continue;
    seen.noticed = true;
    Json fields = record_json(o);
    fields["step"] = line.step;
    const std::string ranks = ranks_text(o);
    notices.push_back(
        {EventKind::slow_ranks, dump_json(fields),
         fmt::format(" ! {}{}: computing takes {:.2g} times as long as on the other ranks of the stage "
                     "({:.3g} s against {:.3g} s)",
                     who, who == ranks ? "" : ", " + ranks, o.worst / o.median, o.worst, o.median)});
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
                         dump_json(Json{{"who", it->first}, {"step", line.step}}),
                         fmt::format("   {}: computing takes as long as on the others again", it->first)});
    it = seen_.erase(it);
  }
  return notices;
}

}  // namespace trainctl
