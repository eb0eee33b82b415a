#include "runtime/run/record/slow_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/json.h"

namespace trainctl {
namespace {

std::string event_of(const Straggler& straggler, int64_t step, const std::string& text) {
  Json fields{{"cause", word_of(straggler.kind)},
              {"ranks", straggler.ranks},
              {"count", straggler.count},
              {"share", straggler.share},
              {"step", step},
              {"text", text}};
  if (!straggler.node.empty()) fields["node"] = straggler.node;
  return dump_json(fields);
}

}  // namespace

std::vector<SlowRanks::Notice> SlowRanks::step(int64_t step, std::span<const RankTimes> ranks, int stages,
                                               const std::function<std::vector<NodeRanks>()>& nodes,
                                               double step_s) {
  std::vector<Notice> notices;
  if (last_step_ >= 0 && step_s > 0) seconds_ += double(std::max<int64_t>(0, step - last_step_)) * step_s;
  last_step_ = step;
  stragglers_.step(ranks, stages);
  if (!stragglers_.is_due()) return notices;
  for (Seen& seen : seen_) seen.is_found = false;
  for (const Straggler& straggler : stragglers_.judge(nodes())) {
    auto known = std::find_if(seen_.begin(), seen_.end(),
                              [&](const Seen& seen) { return seen.straggler.is_like(straggler); });
    if (known == seen_.end()) known = seen_.insert(known, Seen{});
    known->straggler = straggler;
    known->is_found = true;
    known->absent_in_a_row = 0;
    if (known->in_a_row++ == 0) known->since_s = seconds_;
    if (known->in_a_row < kJudgements || seconds_ - known->since_s < kSeconds ||
        std::exchange(known->noticed, true))
      continue;
    notices.push_back(
        {EventKind::slow_ranks, event_of(straggler, step, straggler.text()), " ! " + straggler.text()});
  }
  std::erase_if(seen_, [&](Seen& seen) {
    if (seen.is_found) return false;
    seen.in_a_row = 0;
    if (seen.absent_in_a_row++ == 0) seen.absent_since_s = seconds_;
    if (seen.absent_in_a_row < kJudgements || seconds_ - seen.absent_since_s < kSeconds) return false;
    const std::string text = fmt::format("{}: as fast as the others again", seen.straggler.who());
    if (seen.noticed)
      notices.push_back({EventKind::slow_ranks_over, event_of(seen.straggler, step, text), "   " + text});
    return true;
  });
  return notices;
}

}  // namespace trainctl
