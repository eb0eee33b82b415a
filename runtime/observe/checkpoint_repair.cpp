#include "runtime/observe/checkpoint_repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <memory>
#include <optional>
#include <set>

#include "ckpt/folders.h"
#include "ckpt/places.h"
#include "ckpt/repair.h"
#include "ckpt/store.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/run/record/run_directory.h"

namespace trainctl {
namespace {

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool is_step(FileSystem& fs, const std::string& path) {
  return ckpt::step_of_name(ckpt::base_name(path)) || fs.exists(path + "/manifest.json") ||
         fs.exists(path + "/COMMIT");
}

/// The folder of checkpoints that a path means which is not itself one.
std::string folder_of(FileSystem& fs, const std::string& path) {
  if (!fs.exists(path))
    throw Error(ErrorCode::kUsage,
                fmt::format("there is no {}; give a step folder or a run directory", path));
  if (fs.exists(path + "/job.json")) {
    const Json job = try_parse_json(fs.read_text(path + "/job.json"));
    if (job.is_object() && job.contains("checkpoint") && job["checkpoint"].is_object()) {
      const auto dir = job["checkpoint"].find("dir");
      if (dir != job["checkpoint"].end() && dir->is_string() && !dir->get<std::string>().empty())
        return without_slash(dir->get<std::string>());
    }
  }
  return fs.is_directory(path + "/ckpt") ? path + "/ckpt" : path;
}

/// All steps of a folder, newest first, then those set aside.
std::vector<std::string> steps_in(FileSystem& fs, const std::string& folder) {
  std::vector<std::string> paths;
  for (const int64_t step : ckpt::list_steps(fs, folder)) paths.push_back(ckpt::step_directory(folder, step));
  for (const ckpt::Superseded& aside : ckpt::list_superseded(fs, folder))
    for (const int64_t step : aside.steps) paths.push_back(ckpt::step_directory(aside.path, step));
  return paths;
}

std::string step_to_repair(FileSystem& fs, const std::string& given) {
  if (ckpt::is_object_place(given))
    throw Error(
        ErrorCode::kUsage,
        fmt::format(
            "{} is in an object store, whose objects cannot be changed; copy a good checkpoint there: "
            "trainctl inspect-ckpt GOOD --copy-to {}",
            given, given));
  const std::string path = without_slash(given);
  if (fs.exists(path) && is_step(fs, path)) return path;
  const std::string folder = folder_of(fs, path);
  const std::vector<int64_t> steps = ckpt::list_steps(fs, folder);
  if (steps.empty())
    throw Error(ErrorCode::kUsage, fmt::format("{} holds no checkpoint (no folder step-NNNNNNNN)", folder));
  return ckpt::step_directory(folder, steps[0]);
}

/// The lock of the run whose folder of checkpoints is to be written, so that its supervisor does not write
/// there too: `path` lies in the run's directory, or is it. Nothing for a folder of no run.
std::optional<RunLock> lock_of(FileSystem& fs, const std::string& path) {
  std::string folder = path;
  for (int level = 0; level < 3; ++level, folder = ckpt::parent_of(folder)) {
    if (!fs.exists(folder + "/run.json")) continue;
    const RunDirectory run{folder};
    if (auto lock = RunLock::try_take(run)) return lock;
    const auto place = supervisor_place(fs, run);
    const std::string who =
        place && place->pid > 0 ? fmt::format(" (supervisor pid {} on {})", place->pid, place->host) : "";
    throw Error(ErrorCode::kUsage,
                fmt::format("{} belongs to a run that is going{}: it repairs and removes checkpoints itself; "
                            "stop it first with `trainctl stop {}`",
                            path, who, folder));
  }
  return std::nullopt;
}

std::string finding_text(const ckpt::VerifyFinding& finding) {
  return fmt::format("{}{}: {} (at byte {})", finding.file,
                     finding.tensor.empty() ? "" : ": " + finding.tensor, finding.message, finding.offset);
}

OrderedJson findings_json(const std::vector<ckpt::VerifyFinding>& findings) {
  OrderedJson rows = OrderedJson::array();
  for (const auto& finding : findings)
    rows.push_back({{"file", finding.file},
                    {"tensor", finding.tensor},
                    {"message", finding.message},
                    {"offset", finding.offset}});
  return rows;
}

std::string report_text(const std::string& path, const ckpt::RepairReport& report, bool only_look) {
  std::string text = path + "\n";
  for (const auto& finding : report.found) text += fmt::format("✗ {}\n", finding_text(finding));
  for (const std::string& name : report.foreign)
    text += fmt::format("? {}: no part of this checkpoint, left alone\n", name);
  for (const auto& origin : report.origins)
    text += fmt::format("{} · {} from {}\n", count_of(int64_t(origin.chunks), "chunk"),
                        size_text(origin.bytes), origin.where);
  if (!report.is_good()) {
    for (const auto& finding : report.missing) text += fmt::format("lost: {}\n", finding_text(finding));
    return text +
           fmt::format(
               "✗ {} without a good copy; nothing was written. Name other places to look with --from\n",
               count_of(int64_t(report.missing.size()), "piece"));
  }
  if (report.found.empty()) return text + "✓ every hash matches; nothing to repair\n";
  if (only_look) return text + "all of it can be repaired; nothing was written\n";
  return text + fmt::format("✓ repaired: {} written anew, every hash matches\n",
                            count_of(int64_t(report.rewritten.size()), "file"));
}

}  // namespace

namespace {

/// The checkpoints in which good copies are looked for, in order.
class RepairSources {
 public:
  RepairSources(FileSystem& fs, Clock& clock, const CheckpointRepairOptions& options, const std::string& path)
      : fs_(fs), clock_(clock), options_(options), path_(path) {
    for (const std::string& from : options.from) {
      if (ckpt::is_object_place(from))
        add_objects(without_slash(from));
      else
        add_path(without_slash(from));
    }
    for (const std::string& step : steps_in(fs, ckpt::parent_of(path))) add(step);
  }
  std::span<const std::unique_ptr<ckpt::StoredFiles>> files() const { return files_; }

 private:
  void add(const std::string& place) {
    if (place == path_ || !known_.insert(place).second) return;
    files_.push_back(ckpt::stored_folder(fs_, place));
  }
  void add_path(const std::string& from) {
    if (fs_.exists(from) && is_step(fs_, from)) return add(from);
    for (const std::string& step : steps_in(fs_, folder_of(fs_, from))) add(step);
  }
  /// The copy of the same step first: most chunks are there.
  void add_objects(const std::string& from) {
    const ckpt::OpenPlace& place =
        places_.emplace_back(ckpt::open_reached_place(fs_, clock_, options_.environment, from));
    std::vector<int64_t> steps = place.store->list();
    if (steps.empty()) throw Error(ErrorCode::kUsage, fmt::format("{} holds no checkpoint", from));
    const auto damaged = ckpt::step_of_name(ckpt::base_name(path_));
    std::stable_partition(steps.begin(), steps.end(), [&](int64_t step) { return step == damaged; });
    for (const int64_t step : steps)
      if (auto copy = place.store->open(step)) files_.push_back(std::move(copy));
  }

  FileSystem& fs_;
  Clock& clock_;
  const CheckpointRepairOptions& options_;
  const std::string path_;
  std::list<ckpt::OpenPlace> places_;
  std::set<std::string> known_;
  std::vector<std::unique_ptr<ckpt::StoredFiles>> files_;  // of the places
};

}  // namespace

CheckpointOutcome repair_checkpoint(FileSystem& fs, Clock& clock, const CheckpointRepairOptions& options) {
  const std::string path = step_to_repair(fs, options.path);
  // A run whose checkpoints lie elsewhere (checkpoint.dir) is known if it is what was given.
  const bool is_run = fs.exists(options.path + "/run.json");
  const auto lock =
      options.only_look ? std::nullopt : lock_of(fs, is_run ? without_slash(options.path) : path);
  const RepairSources sources(fs, clock, options, path);
  const ckpt::RepairReport report =
      ckpt::repair(*ckpt::stored_folder(fs, path), sources.files(), options.only_look);

  CheckpointOutcome outcome{.damaged = !report.is_good() || (options.only_look && !report.found.empty())};
  if (!options.json) {
    outcome.text = report_text(path, report, options.only_look);
    return outcome;
  }
  OrderedJson origins = OrderedJson::array();
  for (const auto& origin : report.origins)
    origins.push_back({{"from", origin.where}, {"chunks", origin.chunks}, {"bytes", origin.bytes}});
  outcome.text = dump_json(OrderedJson{{"path", path},
                                        {"ok", !outcome.damaged},
                                        {"found", findings_json(report.found)},
                                        {"missing", findings_json(report.missing)},
                                        {"rewritten", report.rewritten},
                                        {"foreign", report.foreign},
                                        {"origins", origins}}) +
                 "\n";
  return outcome;
}

CheckpointOutcome copy_checkpoint(FileSystem& fs, Clock& clock, const CheckpointMoveOptions& options) {
  const std::string path = without_slash(options.path);
  const bool is_object = ckpt::is_object_place(path);
  const ckpt::OpenPlace source = ckpt::open_reached_place(
      fs, clock, options.environment, is_object || is_step(fs, path) ? path : folder_of(fs, path));
  std::unique_ptr<ckpt::Checkpoint> from;
  if (!is_object && fs.exists(path) && is_step(fs, path))
    from = ckpt::Checkpoint::open(fs, path);
  else
    from = ckpt::open_latest(*source.store, -1, nullptr);
  if (!from) throw Error(ErrorCode::kCheckpoint, fmt::format("{} holds no checkpoint that opens", path));
  const auto lock = ckpt::is_object_place(options.to) ? std::nullopt : lock_of(fs, without_slash(options.to));
  const ckpt::OpenPlace target_place = ckpt::open_reached_place(fs, clock, options.environment, options.to);
  ckpt::Store* const to = target_place.store.get();
  const ckpt::CopyReport report = ckpt::copy(*from, *to);
  const std::string target = to->open(from->state().step)->where();
  CheckpointOutcome outcome;
  if (options.json)
    outcome.text = dump_json(OrderedJson{{"from", from->path()},
                                          {"to", target},
                                          {"step", from->state().step},
                                          {"root", from->root_hash()},
                                          {"files", report.files},
                                          {"chunks", report.chunks},
                                          {"bytes", report.bytes},
                                          {"was_there", report.was_there}}) +
                   "\n";
  else if (report.was_there)
    outcome.text = fmt::format("{} is there already, with the same state\n", target);
  else
    outcome.text = fmt::format("✓ {} · {} · {} · every hash matches · state {}\n", target,
                               count_of(int64_t(report.files), "file"), size_text(report.bytes),
                               from->root_hash().substr(0, 16));
  return outcome;
}

}  // namespace trainctl
