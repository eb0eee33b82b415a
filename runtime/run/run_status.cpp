#include "runtime/run/run_status.h"

#include <fmt/format.h>

#include <span>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl {

using nlohmann::json;

std::string RunStatus::to_json() const {
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
                  {"ranks", list}};
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
  for (const json& r : j.at("ranks"))
    s.ranks.push_back({.rank = r.at("rank"),
                       .pid = r.at("pid"),
                       .phase = r.at("phase"),
                       .host = r.at("host"),
                       .activity = r.contains("activity") ? activity_from_json(dump_json(r.at("activity"))) : std::nullopt,
                       .stopped = r.value("stopped", false),
                       .heard_unix_s = r.at("heard")});
  return s;
} catch (const json::exception& error) {
  throw Error(ErrorCode::kIo, fmt::format("status.json is damaged: {}", error.what()));
}

void write_status(FileSystem& fs, const std::string& path, const RunStatus& status) {
  const std::string text = status.to_json() + "\n", temporary = path + ".new";
  if (fs.exists(temporary)) fs.remove_file(temporary);
  fs.create(temporary)->write_at(0, std::as_bytes(std::span(text)));
  fs.rename(temporary, path);
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
  return found_in(RunStatus::from_json(fs.read_text(path)), path.substr(0, path.rfind('/')));
}

}  // namespace trainctl
