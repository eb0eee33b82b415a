// trainctl verify: computes recorded steps of a run again and compares them with the record, bit for bit.
#include "cmd/verify.h"

#include <unistd.h>

#include <cmath>
#include <memory>

#include "cmd/chosen_mesh.h"
#include "cmd/output.h"
#include "cmd/runs.h"
#include "runtime/base/digits.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/text.h"
#include "runtime/supervise/start/replay.h"

namespace trainctl::cmd {
namespace {

using terminal::RunComparison;

/// Relative, of a loss, where the bits cannot be the same.
constexpr double kLossTolerance = 0.02;

/// A checkpoint of the run, and the digest that metrics.jsonl has of its step.
struct SavedStep {
  BranchPoint point;
  std::string problem;  ///< its state is not the one that the run recorded; "": it is, or is not recorded
};

std::unique_ptr<report::RunReader> reader_of(const RunDirectory& run) {
  return std::make_unique<report::RunReader>(real_file_system(), run,
                                             report::RunReader::Parts{.plan = false, .ranks = false});
}

SavedStep saved_step(const RunDirectory& run, int64_t step, const report::RunData& recorded) {
  SavedStep saved{.point = find_branch_point(real_file_system(), fmt::format("{}@{}", run.path, step), "",
                                             [](const std::string&, const std::string&) {}),
                  .problem = ""};
  const auto digest = saved_digest(saved.point.state);
  for (const report::StepRow& row : recorded.steps.rows())
    if (row.step == step && row.state_digest && digest && *row.state_digest != *digest)
      saved.problem = fmt::format(
          "the checkpoint of step {} is not the state that the run recorded: its digest is {}, and "
          "metrics.jsonl has {}",
          step, hex64(*digest), hex64(*row.state_digest));
  return saved;
}

std::vector<int64_t> steps_saved(const RunDirectory& run, const std::string& working_directory) {
  FileSystem& fs = real_file_system();
  const ParsedJob job = parse_job({.text = fs.read_text(run.job()),
                                   .file = run.job(),
                                   .folder = working_directory,
                                   .overrides = {},
                                   .environment = {}});
  const std::string folder = job.ok() ? run.checkpoints(job.job.checkpoint) : run.file("ckpt");
  return fs.is_directory(folder) ? ckpt::list_steps(fs, folder) : std::vector<int64_t>();
}

void decide(const std::string& other_bits, Verified& v) {
  const RunComparison& found = v.found;
  if (found.common_steps < v.to - v.from) {
    v.verdict = VerifyVerdict::undecided;
    v.why = fmt::format("metrics.jsonl has {} of the {} steps that were computed again", found.common_steps,
                        v.to - v.from);
    return;
  }
  if (!found.first_difference) {
    v.verdict = VerifyVerdict::identical;
    if (found.equal_digests == 0)
      v.notes.push_back(
          "the run recorded no digest of its state in these steps: their losses and gradient norms "
          "alone were compared");
    return;
  }
  const auto& d = *found.first_difference;
  v.why = fmt::format("step {} differs: {} recorded {}, computed again {}", d.step, d.name, d.text_a(),
                      d.text_b());
  v.verdict = VerifyVerdict::different;
  if (other_bits.empty()) return;
  const auto& most = found.largest_of_losses;
  if (most && std::abs(most->a - most->b) > kLossTolerance * std::abs(most->a)) return;
  v.verdict = VerifyVerdict::within_tolerance;
  v.why = fmt::format("{}; the losses differ by at most {:.2g}, within {:.0f} %", other_bits,
                      most ? std::abs(most->a - most->b) : 0.0, 100 * kLossTolerance);
}

/// What a replay has to say is of interest where it fails.
struct KeptConsole final : Console {
  std::vector<std::string> lines;
  void say(const std::string& line) override { lines.push_back(line); }
  void note(const std::string&) override {}
  void step(const StepLine&, bool, double) override {}
  void clear() override {}
  void set_total_steps(int64_t) override {}
};

/// Runs the branch; its folder.
RunDirectory run_replay(const VerifyRequest& request, const ReplayRange& range, const SavedStep& to,
                        std::optional<BranchPoint> from, std::string& other_bits, const Context& context) {
  FileSystem& fs = real_file_system();
  const std::string root = request.run.path + "/verify",
                    id = fmt::format("replay-{}-{}-{}", range.from.value_or(0), range.to, ::getpid());
  const RunDirectory replay{root + "/" + id};
  const auto identity = read_identity(fs, request.run);
  const std::string file = to.point.checkpoint + "/manifest.json", text = to.point.state.resolved_spec_json;
  // Specs of older runs have relative paths, which begin at the folder of the launch.
  const std::string folder = identity ? identity->working_directory : "";
  const ParsedJob before =
      parse_job({.text = text, .file = file, .folder = folder, .overrides = {}, .environment = {}});
  std::vector<std::string> overrides =
      before.ok() ? with_world_size(before, request.overrides) : request.overrides;
  for (std::string& one : replay_overrides(root, id)) overrides.push_back(std::move(one));
  auto job = load_job_text(text, file, overrides, context, folder);
  if (!job) throw Error(ErrorCode::kSpec, "the job of the replay has mistakes, see above");
  job = as_computed(*job);  // a launch would decide what it left open
  require_mesh(job->job.parallelism.mesh_from, "verify");
  const JobSpec spec = job->job;
  const LaunchRequest launch{.job = std::move(*job),
                             .program = own_program(),
                             .command = context.arguments,
                             .max_steps = range.to,
                             .from = std::move(from),
                             .remedies = recorded_remedies(to.point.state)};
  outlive_readers();
  KeptConsole console;
  const RunResult result = launch_run(launch, fs, real_clock(), console);
  // It stops on request, by --max-steps; or it has come to the end of the schedule.
  if (result.exit_code != kExitDone && result.exit_code != exit_status(ErrorCode::kStopped)) {
    for (const std::string& line : console.lines) fmt::print(stderr, "{}\n", line);
    throw Error(ErrorCode::kWorker,
                fmt::format("the replay failed with exit status {}; its records are in {}", result.exit_code,
                            replay.path));
  }
  const auto own = read_identity(fs, replay);
  other_bits = why_not_same_bits(to.point.state, spec, own ? own->numerics : "");
  // A resume on other devices or another tensor width is between the two.
  if (other_bits.empty() && launch.from)
    other_bits = why_not_same_bits(launch.from->state, spec, own ? own->numerics : "");
  return replay;
}

struct VerifyOptions {
  RunArguments run;
  std::vector<std::string> overrides;
  std::string against;
  int64_t steps = 1;
  std::string to = "latest";
  bool keep = false;
};

OrderedJson verify_json(const std::string& id, const Verified& v) {
  OrderedJson json = {{"run", id},
                      {"verdict", word_of(v.verdict)},
                      {"why", v.why},
                      {"notes", v.notes},
                      {"from", v.from},
                      {"to", v.to},
                      {"steps", v.found.common_steps},
                      {"equal_steps", v.found.equal_steps},
                      {"equal_digests", v.found.equal_digests},
                      {"replay", v.replay}};
  if (const auto& d = v.found.first_difference)
    json["first_difference"] = {
        {"step", d->step}, {"number", d->name}, {"recorded", d->text_a()}, {"again", d->text_b()}};
  return json;
}

int exit_of(VerifyVerdict verdict) {
  return verdict == VerifyVerdict::identical || verdict == VerifyVerdict::within_tolerance ? kExitDone
                                                                                           : kExitDifferences;
}

/// What two runs recorded of the steps that both have.
Verified verify_against(const RunDirectory& run, const RunDirectory& other) {
  const auto a = reader_of(run), b = reader_of(other);
  Verified v;
  v.found = terminal::compare_runs(a->read(false), b->read(false));
  v.from = v.found.common_steps > 0 ? v.found.first_step - 1 : 0, v.to = v.found.last_step;
  if (!v.found.compared_anything()) {
    v.why = "the runs have no step and no checkpoint in common";
    return v;
  }
  v.verdict = v.found.identical() ? VerifyVerdict::identical : VerifyVerdict::different;
  if (const auto& d = v.found.first_difference)
    v.why = fmt::format("step {} differs: {} {} / {}", d->step, d->name, d->text_a(), d->text_b());
  else if (!v.found.different_checkpoints.empty())
    v.why = fmt::format("the checkpoints of step {} differ", v.found.different_checkpoints.front());
  if (v.found.equal_digests == 0)
    v.notes.push_back(
        "no step has a digest of its state in both runs: losses and gradient norms alone were compared");
  return v;
}

int verify(const VerifyOptions& options, const Context& context) {
  const FoundRun found = find_run(options.run);
  VerifyRequest request{.run = found.run,
                        .steps = options.steps,
                        .to = found.step,
                        .overrides = options.overrides,
                        .keep = options.keep};
  if (options.to != "latest") {
    const auto step = whole_number(options.to);
    if (!step)
      throw Error(ErrorCode::kUsage,
                  fmt::format("--step {} is neither a step number nor `latest`", options.to));
    request.to = int64_t(*step);
  }
  const Verified v = options.against.empty()
                         ? verify_run(request, context)
                         : verify_against(found.run, find_run({options.against, options.run.root}).run);
  if (context.json)
    print_json("verify", verify_json(command_name(found.run), v));
  else
    for (const std::string& line : v.lines()) fmt::print("{}\n", line);
  return exit_of(v.verdict);
}

}  // namespace

std::vector<std::string> Verified::lines() const {
  std::vector<std::string> lines;
  const std::string steps = to > from ? fmt::format("steps {} to {}", from + 1, to) : "no step";
  switch (verdict) {
    case VerifyVerdict::identical:
      lines.push_back(
          fmt::format("identical, bit for bit: {}; the digest of the whole state after {} of them", steps,
                      found.equal_digests));
      break;
    case VerifyVerdict::within_tolerance:
      lines.push_back(fmt::format("within tolerance: {}: {}", steps, why));
      break;
    case VerifyVerdict::different:
      lines.push_back(fmt::format("different: {}", why));
      if (found.common_steps > 0)
        lines.push_back(fmt::format("compared: {}; {} equal", steps, count_of(found.equal_steps, "step")));
      break;
    case VerifyVerdict::undecided: lines.push_back(fmt::format("undecided: {}", why)); break;
  }
  for (const std::string& note : notes) lines.push_back("note: " + note);
  if (!replay.empty()) lines.push_back("the replay's records: " + replay);
  return lines;
}

Verified verify_run(const VerifyRequest& request, const Context& context) {
  FileSystem& fs = real_file_system();
  const auto identity = read_identity(fs, request.run);
  if (!identity) throw Error(ErrorCode::kUsage, fmt::format("{} is not a run directory", request.run.path));
  const ReplayRange range = choose_replay(
      steps_saved(request.run, identity->working_directory),
      {.steps = request.steps, .to = request.to, .begins_with_weights = identity->parent_checkpoint.empty()});
  Verified v;
  v.from = range.from.value_or(0), v.to = range.to;
  if (!range.problem.empty()) {
    v.why = range.problem;
    return v;
  }
  if (!range.note.empty()) v.notes.push_back(range.note);
  const auto recorded = reader_of(request.run);
  const report::RunData& data = recorded->read(false);
  const SavedStep to = saved_step(request.run, range.to, data);
  std::optional<SavedStep> from;
  if (range.from) from = saved_step(request.run, *range.from, data);
  for (const std::string& problem : {to.problem, from ? from->problem : ""})
    if (!problem.empty()) {
      v.verdict = VerifyVerdict::different;
      v.why = problem;
      return v;
    }
  std::string other_bits;
  const RunDirectory replay =
      run_replay(request, range, to, from ? std::optional(from->point) : std::nullopt, other_bits, context);
  const auto again = reader_of(replay);
  v.found = terminal::compare_runs(data, again->read(false));
  decide(other_bits, v);
  if (request.keep || v.verdict == VerifyVerdict::different || v.verdict == VerifyVerdict::undecided)
    v.replay = replay.path;
  else
    fs.remove_tree(replay.path);
  const std::string all = request.run.path + "/verify";
  if (fs.list(all).empty()) fs.remove_directory(all);
  return v;
}

void add_verify(CommandLine& app, Context& context) {
  auto options = std::make_shared<VerifyOptions>();
  CommandLine command = app.add_subcommand(
      "verify", "compute recorded steps of a run again and compare them bit for bit (exit 20: they differ)");
  add_run_arguments(command, options->run, true);
  add_set_option(command, options->overrides);
  command
      .add_option(
          "--steps", options->steps,
          "at least so many steps before the checkpoint, from an older checkpoint that is so far back; "
          "default: from the checkpoint before it")
      .positive()
      .type_name("K");
  command
      .add_option("--step", options->to, "the checkpoint up to which steps are computed again, or `latest`")
      .type_name("N|latest");
  command
      .add_option("--against", options->against,
                  "compute nothing: compare what this run recorded with what another one did, step by step")
      .type_name("OTHER");
  command.add_flag("--keep", options->keep, "keep the records of the steps that were computed again");
  when_chosen(command, context, [options, &context] { return verify(*options, context); });
}

}  // namespace trainctl::cmd
