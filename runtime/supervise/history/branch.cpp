#include "runtime/supervise/history/branch.h"

#include <fmt/format.h>

#include <filesystem>

#include "data/data_record.h"
#include "runtime/base/digits.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/paths.h"
#include "runtime/machine/mpirun.h"
#include "runtime/supervise/preflight/preflight.h"
#include "runtime/train/schedule.h"

namespace trainctl {
namespace {

struct RunAndStep {
  std::string run;
  std::optional<int64_t> step;
};

/// "base@500" as run and step. A folder may have an @ in its name, so what exists is a run as it is.
RunAndStep split_step(FileSystem& fs, const std::string& name) {
  const size_t at = name.rfind('@');
  if (at == std::string::npos || fs.exists(name)) return {name, std::nullopt};
  const std::string step = name.substr(at + 1);
  if (step == "latest") return {name.substr(0, at), std::nullopt};
  const auto number = whole_number(step);
  if (!number)
    throw Error(ErrorCode::kUsage, fmt::format("--from {}: {} is neither a step number nor `latest`", name, step));
  return {name.substr(0, at), int64_t(*number)};
}

/// Where the run keeps its checkpoints, absolute.
std::string checkpoints_of(FileSystem& fs, const RunDirectory& run) {
  const ParsedJob job = parse_job({.text = fs.read_text(run.job()), .file = run.job(), .overrides = {}, .environment = {}});
  const std::filesystem::path folder = job.ok() ? run.checkpoints(job.job.checkpoint) : run.file("ckpt");
  const auto identity = read_identity(fs, run);
  return folder.is_absolute() || !identity ? folder.string() : (identity->working_directory / folder).lexically_normal().string();
}

std::unique_ptr<ckpt::Checkpoint> open_branch_point(FileSystem& fs, const std::string& name, const std::string& run_root,
                                                    const std::function<void(const std::string&, const std::string&)>& skipped) {
  const std::string path = absolute_path(name);
  if (fs.exists(path + "/COMMIT")) return ckpt::Checkpoint::open(fs, path);
  const RunAndStep wanted = split_step(fs, name);
  const FoundRun found = find_run(fs, wanted.run, run_root);
  const std::string directory = checkpoints_of(fs, found.run);
  if (wanted.step) return open_step(fs, directory, *wanted.step);
  auto newest = ckpt::open_latest(fs, directory, -1, skipped);
  if (!newest)
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{} has no usable checkpoint to begin from; launch the job without --from", directory));
  return newest;
}

/// Whether the branch reads on where the checkpoint's data stopped: the same tokens, cut and shuffled alike.
bool same_data(const BranchPoint& from, const std::vector<FieldChange>& changes, const std::string& data_json) {
  for (const FieldChange& change : changes)
    if (change.part == SpecPart::data && change.change >= Change::numerics) return false;
  const Json extra = try_parse_json(from.state.extra_json);
  if (!extra.is_object() || !extra.contains("data")) return false;
  return data::changed_data(dump_json(Json{{"train", extra["data"]}}), data_json).is_none();
}

}  // namespace

std::unique_ptr<ckpt::Checkpoint> open_step(FileSystem& fs, const std::string& directory, int64_t step) {
  const std::string path = ckpt::step_directory(directory, step);
  if (fs.exists(path)) return ckpt::Checkpoint::open(fs, path);
  std::string have;
  if (fs.is_directory(directory))
    for (const int64_t other : ckpt::list_steps(fs, directory)) have += fmt::format("{}{}", have.empty() ? "" : ", ", other);
  throw Error(ErrorCode::kCheckpoint, fmt::format("there is no checkpoint of step {} in {}; {}", step, directory,
                                                  have.empty() ? "it has none at all" : "it has those of steps " + have));
}

ParsedJob as_computed(const ParsedJob& job) {
  std::vector<std::string> left_open;
  if (job.job.data.documents == Documents::automatic && !job.job.data.masks_documents())
    left_open.push_back("data.documents=ignore");
  if (job.job.data.loss == TargetLoss::automatic) left_open.push_back("data.loss=all");
  return left_open.empty() ? job : with_decided(job, left_open, "as an older program did");
}

BranchPoint find_branch_point(FileSystem& fs, const std::string& name, const std::string& run_root,
                              const std::function<void(const std::string&, const std::string&)>& skipped) {
  const auto checkpoint = open_branch_point(fs, name, run_root, skipped);
  BranchPoint from{.checkpoint = checkpoint->path(), .root_hash = checkpoint->root_hash(), .state = checkpoint->state(), .job = {}};
  const Json extra = try_parse_json(from.state.extra_json);
  from.imported = extra.is_object() && extra.contains("imported_from");
  from.job = parse_job({.text = from.state.resolved_spec_json, .file = from.checkpoint, .overrides = {}, .environment = {}});
  if (!from.job.ok())
    throw Error(ErrorCode::kCheckpoint, fmt::format("{} holds no usable job spec: {}", from.checkpoint,
                                                    from.job.diagnostics.empty() ? "" : from.job.diagnostics.front().message));
  if (!from.imported) from.job = as_computed(from.job);
  return from;
}

namespace {

/// The effect of schedule.batch_lr_rule on a branch: "linear, × 2"; "" if the rule changes nothing.
std::string lr_rule_of(const BranchPoint& from, const JobSpec& job) {
  if (from.imported) return "";
  const BatchLrRule rule = job.schedule.batch_lr_rule;
  const double factor = batch_lr_factor(rule, from.job.job.tokens_per_step(), job.tokens_per_step());
  return factor == 1 ? ""
                     : fmt::format("{}, × {:.6g}", rule == BatchLrRule::linear ? "linear" : "sqrt", factor);
}

}  // namespace

ParsedJob with_batch_lr_rule(const BranchPoint& from, const ParsedJob& job) {
  const std::string rule = lr_rule_of(from, job.job);
  if (rule.empty()) return job;
  const ScheduleSpec& s = job.job.schedule;
  const int64_t before = from.job.job.tokens_per_step(), now = job.job.tokens_per_step();
  const double factor = batch_lr_factor(s.batch_lr_rule, before, now);
  constexpr double kHighest = 10;
  if (s.lr * factor > kHighest)
    throw Error(
        ErrorCode::kSpec,
        fmt::format("schedule.lr = {} would become {} by schedule.batch_lr_rule {}, above {}; give a lower "
                    "schedule.lr, or -s schedule.batch_lr_rule=none",
                    s.lr, s.lr * factor, rule, kHighest));
  return with_decided(
      job,
      {fmt::format("schedule.lr={}", s.lr * factor), fmt::format("schedule.min_lr={}", s.min_lr * factor)},
      fmt::format("schedule.batch_lr_rule {}: steps of {} → {} tokens", rule, before, now));
}

LineageEntry branch_entry(const BranchPoint& from, const ParsedJob& job, const std::string& data_json) {
  LineageEntry entry{.kind = LineageEntry::branch, .run_id = from.state.run_id, .step = from.state.step, .root = from.root_hash};
  const std::vector<FieldChange> changes = changed_fields(from.job, job);
  for (const FieldChange& change : changes)
    if (change.change != Change::free && (!from.imported || change.part == SpecPart::model))
      entry.changes.push_back(change);
  entry.new_data = !same_data(from, changes, data_json);
  entry.lr_rule = lr_rule_of(from, job.job);
  return entry;
}

std::optional<int64_t> step_to_branch_from(FileSystem& fs, const RunDirectory& run, int64_t total_steps) {
  const std::string directory = checkpoints_of(fs, run);
  if (!fs.is_directory(directory)) return std::nullopt;
  for (const int64_t step : ckpt::list_steps(fs, directory))
    if (step < total_steps) return step;
  return std::nullopt;
}

std::string branch_command(const std::string& run_path, std::optional<int64_t> step, const std::vector<std::string>& overrides) {
  LaunchLine line;
  line.argv = {"trainctl", "launch", run_path + "/job.json", "--from", step ? fmt::format("{}@{}", run_path, *step) : run_path};
  for (const std::string& override : overrides) line.argv.insert(line.argv.end(), {"-s", override});
  return shell_text(line);
}

}  // namespace trainctl
