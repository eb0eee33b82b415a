#include "runtime/run/record/run_status.h"

#include <fmt/format.h>

#include <span>

#include "runtime/base/error.h"
#include "runtime/base/record.h"

namespace trainctl {

namespace {

Json ranks_json(const std::vector<RankStatus>& ranks) { return RecordWriter<Json>::json_of(ranks); }

std::vector<RankStatus> ranks_of(const Json& list) try {
  std::vector<RankStatus> ranks;
  RecordReader<Json>::read(list, ranks);
  return ranks;
} catch (const JsonError& error) {
  throw BadRecord(error.what());
}

/// "DIR/ranks.json" of "DIR/status.json".
std::string ranks_path(const std::string& path) { return path.substr(0, path.rfind('/') + 1) + "ranks.json"; }

}  // namespace

void replace_view(FileSystem& fs, const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  if (fs.exists(temporary)) fs.remove_file(temporary);
  fs.create(temporary)->write_at(0, std::as_bytes(std::span(text)));
  fs.rename(temporary, path);
}

std::string RunStatus::to_json(bool with_ranks) const {
  Json j = Json::object();
  RecordWriter writer(j);
  fields_but_ranks(writer, *this);
  j["ranks"] = with_ranks ? ranks_json(ranks) : Json::array();
  if (last_step.step == 0) j["last_step"] = Json::object();
  return dump_json(j);
}

RunStatus RunStatus::from_json(const std::string& text) {
  return read_record<RunStatus>(text, "status.json");
}

void write_status(FileSystem& fs, const std::string& path, const RunStatus& status, bool with_ranks) {
  const bool apart = status.ranks.size() > kMostRanksInStatus;
  replace_view(fs, path, status.to_json(!apart) + "\n");
  if (apart && with_ranks) replace_view(fs, ranks_path(path), dump_json(ranks_json(status.ranks)) + "\n");
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

std::optional<RunStatus> read_status(FileSystem& fs, const std::string& path) try {
  if (!fs.exists(path)) return std::nullopt;
  RunStatus status = found_in(RunStatus::from_json(fs.read_text(path)), path.substr(0, path.rfind('/')));
  if (status.ranks.empty() && fs.exists(ranks_path(path))) {
    const Json list = try_parse_json(fs.read_text(ranks_path(path)));
    if (list.is_array()) status.ranks = ranks_of(list);
  }
  return status;
} catch (const BadRecord& error) {
  throw Error(ErrorCode::kIo, fmt::format("ranks.json is damaged: {}", error.what()));
}

TriedStatus try_read_status(FileSystem& fs, const std::string& path) try {
  return {.status = read_status(fs, path)};
} catch (const Error& error) {
  return {.problem = Problem(error.what())};
}

}  // namespace trainctl
