#include "runtime/observe/report/spec_rows.h"

#include <algorithm>
#include <map>

#include "runtime/base/json.h"

namespace trainctl::report {
namespace {

void add_rows(std::vector<SpecRow>& rows, const OrderedJson& value, const std::string& path,
              const OrderedJson& origins) {
  const bool list_of_objects = value.is_array() && !value.empty() && value.front().is_object();
  if (list_of_objects) {
    for (size_t i = 0; i < value.size(); ++i)
      add_rows(rows, value[i], path + "." + std::to_string(i), origins);
    return;
  }
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, item] : value.items())
      add_rows(rows, item, path.empty() ? key : path + "." + key, origins);
    return;
  }
  if (path.empty()) return;
  const auto origin = origins.find(path);
  // Often secrets.
  const bool is_hidden = path.starts_with("launcher.env.") || path == "observability.alerts.webhook" ||
                         path == "observability.alerts.command";
  rows.push_back(
      {.path = path,
       .value = is_hidden ? "(hidden)" : dump_json(value),
       .origin = origin != origins.end() && origin->is_string() ? origin->get<std::string>() : ""});
}

bool is_name(const std::string& path) {
  return path == "observability.run_id" || path == "observability.run_dir" || path == "name" ||
         path == "description";
}

}  // namespace

std::vector<SpecRow> spec_rows(const OrderedJson& spec, const OrderedJson& origins) {
  std::vector<SpecRow> rows;
  const OrderedJson none = OrderedJson::object();
  if (spec.is_object()) add_rows(rows, spec, "", origins.is_object() ? origins : none);
  return rows;
}

const char* kind_of_origin(const std::string& origin) {
  if (origin.empty()) return "";
  if (origin == "default") return "default";
  if (origin == "--set") return "set";
  if (origin.starts_with("preset ")) return "preset";
  if (origin.starts_with("auto")) return "auto";
  if (origin.starts_with("TRAINCTL_SET__")) return "environment";
  return "file";
}

OrderedJson spec_json(const std::vector<SpecRow>& rows) {
  OrderedJson list = OrderedJson::array();
  for (const SpecRow& row : rows)
    list.push_back({row.path, row.value, row.origin, kind_of_origin(row.origin)});
  return list;
}

std::vector<SpecDifference> spec_differences(const std::vector<std::vector<SpecRow>>& specs) {
  std::vector<SpecDifference> all;
  std::map<std::string, size_t> places;
  for (size_t s = 0; s < specs.size(); ++s)
    for (const SpecRow& row : specs[s]) {
      if (is_name(row.path)) continue;
      const auto [place, is_new] = places.try_emplace(row.path, all.size());
      if (is_new) all.push_back({row.path, std::vector<SpecRow>(specs.size(), SpecRow{.path = row.path})});
      all[place->second].rows[s] = row;
    }
  std::erase_if(all, [](const SpecDifference& field) {
    return std::all_of(field.rows.begin(), field.rows.end(),
                       [&](const SpecRow& row) { return row.shown() == field.rows[0].shown(); });
  });
  return all;
}

OrderedJson differences_json(const std::vector<std::vector<SpecRow>>& runs) {
  OrderedJson list = OrderedJson::array();
  for (const SpecDifference& field : spec_differences(runs)) {
    OrderedJson line{field.path};
    for (const SpecRow& row : field.rows) line.push_back(row.value);
    list.push_back(std::move(line));
  }
  return list;
}

}  // namespace trainctl::report
