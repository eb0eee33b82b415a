#include "runtime/supervise/loop/run_quarantine.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/supervise/decide/quarantine.h"

namespace trainctl {

void read_quarantine(const SupervisePlan& plan, FileSystem& fs, Clock& clock, Recovery& recovery,
                     Console& console) {
  try {
    const std::string path = quarantine_path("");
    if (path.empty()) return;
    const QuarantineList list = QuarantineFile(fs, clock, path).read();
    const double now_s = clock.unix_s();
    for (const std::string& name : list.nodes_out(now_s))
      for (const ClusterNode& node : plan.nodes.nodes)
        if (node.name == name && !plan.nodes.one_machine) {
          recovery.set_quarantined(name, true, list.only_by(name, plan.run_id, now_s));
          console.note(fmt::format(" ! {} is in quarantine (see `trainctl nodes`)", name));
        }
  } catch (const Error& error) {
    console.note(fmt::format(" ! the quarantine list cannot be read: {}", error.what()));
  }
}

void tell_quarantine(const SupervisePlan& plan, FileSystem& fs, Clock& clock, Recovery& recovery, RunLog& log,
                     const std::string& cause) {
  for (const std::string& name : recovery.take_quarantined()) {
    log.event(EventKind::quarantine, dump_json(Json{{"node", name}, {"cause", cause}}));
    try {
      QuarantineFile(fs, clock, quarantine_path("")).update([&](QuarantineList& list) {
        list.add(name, -1,
                 {.kind = NodeEvidence::failure,
                  .run = plan.run_id,
                  .epoch = log.status().epoch,
                  .cause = cause,
                  .unix_s = clock.unix_s()},
                 {.failures = 1}, clock.unix_s());
      });
      log.console().note(fmt::format(
          " ! {} failed again and again: in quarantine (`trainctl nodes --lift {}`)", name, name));
    } catch (const Error& error) {
      log.console().note(
          fmt::format(" ! {} could not be put on the quarantine list: {}", name, error.what()));
    }
  }
}

}  // namespace trainctl
