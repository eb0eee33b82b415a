#include "runtime/spec/lineage.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/base/record.h"

namespace trainctl {

std::string lineage_json(const std::vector<LineageEntry>& lineage) {
  return dump_json(RecordWriter<OrderedJson>::json_of(lineage));
}

std::vector<LineageEntry> lineage_of(const std::string& text) try {
  std::vector<LineageEntry> lineage;
  if (!text.empty()) RecordReader<OrderedJson>::read(parse_ordered_json(text), lineage);
  return lineage;
} catch (const std::exception&) {
  return {};  // not JSON, or no list of entries
}

std::string to_json(const LineageEntry& entry) { return dump_json(record_json<OrderedJson>(entry)); }

std::string lineage_at(const std::string& json, int64_t step) {
  std::vector<LineageEntry> lineage = lineage_of(json);
  for (LineageEntry& entry : lineage)
    if (entry.kind == LineageEntry::change) entry.step = std::min(entry.step, step);
  return lineage_json(lineage);
}

std::string describe(const LineageEntry& entry) {
  std::string text = entry.kind == LineageEntry::branch
                         ? fmt::format("from {} step {} (state {})", entry.run_id, entry.step, entry.root.substr(0, 16))
                         : fmt::format("from step {} on", entry.step);
  std::string list;
  const auto add = [&](const std::string& part) { list += (list.empty() ? ": " : ", ") + part; };
  for (const FieldChange& change : entry.changes) add(describe(change));
  if (!entry.numerics.empty()) add(fmt::format("computed by {} → {}", entry.numerics_before, entry.numerics));
  if (!entry.lr_rule.empty()) add("learning rate by schedule.batch_lr_rule " + entry.lr_rule);
  if (entry.new_data) add("data from its start");
  return text + (list.empty() ? ": no change" : list);
}

}  // namespace trainctl
