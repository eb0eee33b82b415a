#include "runtime/run/record/run_status.h"

#include <fmt/format.h>

#include <span>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl {

using nlohmann::json;

namespace {

json json_of(const std::vector<RankStatus>& ranks) {
  json list = json::array();
  for (const RankStatus& r : ranks)
    list.push_back({{"rank", r.rank},
                    {"pid", r.pid},
                    {"phase", r.phase},
                    {"host", r.host},
                    {"activity", r.activity ? parse_json(trainctl::to_json(*r.activity)) : json()},
                    {"doing", r.activity ? render(*r.activity) : ""},
                    {"stopped", r.stopped},
                    {"heard", r.heard_unix_s}});
  return list;
}

std::vector<RankStatus> ranks_of(const json& list) {
  std::vector<RankStatus> ranks;
  for (const json& r : list)
    ranks.push_back(
        {.rank = r.at("rank"),
         .pid = r.at("pid"),
         .phase = r.at("phase"),
         .host = r.at("host"),
         .activity = r.contains("activity") ? activity_from_json(dump_json(r.at("activity"))) : std::nullopt,
         .stopped = r.value("stopped", false),
         .heard_unix_s = r.at("heard")});
  return ranks;
}

json json_of(const std::vector<NodeStatus>& nodes) {
  json list = json::array();
  for (const NodeStatus& n : nodes) {
    list.push_back({{"name", n.name},
                    {"state", n.state},
                    {"reason", n.reason},
                    {"first_rank", n.first},
                    {"ranks", n.count},
                    {"heard", n.heard_unix_s},
                    {"since", n.since_unix_s},
                    {"facts", parse_json(n.facts.to_json())},
                    {"usage", parse_json(n.usage.to_json())}});
    if (n.clock_offset_s) list.back()["clock_offset_s"] = *n.clock_offset_s;
  }
  return list;
}

NodeStatus node_of(const json& n) {
  NodeStatus node{.name = n.at("name"),
                  .state = n.at("state"),
                  .reason = n.at("reason"),
                  .first = n.at("first_rank"),
                  .count = n.at("ranks"),
                  .heard_unix_s = n.at("heard"),
                  .since_unix_s = n.at("since")};
  if (n.contains("facts")) node.facts = NodeFacts::from_json(dump_json(n["facts"]));
  if (n.contains("usage")) node.usage = NodeUsage::from_json(dump_json(n["usage"]));
  if (n.contains("clock_offset_s")) node.clock_offset_s = n["clock_offset_s"].get<double>();
  return node;
}

/// "DIR/ranks.json" of "DIR/status.json".
std::string ranks_path(const std::string& path) { return path.substr(0, path.rfind('/') + 1) + "ranks.json"; }

void replace(FileSystem& fs, const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  if (fs.exists(temporary)) fs.remove_file(temporary);
  fs.create(temporary)->write_at(0, std::as_bytes(std::span(text)));
  fs.rename(temporary, path);
}

}  // namespace

std::string RunStatus::to_json(bool with_ranks) const {
  json last = try_parse_json(last_step_json);
  if (!last.is_object()) last = json::object();
  const json j = {{"v", 1},
                  {"run_id", run_id},
                  {"directory", directory},
                  {"state", state},
                  {"epoch", epoch},
                  {"restarts", restarts},
                  {"exit_code", exit_code},
                  {"step", step},
                  {"total_steps", total_steps},
                  {"saved_step", saved_step},
                  {"started", started_unix_s},
                  {"updated", updated_unix_s},
                  {"step_ended", step_unix_s},
                  {"heartbeat_s", heartbeat_s},
                  {"step_timeout_s", step_timeout_s},
                  {"last_step", last},
                  {"lineage", try_parse_json(lineage_json)},
                  {"reason", reason},
                  {"advice", advice},
                  {"nodes", json_of(nodes)},
                  {"ranks", with_ranks ? json_of(ranks) : json::array()}};
  return dump_json(j);
}

RunStatus RunStatus::from_json(const std::string& text) try {
  const json j = parse_json(text);
  RunStatus s;
  s.run_id = j.at("run_id");
  s.directory = j.at("directory");
  s.state = j.at("state");
  s.epoch = j.at("epoch");
  s.restarts = j.at("restarts");
  s.exit_code = j.at("exit_code");
  s.step = j.at("step");
  s.total_steps = j.at("total_steps");
  s.saved_step = j.at("saved_step");
  s.started_unix_s = j.at("started");
  s.updated_unix_s = j.at("updated");
  s.step_unix_s = j.at("step_ended");
  s.heartbeat_s = j.at("heartbeat_s");
  s.step_timeout_s = j.at("step_timeout_s");
  s.last_step_json = dump_json(j.at("last_step"));
  if (j.contains("lineage")) s.lineage_json = dump_json(j["lineage"]);
  s.reason = j.at("reason");
  s.advice = j.at("advice");
  if (j.contains("nodes"))
    for (const json& n : j["nodes"]) s.nodes.push_back(node_of(n));
  s.ranks = ranks_of(j.at("ranks"));
  return s;
} catch (const json::exception& error) {
  throw Error(ErrorCode::kIo, fmt::format("status.json is damaged: {}", error.what()));
}

void write_status(FileSystem& fs, const std::string& path, const RunStatus& status, bool with_ranks) {
  const bool apart = status.ranks.size() > kMostRanksInStatus;
  replace(fs, path, status.to_json(!apart) + "\n");
  if (apart && with_ranks) replace(fs, ranks_path(path), dump_json(json_of(status.ranks)) + "\n");
}

RunStatus found_in(RunStatus status, const std::string& directory) {
  const std::string old_directory = status.directory, old_id = status.run_id;
  if (old_directory == directory || old_directory.empty()) return status;
  status.directory = directory;
  status.run_id = directory.substr(directory.rfind('/') + 1);
  size_t at = 0;
  while ((at = status.advice.find(old_directory, at)) != std::string::npos) {
    status.advice.replace(at, old_directory.size(), directory);
    at += directory.size();
  }
  if (status.advice.ends_with(" " + old_id))
    status.advice.replace(status.advice.size() - old_id.size(), old_id.size(), status.run_id);
  return status;
}

std::optional<RunStatus> read_status(FileSystem& fs, const std::string& path) {
  if (!fs.exists(path)) return std::nullopt;
  RunStatus status = found_in(RunStatus::from_json(fs.read_text(path)), path.substr(0, path.rfind('/')));
  if (status.ranks.empty() && fs.exists(ranks_path(path))) {
    const json list = try_parse_json(fs.read_text(ranks_path(path)));
    if (list.is_array()) status.ranks = ranks_of(list);
  }
  return status;
}

}  // namespace trainctl
