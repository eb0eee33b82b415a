#include "runtime/train/control/replica_dispute.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/base/record.h"
#include "runtime/train/control/event_kind.h"

namespace trainctl {

DisputeVerdict settle(const ReplicaDispute& dispute, const std::vector<std::string>& recomputed) {
  const std::set<std::string> again(recomputed.begin(), recomputed.end());
  std::set<std::string> right;
  for (const DisputedReplica& replica : dispute.replicas)
    if (again.contains(replica.digest)) right.insert(replica.digest);
  DisputeVerdict verdict{.is_answered = !right.empty()};
  if (right.size() != 1) {
    verdict.text = fmt::format(
        "step {} was computed again, and {} of the digests that replicas had is among the results: which of "
        "them was wrong is not known",
        dispute.step, right.empty() ? "none" : "more than one");
    return verdict;
  }
  std::string names;
  for (const DisputedReplica& replica : dispute.replicas) {
    if (right.contains(replica.digest)) continue;
    names += fmt::format("{}rank {}{}", names.empty() ? "" : " and ", replica.rank,
                         replica.node.empty() ? "" : " on " + replica.node);
    verdict.wrong.push_back(replica);
  }
  verdict.text = fmt::format(
      "step {} was computed again: {} held other bits after it than the step gives; the memory or the "
      "arithmetic of its device was at fault",
      dispute.step, names);
  return verdict;
}

std::vector<ReplicaDispute> open_disputes(const std::vector<std::string>& events) {
  std::vector<ReplicaDispute> open;
  for (const std::string& line : events) {
    const Json event = try_parse_json(line);
    const auto kind = event_kind_of(event);
    if (kind != EventKind::replicas_differ && kind != EventKind::replicas_judged) continue;
    const auto is_same = [&](const ReplicaDispute& dispute) {
      return dispute.step == event.value("step", int64_t{-1}) && dispute.part == event.value("part", "");
    };
    if (kind == EventKind::replicas_judged) {
      std::erase_if(open, is_same);
      continue;
    }
    try {
      const auto dispute = record_of<ReplicaDispute>(event);
      std::erase_if(open, is_same);
      open.push_back(dispute);
    } catch (const BadRecord&) {
      // A line that another version wrote.
    }
  }
  return open;
}

}  // namespace trainctl
