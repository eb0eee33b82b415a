#include "runtime/spec/lineage.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/json.h"

namespace trainctl {
namespace {

using nlohmann::ordered_json;

ordered_json json_of(const LineageEntry& entry) {
  const bool branch = entry.kind == LineageEntry::branch;
  ordered_json j{{"kind", branch ? "branch" : "change"}, {"run_id", entry.run_id}, {"step", entry.step}};
  if (branch) j["root"] = entry.root;
  j["changes"] = ordered_json::array();
  for (const FieldChange& change : entry.changes)
    j["changes"].push_back({{"path", change.path}, {"before", change.before}, {"now", change.now}});
  if (!entry.numerics.empty()) j["numerics"] = {{"before", entry.numerics_before}, {"now", entry.numerics}};
  if (branch) j["data"] = entry.new_data ? "from its start" : "continues";
  if (!entry.lr_rule.empty()) j["batch_lr_rule"] = entry.lr_rule;
  return j;
}

LineageEntry entry_of(const ordered_json& j) {
  LineageEntry entry;
  entry.kind = j.at("kind") == "branch" ? LineageEntry::branch : LineageEntry::change;
  entry.run_id = j.at("run_id");
  entry.step = j.at("step");
  entry.root = j.value("root", "");
  for (const ordered_json& change : j.at("changes"))
    entry.changes.push_back({.path = change.at("path"), .before = change.at("before"), .now = change.at("now")});
  if (j.contains("numerics")) {
    entry.numerics_before = j["numerics"].at("before");
    entry.numerics = j["numerics"].at("now");
  }
  entry.new_data = j.value("data", "") == "from its start";
  entry.lr_rule = j.value("batch_lr_rule", "");
  return entry;
}

}  // namespace

std::string lineage_json(const std::vector<LineageEntry>& lineage) {
  ordered_json list = ordered_json::array();
  for (const LineageEntry& entry : lineage) list.push_back(json_of(entry));
  return dump_json(list);
}

std::vector<LineageEntry> lineage_of(const std::string& text) try {
  std::vector<LineageEntry> lineage;
  if (text.empty()) return lineage;
  for (const ordered_json& entry : parse_ordered_json(text)) lineage.push_back(entry_of(entry));
  return lineage;
} catch (const ordered_json::exception&) {
  return {};
}

std::string to_json(const LineageEntry& entry) { return dump_json(json_of(entry)); }

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
