#include "runtime/observe/report/spec_rows.h"

#include <algorithm>

namespace trainctl::report {
namespace {

using nlohmann::ordered_json;

void add_rows(std::vector<SpecRow>& rows, const ordered_json& value, const std::string& path,
              const ordered_json& origins) {
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
  rows.push_back(
      {.path = path,
       .value = path.starts_with("launcher.env.") ? "(hidden)" : dump_json(value),
       .origin = origin != origins.end() && origin->is_string() ? origin->get<std::string>() : ""});
}

bool is_name(const std::string& path) {
  return path == "observability.run_id" || path == "observability.run_dir" || path == "name" ||
         path == "description";
}

}  // namespace

std::vector<SpecRow> spec_rows(const ordered_json& spec, const ordered_json& origins) {
  std::vector<SpecRow> rows;
  const ordered_json none = ordered_json::object();
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

ordered_json spec_json(const std::vector<SpecRow>& rows) {
  ordered_json list = ordered_json::array();
  for (const SpecRow& row : rows)
    list.push_back({row.path, row.value, row.origin, kind_of_origin(row.origin)});
  return list;
}

ordered_json differences_json(const std::vector<std::vector<SpecRow>>& runs) {
  // Each path once, in the order of the first run that has it.
  std::vector<std::string> paths;
  for (const auto& rows : runs)
    for (const SpecRow& row : rows)
      if (!is_name(row.path) && std::find(paths.begin(), paths.end(), row.path) == paths.end())
        paths.push_back(row.path);
  ordered_json list = ordered_json::array();
  for (const std::string& path : paths) {
    ordered_json line{path};
    bool differs = false;
    for (const auto& rows : runs) {
      const auto found =
          std::find_if(rows.begin(), rows.end(), [&](const SpecRow& row) { return row.path == path; });
      line.push_back(found == rows.end() ? "" : found->value);
      differs |= line.back() != line[1];
    }
    if (differs) list.push_back(std::move(line));
  }
  return list;
}

}  // namespace trainctl::report
