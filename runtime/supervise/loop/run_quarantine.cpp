#include "runtime/supervise/loop/run_quarantine.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/supervise/decide/quarantine.h"
#include "runtime/supervise/slurm/cluster_name.h"

namespace trainctl {

void read_quarantine(const SupervisePlan& plan, FileSystem& fs, Clock& clock, Recovery& recovery,
                     Console& console) {
  try {
    const std::string path = quarantine_path("");
    if (path.empty()) return;
    const QuarantineList list = QuarantineFile(fs, clock, path, this_cluster()).read();
    const double now_s = clock.unix_s();
    for (const std::string& name : list.nodes_out(now_s))
      for (const ClusterNode& node : plan.nodes.nodes)
        if (node.name == name && !plan.nodes.one_machine) {
          recovery.set_quarantined(name, true, list.only_by(name, plan.run_id, now_s));
          console.note(fmt::format(" ! {} is left out: {}; to use it, trainctl nodes --lift {}", name,
                                   list.why_out(name, now_s), name));
        }
  } catch (const Error& error) {
    console.note(fmt::format(" ! the quarantine list cannot be read: {}", error.what()));
  }
}

void tell_quarantine(const SupervisePlan& plan, FileSystem& fs, Clock& clock, Recovery& recovery,
                     RunLog& log) {
  const double began_unix_s = clock.unix_s() - clock.monotonic_s();
  for (const PutOutNode& node : recovery.take_quarantined()) {
    ENSURE(!node.failures.empty());
    log.event(EventKind::quarantine, dump_json(Json{{"node", node.name},
                                                    {"cause", node.failures.back().why},
                                                    {"failures", int64_t(node.failures.size())}}));
    try {
      QuarantineFile(fs, clock, quarantine_path(""), this_cluster()).update([&](QuarantineList& list) {
        for (const NodeFailure& failure : node.failures) {
          const bool is_last = &failure == &node.failures.back();
          const auto attempts_ago = uint64_t(recovery.attempts() - failure.attempt);
          list.add(node.name, -1,
                   {.kind = NodeEvidence::failure,
                    .run = plan.run_id,
                    .epoch = log.status().epoch - attempts_ago,
                    .cause = failure.why,
                    .unix_s = began_unix_s + failure.at_s},
                   {.failures = is_last ? 1 : 0}, clock.unix_s());
        }
      });
      log.console().note(fmt::format(" ! {} failed {}: in quarantine (`trainctl nodes --lift {}`)", node.name,
                                     count_of(int64_t(node.failures.size()), "time"), node.name));
    } catch (const Error& error) {
      log.console().note(
          fmt::format(" ! {} could not be put on the quarantine list: {}", node.name, error.what()));
    }
  }
}

}  // namespace trainctl
