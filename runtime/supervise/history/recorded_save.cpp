#include "runtime/supervise/history/recorded_save.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/run/record/events.h"
#include "runtime/run/record/journal.h"

namespace trainctl {
namespace {

struct Scan {
  int64_t saved = -1;
  uint64_t epoch = 0;  ///< of the last start; 0: none

  void take(const Json& event, const std::string& parent) {
    const auto kind = event_kind_of(event);
    if (kind == EventKind::checkpoint) saved = std::max(saved, record_of<CheckpointEvent>(event).step);
    if (kind != EventKind::start) return;
    const auto start = record_of<StartEvent>(event);
    epoch = start.epoch;
    const bool is_fresh = start.tier.empty() && start.checkpoint.empty();
    if (is_fresh || (!parent.empty() && start.checkpoint == parent)) saved = -1;
  }
};

}  // namespace

std::optional<int64_t> recorded_save(const std::vector<std::string>& events,
                                     const std::optional<RunStatus>& status, const std::string& parent) {
  Scan scan;
  for (const std::string& line : events) try {
      if (const Json event = try_parse_json(line); event.is_object()) scan.take(event, parent);
    } catch (const BadRecord&) {  // what other lines say counts all the same
    } catch (const JsonError&) {
    }
  if (status && status->epoch >= scan.epoch) scan.saved = std::max(scan.saved, status->saved_step);
  return scan.saved < 0 ? std::nullopt : std::optional(scan.saved);
}

std::optional<int64_t> recorded_save(FileSystem& fs, const RunDirectory& run, const std::string& parent) {
  return recorded_save(lines_of(fs, run.events()), try_read_status(fs, run.status()).status, parent);
}

}  // namespace trainctl
