#include "runtime/run/record/run_directory.h"

#include <fmt/format.h>

#include <filesystem>

#include "ckpt/checkpoint.h"
#include "ckpt/folders.h"
#include "runtime/base/paths.h"
#include "runtime/base/record.h"
#include "runtime/run/record/journal.h"
#include "runtime/run/wire/flight_ring.h"
#include "runtime/run/wire/stream.h"

namespace trainctl {
namespace {

constexpr int kLogLines = 200;

bool is_run(FileSystem& fs, const std::string& path) {
  return fs.exists(path + "/run.json") && fs.exists(path + "/job.json");
}

std::string latest_of(FileSystem& fs, const std::string& root, const std::vector<std::string>& ids) {
  std::string latest;
  double newest = -1;
  for (const std::string& id : ids) {
    const auto identity = read_identity(fs, {root + "/" + id});
    // Started last, or resumed last: the attempt file is replaced at every start.
    std::error_code ignored;
    const auto time = std::filesystem::last_write_time(root + "/" + id + "/attempt.json", ignored);
    double at = identity ? identity->created_unix_s : 0;
    if (!ignored)
      at = std::max(
          at, std::chrono::duration<double>(std::chrono::file_clock::to_sys(time).time_since_epoch()).count());
    if (at > newest) {
      newest = at;
      latest = id;
    }
  }
  return latest;
}

}  // namespace

std::string RunDirectory::rank_log(int rank) const { return fmt::format("{}/logs/rank-{}.log", path, rank); }

std::string folder_name(const RunDirectory& run) { return std::filesystem::path(run.path).filename().string(); }

std::string command_name(const RunDirectory& run) {
  const char* root = std::getenv("TRAINCTL_RUN_DIR");
  const std::string usual_root = root && *root ? root : "runs";
  const bool leads_there = usual_root[0] == '/' || !current_folder().empty();
  const bool usual =
      leads_there && absolute_path(usual_root) == std::filesystem::path(run.path).parent_path().string();
  return usual ? folder_name(run) : run.path;
}

std::string RunIdentity::to_json() const { return record_text(*this, 2) + "\n"; }
RunIdentity RunIdentity::from_json(const std::string& text) {
  return read_record<RunIdentity>(text, "run.json");
}

std::optional<RunIdentity> read_identity(FileSystem& fs, const RunDirectory& run) {
  if (!fs.exists(run.file("run.json"))) return std::nullopt;
  try {
    return RunIdentity::from_json(fs.read_text(run.file("run.json")));
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("{}; put {} back from a copy, or begin a new run from a checkpoint of this one: "
                            "trainctl launch {} --from {}/step-N",
                            error.what(), run.file("run.json"), run.job(), run.file("ckpt")));
  }
}

Problem write_problem(FileSystem& fs, const RunDirectory& run) {
  const std::string path = run.file("room.tmp");
  constexpr size_t kRecordBytes = size_t(256) << 10;
  try {
    fs.replace_text(path, std::string(kRecordBytes, ' '));
    fs.remove_file(path);
    return Problem::none();
  } catch (const Error& error) {
    return Problem(error.what());
  }
}

std::string AttemptFile::to_json() const { return record_text(*this, 2) + "\n"; }
AttemptFile AttemptFile::from_json(const std::string& text) {
  return read_record<AttemptFile>(text, "attempt.json");
}

std::string new_run_id(FileSystem& fs, const std::string& root, const std::string& name) {
  // Crockford's, of which none read alike, without the vowels: no id spells a word.
  static constexpr std::string_view kLetters = "0123456789BCDFGHJKMNPQRSTVWXZ";
  std::string stem;
  for (const char c : name)
    stem += std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' ? c : '-';
  while (true) {
    const std::string random = random_token();
    std::string id = stem + "-";
    for (int i = 0; i < 4; ++i)
      id += kLetters[std::stoi(random.substr(size_t(2 * i), 2), nullptr, 16) % kLetters.size()];
    if (!fs.exists(root + "/" + id)) return id;
  }
}

void create_run(FileSystem& fs, const RunDirectory& run, const RunIdentity& identity, const ParsedJob& job,
                const std::string& data_json) {
  fs.make_directories(run.path);
  for (const char* folder : {"logs", "failures"}) fs.make_directory(run.file(folder));
  fs.make_directories(run.checkpoints(job.job.checkpoint));
  fs.replace_text(run.job(), job.resolved_json + "\n");
  fs.replace_text(run.file("origins.json"), job.origins_json + "\n");
  fs.replace_text(run.file("data.json"), data_json + "\n");
  fs.replace_text(run.file("run.json"), identity.to_json());  // last: with it the run exists
}

std::vector<std::string> run_ids(FileSystem& fs, const std::string& root) {
  std::vector<std::string> ids;
  if (!fs.is_directory(root)) return ids;
  for (const std::string& name : fs.list(root))
    if (is_run(fs, root + "/" + name)) ids.push_back(name);
  return ids;
}

FoundRun find_run(FileSystem& fs, const std::string& name, const std::string& root) {
  const std::string path = absolute_path(name);
  if (is_run(fs, path)) return {{path}, std::nullopt};
  if (fs.exists(path + "/COMMIT")) {
    const std::filesystem::path folder(path);
    const std::string owner = folder.parent_path().parent_path().string(), leaf = folder.filename().string();
    const std::optional<int64_t> step = ckpt::step_of_name(leaf);
    if (is_run(fs, owner) && step) return {{owner}, step};
    if (is_run(fs, owner))
      throw Error(ErrorCode::kUsage,
                  fmt::format("{} is a checkpoint of run {} under a name that the run does not use; name one "
                              "of its own, {}/step-NNNNNNNN, or begin a new run from this one: "
                              "trainctl launch JOB --from {}",
                              name, owner, folder.parent_path().string(), name));
    throw Error(ErrorCode::kUsage,
                fmt::format("{} is a checkpoint, but {} is not the directory of its run; a new run may begin from it: "
                            "trainctl launch JOB --from {}",
                            name, owner, name));
  }
  if (fs.exists(path + "/config.json"))
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} is a folder of Hugging Face; make a checkpoint of it, from which a run may begin: "
                    "trainctl import {} --out {}.ckpt",
                    name, name, std::filesystem::path(path).filename().string()));
  const std::string home = absolute_path(root);
  const std::vector<std::string> ids = run_ids(fs, home);
  if (ids.empty())
    throw Error(ErrorCode::kUsage, fmt::format("there are no runs in {} and {} is not a run directory; start "
                                               "one with `trainctl launch JOB`, or name "
                                               "the folder of the runs with --run-dir",
                                               home, name));
  if (name == "latest") return {{home + "/" + latest_of(fs, home, ids)}, std::nullopt};
  std::vector<std::string> matches;
  for (const std::string& id : ids) {
    if (id == name) return {{home + "/" + id}, std::nullopt};
    if (id.starts_with(name)) matches.push_back(id);
  }
  if (matches.size() == 1) return {{home + "/" + matches[0]}, std::nullopt};
  const std::vector<std::string>& shown = matches.empty() ? ids : matches;
  std::string list;
  constexpr size_t kMostShown = 20;
  for (size_t i = 0; i < std::min(kMostShown, shown.size()); ++i) list += (i ? ", " : "") + shown[i];
  if (shown.size() > kMostShown) list += fmt::format(" and {} more", shown.size() - kMostShown);
  throw Error(ErrorCode::kUsage, matches.empty()
                                     ? fmt::format("no run {} in {}; there are: {}", name, home, list)
                                     : fmt::format("{} matches {} runs: {}; give more characters", name,
                                                   matches.size(), list));
}

std::string collect_failure(FileSystem& fs, const RunDirectory& run, const std::string& verdict_json, int rank,
                            int ranks) {
  const std::string failures = run.file("failures");
  int n = 1;
  while (fs.exists(fmt::format("{}/{}", failures, n))) ++n;
  const std::string folder = fmt::format("{}/{}", failures, n);
  fs.make_directory(folder);
  for (const std::string& name : fs.list(failures))
    if ((name.starts_with("rank-") && name.ends_with(".json")) || name.ends_with(kFlightSuffix))
      fs.rename(failures + "/" + name, folder + "/" + name);
  const auto keep_tail = [&](const std::string& log, const std::string& as) {
    const std::string text = tail_of(log, kLogLines);
    if (!text.empty()) fs.write_new_text(folder + "/" + as, text);
  };
  if (rank >= 0 && rank < ranks) keep_tail(run.rank_log(rank), fmt::format("rank-{}.log", rank));
  if (rank != 0) keep_tail(run.rank_log(0), "rank-0.log");
  keep_tail(run.file("logs/mpirun.log"), "mpirun.log");
  fs.write_new_text(folder + "/verdict.json", verdict_json + "\n");
  return folder;
}

}  // namespace trainctl
