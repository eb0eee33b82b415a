#include "runtime/supervise/start/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>

#include "ckpt/checkpoint.h"
#include "ckpt/memory_folder.h"
#include "runtime/base/paths.h"
#include "runtime/machine/bundle.h"
#include "runtime/machine/mpirun.h"
#include "runtime/machine/rank_device.h"
#include "runtime/run/record/known_status.h"
#include "runtime/supervise/attempt/attempt.h"
#include "runtime/supervise/care/run_store.h"
#include "runtime/supervise/nodes/own_address.h"
#include "runtime/supervise/preflight/job_files.h"
#include "runtime/supervise/preflight/preflight.h"
#include "runtime/supervise/preflight/storage.h"
#include "runtime/supervise/start/start.h"
#include "runtime/train/schedule.h"

namespace trainctl {

void refuse_foreign_checkpoints(FileSystem& fs, const std::string& directory) {
  if (!fs.is_directory(directory)) return;
  const auto steps = ckpt::list_steps(fs, directory);
  if (!steps.empty())
    throw Error(
        ErrorCode::kPreflight,
        fmt::format("{} already holds checkpoints of another run (step {} and others); give this run another "
                    "checkpoint.dir, or continue that one with `trainctl resume`",
                    directory, steps.front()));
}

namespace {

/// The data of the run that this one begins from; null: it begins with none of them.
const DataSpec* parent_data(const LaunchRequest& request) {
  return request.from && !request.from->imported ? &request.from->job.job.data : nullptr;
}

}  // namespace

LaunchPreview preview_launch(const LaunchRequest& request, FileSystem& fs) {
  const ParsedJob decided = with_data_decided(with_device(request.job, device_of_run(request.job.job, fs)),
                                              fs, parent_data(request));
  const ParsedJob parsed = request.from ? with_batch_lr_rule(*request.from, decided) : decided;
  const JobSpec& job = parsed.job;
  const RunNodes nodes = nodes_of(job, fs);
  const Preflight preflight =
      check_machine_and_data(job, fs, ranks_here(nodes), second_ranks_here(job, job.checkpoint, nodes));
  const std::string root = absolute_path(job.observability.run_dir);
  const std::string id = job.observability.run_id.empty() ? job.name + "-XXXX" : job.observability.run_id;
  const RunDirectory run{root + "/" + id};
  LaunchPreview preview;
  preview.run_directory = run.path;
  if (request.from) preview.branch = describe(branch_entry(*request.from, parsed, preflight.data_json));
  preview.memory = preflight.memory_text;
  preview.copies_note = preflight.copies_note;
  for (const char* name : {"job.json", "origins.json", "data.json", "run.json", "attempt.json",
                           "metrics.jsonl", "events.jsonl", "status.json"})
    preview.files.push_back(run.file(name));
  preview.files.push_back(fmt::format("{} .. rank-{}.log", run.rank_log(0), job.mesh().world_size() - 1));
  preview.files.push_back(run.checkpoints(job.checkpoint) + "/step-SSSSSSSS/");
  std::vector<LaunchHost> hosts;
  if (!nodes.one_machine) {
    const PlacementResult placed =
        place(job.mesh(), nodes.nodes, {.tensor_across_nodes = job.launcher.tensor_across_nodes});
    if (!placed.ok()) throw Error(ErrorCode::kPlan, placed.refusal);
    preview.placement = describe_placement(job.mesh(), nodes.nodes, placed.placement);
    std::vector<std::string> names;
    for (const ClusterNode& node : nodes.nodes) names.push_back(node.name);
    // This machine needs no remote shell.
    if (names.size() > 1 && is_this_machine(names[0])) std::swap(names[0], names[1]);
    preview.agents = describe_agent_start(
        nodes.start, {.program = request.program, .run_directory = run.path, .mpirun = preflight.mpirun},
        names);
    for (const RankRange& range : placed.placement.ranges)
      hosts.push_back({nodes.nodes[size_t(range.node)].name, range.count});
  }
  preview.command = shell_text(mpirun_line({.env = job.launcher.env,
                                            .nccl_buffer_kib = job.parallelism.nccl.buffer_kib,
                                            .hosts = hosts,
                                            .world_size = job.mesh().world_size(),
                                            .mpirun = preflight.mpirun,
                                            .program = request.program,
                                            .run_directory = run.path,
                                            .session_folder = "/tmp/trainctl.XXXXXX",
                                            .shared_memory_folder = "/dev/shm/trainctl.XXXXXX",
                                            .bundle = own_bundle(),
                                            .homeless = !std::getenv("HOME"),
                                            .root = ::geteuid() == 0,
                                            .cross_memory_attach = preflight.cross_memory_attach}));
  return preview;
}

namespace {

bool given_by_override(const ParsedJob& job, const std::string& path) {
  return std::any_of(job.values.begin(), job.values.end(),
                     [&](const EffectiveValue& v) { return v.path == path && v.by_override; });
}

/// A branch that is launched with its parent's own job.json is another run.
ParsedJob without_run_id_of_parent(const ParsedJob& job, const BranchPoint& from) {
  const bool parents = job.job.observability.run_id == from.job.job.observability.run_id;
  if (!parents || given_by_override(job, "observability.run_id")) return job;
  return with_decided(job, {"observability.run_id="}, "default");
}

/// And saves in a folder of its own.
ParsedJob with_own_checkpoint_dir(const ParsedJob& job, const BranchPoint& from, const std::string& id) {
  const std::string& dir = job.job.checkpoint.dir;
  if (dir.empty() || dir != from.job.job.checkpoint.dir || given_by_override(job, "checkpoint.dir"))
    return job;
  return with_decided(job, {fmt::format("checkpoint.dir={}-{}", dir, id)},
                      "the parent's, with the id of this run");
}

void require_steps_left(const BranchPoint& from, const JobSpec& job) {
  if (from.state.step < job.schedule.total_steps) return;
  throw Error(ErrorCode::kSpec, fmt::format("{} is of step {} and schedule.total_steps = {}, which counts "
                                            "from the parent's first step: nothing is left to "
                                            "train; raise it, e.g. -s schedule.total_steps={}",
                                            from.checkpoint, from.state.step, job.schedule.total_steps,
                                            from.state.step + job.schedule.total_steps));
}

void begin_from(const BranchPoint& from, const Ready& ready, RunIdentity& identity, SupervisePlan& plan) {
  std::vector<LineageEntry> lineage = lineage_of(from.state.lineage_json);
  lineage.push_back(branch_entry(from, plan.job, ready.preflight.data_json));
  if (!from.imported && from.state.numerics != ready.numerics) {
    lineage.back().numerics_before = from.state.numerics;
    lineage.back().numerics = ready.numerics;
  }
  identity.lineage_json = plan.lineage_json = lineage_json(lineage);
  identity.parent_checkpoint = from.checkpoint;
  plan.start = {.checkpoint = from.checkpoint, .step = from.state.step, .new_data = lineage.back().new_data};
  plan.resume_from = from.checkpoint;
  plan.resume_step = from.state.step;
  plan.change_json = to_json(lineage.back());
}

void print_branch(Console& console, const BranchPoint& from, const RunIdentity& identity, const JobSpec& job,
                  const Ready& ready) {
  const LineageEntry entry = lineage_of(identity.lineage_json).back();
  console.note("branch      " + describe(entry));
  if (from.imported) {
    console.note("optimizer   from its start: the checkpoint was imported");
    return;
  }
  console.note(fmt::format("data        {}",
                           entry.new_data
                               ? "others than the parent's: from their start"
                               : fmt::format("position {} tokens, as the parent's", from.state.tokens)));
  console.note(fmt::format(
      "schedule    step {} has lr {:.4g} (in the parent {:.4g}); weights and optimizer state carry over",
      from.state.step + 1, learning_rate(job.schedule, from.state.step),
      learning_rate(from.job.job.schedule, from.state.step)));
  console.note("numerics    " + describe_numerics(from.state.numerics, ready.numerics));
}

/// "schedule.total_steps 118 → 121, parallelism.data 1 → 2"; "": the values are the same.
std::string differences_of(const ParsedJob& before, const ParsedJob& now) {
  constexpr size_t kMostShown = 6;
  std::vector<std::string> found;
  for (const EffectiveValue& value : now.values) {
    const auto old = std::find_if(before.values.begin(), before.values.end(),
                                  [&](const EffectiveValue& v) { return v.path == value.path; });
    if (old != before.values.end() && (old->value == value.value || old->is_auto || value.is_auto)) continue;
    found.push_back(
        fmt::format("{} {} → {}", value.path, old == before.values.end() ? "none" : old->value, value.value));
  }
  std::string text;
  for (size_t i = 0; i < std::min(found.size(), kMostShown); ++i) text += (i ? ", " : "") + found[i];
  return found.size() > kMostShown ? fmt::format("{} and {} more", text, found.size() - kMostShown) : text;
}

/// A launch of the same job with the same id goes on with the run.
RunResult go_on_with(const RunIdentity& existing, const RunDirectory& run, const ParsedJob& job,
                     const LaunchRequest& request, FileSystem& fs, Clock& clock, Console& console) {
  const auto lineage = lineage_of(existing.lineage_json);
  const auto begun = std::find_if(lineage.rbegin(), lineage.rend(),
                                  [](const LineageEntry& e) { return e.kind == LineageEntry::branch; });
  const std::string root = begun == lineage.rend() ? "" : begun->root;
  ParsedJob before =
      parse_job({.text = fs.read_text(run.job()), .file = run.job(), .overrides = {}, .environment = {}});
  // The run's own job.json has what `auto` came to.
  const bool is_same = job.hash == existing.spec_hash || (before.ok() && job.hash == before.hash);
  if (!before.ok()) before = job;
  if (!is_same || root != (request.from ? request.from->root_hash : ""))
    throw Error(ErrorCode::kSpec,
                fmt::format("run {} exists with another job spec or beginning ({}); choose another "
                            "observability.run_id, or continue it with `trainctl resume {}`",
                            existing.run_id, run.job(), existing.run_id));
  // What `auto` came to when the run was launched stays.
  std::vector<std::string> stays;
  if (request.job.job.device == DeviceChoice::automatic && before.job.device != DeviceChoice::automatic)
    stays.push_back(fmt::format("device={}", word_of(before.job.device)));
  if (job.job.data.documents == Documents::automatic && before.job.data.documents != Documents::automatic)
    stays.push_back(fmt::format("data.documents={}", word_of(before.job.data.documents)));
  if (job.job.data.loss == TargetLoss::automatic && before.job.data.loss != TargetLoss::automatic)
    stays.push_back(fmt::format("data.loss={}", word_of(before.job.data.loss)));
  const ParsedJob now = stays.empty() ? job : with_decided(job, stays, "auto, decided at launch");
  const std::string differences = differences_of(before, now);
  const auto known = status_of_run(fs, run);
  if (!differences.empty() && known && known->status.state == RunState::finished)
    throw Error(ErrorCode::kSpec,
                fmt::format("run {} is finished, and this job differs from its own ({}); choose another "
                            "observability.run_id, or train on with trainctl resume {} -s PATH=VALUE",
                            existing.run_id, differences, existing.run_id));
  console.note(differences.empty()
                   ? fmt::format("run {} exists with the same job: going on with it", existing.run_id)
                   : fmt::format("run {} exists: going on with it, with {}", existing.run_id, differences));
  return resume_run(
      {.run = run, .before = before, .now = now, .program = request.program,
          .max_steps = request.max_steps, .requeue = request.requeue},
      fs, clock, console);
}

}  // namespace

RunResult launch_run(const LaunchRequest& request, FileSystem& fs, Clock& clock, Console& console) {
  ENSURE(request.job.job.parallelism.mesh_from == MeshFrom::given, "a run without a mesh");
  ParsedJob job = with_device(request.job, device_of_run(request.job.job, fs));
  if (request.from) job = without_run_id_of_parent(with_batch_lr_rule(*request.from, job), *request.from);
  const std::string root = absolute_path(job.job.observability.run_dir);
  check_writable(fs, root);
  const std::string id = job.job.observability.run_id.empty() ? new_run_id(fs, root, job.job.name)
                                                              : job.job.observability.run_id;
  if (request.from) job = with_own_checkpoint_dir(job, *request.from, id);
  const RunDirectory run{root + "/" + id};
  if (const auto existing = read_identity(fs, run))
    return go_on_with(*existing, run, job, request, fs, clock, console);
  if (fs.exists(run.path) && !fs.list(run.path).empty() && !fs.exists(run.file("supervisor.lock")))
    throw Error(ErrorCode::kPreflight,
                fmt::format("{} exists and is no run; choose another observability.run_id", run.path));
  refuse_foreign_checkpoints(fs, run.checkpoints(job.job.checkpoint));
  if (request.from) require_steps_left(*request.from, job.job);
  const StopSignals signals;  // a stop that comes before there is a supervisor is kept for it
  std::optional<RunLock> lock;
  RunIdentity identity{.run_id = id,
                       .spec_hash = job.hash,
                       .program_version = TRAINCTL_VERSION,
                       .working_directory = current_folder(),
                       .created_unix_s = clock.unix_s(),
                       .command = request.command};
  ckpt::sweep_memory(clock.unix_s());
  SupervisePlan plan;
  // Behind the hash, which is that of the job as it was given.
  const bool open = job.job.data.documents == Documents::automatic && !parent_data(request);
  job = with_data_decided(job, fs, parent_data(request));
  if (open && job.job.data.documents == Documents::ignore)
    if (const Problem mixed = mixed_documents(job.job.data); mixed.exists())
      console.note("  warning: " + mixed.text());
  const Ready ready = get_ready(job.job, fs, clock, [&](const Ready& checked) {
    // Before the folder is made: a refused launch leaves none.
    const std::string store = store_of_run(job.job.checkpoint, id);
    if (!store.empty()) note_store(console, check_store({fs, clock}, store, id, true));
    fs.make_directories(run.path);
    lock.emplace(lock_or_refuse(fs, run, id));
    if (read_identity(fs, run)) refuse_busy(fs, run, id);  // another launch of this id was faster
    check_checkpoint_folder(fs, space_need(job.job), run.checkpoints(job.job.checkpoint), 0);
    identity.numerics = checked.numerics;
    plan = plan_of(job, run, request.program, checked, request.max_steps);
    plan.slurm.requeue = request.requeue;
    plan.remedies = request.remedies;
    if (request.from) begin_from(*request.from, checked, identity, plan);
    create_run(fs, run, identity, job, checked.preflight.data_json);
    RunStatus status{.run_id = id, .directory = run.path, .total_steps = job.job.schedule.total_steps};
    status.started_unix_s = status.updated_unix_s = clock.unix_s();
    write_status(fs, run.status(), status);
  });
  plan.matmul_flops_per_s = ready.peak_flops_per_s;
  plan.val_bytes_per_token = ready.preflight.val_bytes_per_token;
  plan.lock = &*lock;
  print_header(console, id, run, job.job, ready);
  note_lock(console, *lock);
  if (request.from) print_branch(console, *request.from, identity, job.job, ready);
  return supervise(plan, run, fs, clock, console);
}

}  // namespace trainctl
