#include "runtime/launch/launch.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>

#include "ckpt/checkpoint.h"
#include "kernels/device.h"
#include "runtime/launch/attempt.h"
#include "runtime/launch/bundle.h"
#include "runtime/launch/mpirun.h"
#include "runtime/launch/preflight.h"
#include "runtime/launch/run_status.h"
#include "runtime/launch/storage.h"
#include "runtime/train/rank_device.h"
#include "runtime/train/schedule.h"

namespace trainctl {
namespace {

std::string absolute(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

std::string mesh_text(const JobSpec& job) {
  return fmt::format("{} rank{} = tensor {} × pipeline {} × data {}", job.mesh().world_size(),
                     job.mesh().world_size() == 1 ? "" : "s", job.parallelism.tensor, job.parallelism.pipeline,
                     job.parallelism.data);
}

std::string devices_text(const JobSpec& job) {
  if (device_kind(job) == DeviceKind::cpu) {
    // A GPU that is there and left aside is worth its reason.
    const kernels::CudaStatus status = job.device == "cpu" ? kernels::CudaStatus{} : kernels::cuda_status();
    return status.driver_too_old ? fmt::format("on the CPU ({})", status.problem) : "on the CPU";
  }
  const int share = job.launcher.ranks_per_gpu, gpus = (job.mesh().world_size() + share - 1) / share;
  return gpus == 1 ? "on one GPU" : fmt::format("on {} GPUs", gpus);
}

[[noreturn]] void refuse_busy(FileSystem& fs, const RunDirectory& run, const std::string& id) {
  const auto place = supervisor_place(fs, run);
  throw Error(
      ErrorCode::kUsage,
      fmt::format(
          "run {} is running already{}; stop it with `trainctl stop {}`, or watch it with `trainctl status {}`",
          id, place && place->pid ? fmt::format(" (supervisor pid {} on {})", place->pid, place->host) : "", id, id));
}

/// Preflight and the measured peak; nothing is printed before all is well.
struct Ready {
  Preflight preflight;
  std::string numerics;
  double peak_flops_per_s = 0, seconds = 0;
};
/// `checked` is called between the two: from then on the run has a folder, where `status` and `stop` find it.
Ready get_ready(const JobSpec& job, FileSystem& fs, Clock& clock, const std::function<void(const Ready&)>& checked = {}) {
  const double begin = clock.monotonic_s();
  Ready ready;
  ready.preflight = check_machine_and_data(job, fs);
  ready.numerics = machine_numerics(job, device_kind(job));
  if (checked) checked(ready);
  ready.peak_flops_per_s = rank_peak_flops_per_s(job, device_kind(job)).value_or(0);
  ready.seconds = clock.monotonic_s() - begin;
  return ready;
}

void print_header(Console& console, const std::string& id, const RunDirectory& run, const JobSpec& job,
                  const Ready& ready) {
  console.note(fmt::format("trainctl {} · run {} · {}", TRAINCTL_VERSION, id, run.path));
  console.note(fmt::format("{} · {} · {} tokens/step · {} steps · logs {}/logs/rank-N.log", mesh_text(job), devices_text(job),
                           job.tokens_per_step(), job.schedule.total_steps, run.path));
  console.note(fmt::format("✓ spec  ✓ data {} tokens  ✓ preflight {:.1f} s  ✓ peak {}FLOP/s a rank  ✓ numerics {}",
                           short_number(double(ready.preflight.train_tokens)), ready.seconds,
                           short_number(ready.peak_flops_per_s), ready.numerics));
  const int ranks = job.mesh().world_size(), cores = int(::sysconf(_SC_NPROCESSORS_ONLN));
  if (ranks * job.parallelism.threads_per_rank > cores)
    console.note(fmt::format("  {} ranks share {} cores", ranks, cores));
}

SupervisePlan plan_of(const ParsedJob& job, const std::string& run_id, const std::string& program,
                      const Ready& ready, int64_t max_steps) {
  SupervisePlan plan;
  plan.job = job;
  plan.run_id = run_id;
  plan.program = program;
  plan.mpirun = ready.preflight.mpirun;
  plan.cross_memory_attach = ready.preflight.cross_memory_attach;
  plan.max_steps = max_steps;
  plan.matmul_flops_per_s = ready.peak_flops_per_s;
  plan.numerics = ready.numerics;
  return plan;
}

/// `auto` is decided once: from then on the run computes on that device, whatever a later start finds.
ParsedJob with_device(const ParsedJob& job, DeviceKind kind) {
  if (job.job.device != "auto") return job;
  return with_decided(job, {fmt::format("device={}", name_of(kind))}, "auto, decided at launch");
}

/// A run of GPUs never turns into one of the CPU by itself.
void require_gpus_of_run(const JobSpec& job, const std::string& id) {
  if (device_kind(job) == DeviceKind::cpu) return;
  const kernels::CudaStatus status = kernels::cuda_status();
  const std::string missing = missing_gpus(job, status.devices, status.problem);
  if (missing.empty()) return;
  throw Error(ErrorCode::kPreflight,
              fmt::format("{}; run {} computes on GPUs: bring them back, or go on on the CPU, with other bits from there on, with "
                          "`trainctl resume {} -s device=cpu`",
                          missing, id, id));
}

RunLock lock_or_refuse(FileSystem& fs, const RunDirectory& run, const std::string& id) {
  auto lock = RunLock::try_take(run);
  if (!lock) refuse_busy(fs, run, id);
  return std::move(*lock);
}

void note_lock(Console& console, const RunLock& lock) {
  if (!lock.note().empty()) console.note("  " + lock.note());
}

void refuse_foreign_checkpoints(FileSystem& fs, const RunDirectory& run, const JobSpec& job) {
  const std::string directory = run.checkpoints(job);
  if (!fs.is_directory(directory)) return;
  const auto steps = ckpt::list_steps(fs, directory);
  if (!steps.empty())
    throw Error(
        ErrorCode::kPreflight,
        fmt::format("{} already holds checkpoints of another run (step {} and others); give this run another "
                    "checkpoint.dir, or continue that one with `trainctl resume`",
                    directory, steps.front()));
}

}  // namespace

std::string describe_numerics(const std::string& before, const std::string& now) {
  if (before.empty()) return now + "; the checkpoint does not say what computed it: from here on the bits may differ";
  if (before != now) return fmt::format("from here on the bits differ: {} → {}", before, now);
  return now + ", as in the checkpoint";
}

std::string describe_change(const JobSpec& before, const JobSpec& now, bool same_numerics) {
  std::vector<std::string> changed, kept;
  const auto axis = [&](const char* name, int64_t a, int64_t b) {
    if (a != b) {
      changed.push_back(fmt::format("{} {} → {}", name, a, b));
    } else {
      kept.push_back(name);
    }
  };
  axis("tensor", before.parallelism.tensor, now.parallelism.tensor);
  axis("pipeline", before.parallelism.pipeline, now.parallelism.pipeline);
  axis("data", before.parallelism.data, now.parallelism.data);
  std::string text;
  const auto append = [&](const std::string& part) { text += (text.empty() ? "" : " · ") + part; };
  if (!changed.empty()) {
    std::string list, keeps;
    for (const std::string& c : changed) list += (list.empty() ? "" : ", ") + c;
    for (const std::string& k : kept) keeps += (keeps.empty() ? "" : ", ") + k;
    append(fmt::format("{} → {} ranks: {}{}", before.mesh().world_size(), now.mesh().world_size(), list,
                       keeps.empty() ? "" : " (" + keeps + " kept)"));
  }
  const auto number = [&](const char* name, int64_t a, int64_t b) {
    if (a != b) append(fmt::format("{} {} → {}", name, a, b));
  };
  number("micro-batches per rank", before.micro_batches_per_rank(), now.micro_batches_per_rank());
  number("virtual stages", before.parallelism.virtual_stages, now.parallelism.virtual_stages);
  number("zero stage", before.parallelism.zero_stage, now.parallelism.zero_stage);
  if (before.parallelism.schedule != now.parallelism.schedule) append("another pipeline schedule");
  if (before.recompute != now.recompute)
    append(now.recompute == Recompute::none ? "no recompute" : now.recompute == Recompute::full ? "full recompute" : "selective recompute");
  if (text.empty()) return "";
  const auto keeps_order = [](const JobSpec& job) { return !nccl_adds_gradients(job, device_kind(job)); };
  append(!same_numerics ? "the loss curve continues (same data order)"
         : before.parallelism.tensor == now.parallelism.tensor && keeps_order(before) && keeps_order(now) &&
                 before.micro_batches_per_lane() == now.micro_batches_per_lane()
             ? "the loss curve continues with the same bits (same data order)"
             : "the loss curve continues (same data order, sums rounded in another order)");
  return text;
}

LaunchPreview preview_launch(const LaunchRequest& request, FileSystem& fs) {
  const JobSpec& job = request.job.job;
  const Preflight preflight = check_machine_and_data(job, fs);
  const std::string root = absolute(job.observability.run_dir);
  const std::string id = job.observability.run_id.empty() ? job.name + "-XXXX" : job.observability.run_id;
  const RunDirectory run{root + "/" + id};
  LaunchPreview preview;
  preview.run_directory = run.path;
  preview.memory = preflight.memory_text;
  for (const char* name : {"job.json", "origins.json", "data.json", "run.json", "attempt.json", "metrics.jsonl",
                           "events.jsonl", "status.json"})
    preview.files.push_back(run.file(name));
  preview.files.push_back(fmt::format("{} .. rank-{}.log", run.rank_log(0), job.mesh().world_size() - 1));
  preview.files.push_back(run.checkpoints(job) + "/step-SSSSSSSS/");
  preview.command = shell_text(launch_line({.job = &job,
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

std::string origin_of(const ParsedJob& job, const std::string& path) {
  for (const EffectiveValue& value : job.values)
    if (value.path == path) return value.origin;
  return "";
}

/// A branch that is launched with its parent's own job.json is another run.
ParsedJob without_run_id_of_parent(const ParsedJob& job, const BranchPoint& from) {
  const bool parents = job.job.observability.run_id == from.job.job.observability.run_id;
  if (!parents || origin_of(job, "observability.run_id") == "--set") return job;
  return with_decided(job, {"observability.run_id="}, "default");
}

/// And saves in a folder of its own.
ParsedJob with_own_checkpoint_dir(const ParsedJob& job, const BranchPoint& from, const std::string& id) {
  const std::string& dir = job.job.checkpoint.dir;
  if (dir.empty() || dir != from.job.job.checkpoint.dir || origin_of(job, "checkpoint.dir") == "--set") return job;
  return with_decided(job, {fmt::format("checkpoint.dir={}-{}", dir, id)}, "the parent's, with the id of this run");
}

void require_steps_left(const BranchPoint& from, const JobSpec& job) {
  if (from.state.step < job.schedule.total_steps) return;
  throw Error(ErrorCode::kSpec,
              fmt::format("{} is of step {} and schedule.total_steps = {}, which counts from the parent's first step: nothing is left to "
                          "train; raise it, e.g. -s schedule.total_steps={}",
                          from.checkpoint, from.state.step, job.schedule.total_steps, from.state.step + job.schedule.total_steps));
}

void begin_from(const BranchPoint& from, const Ready& ready, RunIdentity& identity, SupervisePlan& plan) {
  std::vector<LineageEntry> lineage = lineage_of(from.state.lineage_json);
  lineage.push_back(branch_entry(from, plan.job, ready.preflight.data_json));
  if (from.state.numerics != ready.numerics) {
    lineage.back().numerics_before = from.state.numerics;
    lineage.back().numerics = ready.numerics;
  }
  identity.lineage_json = plan.lineage_json = lineage_json(lineage);
  identity.parent_checkpoint = from.checkpoint;
  plan.start = {.checkpoint = from.checkpoint, .step = from.state.step, .new_data = lineage.back().new_data};
  plan.resume_from = from.checkpoint;
  plan.resume_step = from.state.step;
  plan.numerics_before = from.state.numerics;
}

void print_branch(Console& console, const BranchPoint& from, const RunIdentity& identity, const JobSpec& job, const Ready& ready) {
  const LineageEntry entry = lineage_of(identity.lineage_json).back();
  console.note("branch      " + describe(entry));
  console.note(fmt::format("data        {}", entry.new_data ? "others than the parent's: from their start"
                                                            : fmt::format("position {} tokens, as the parent's", from.state.tokens)));
  console.note(fmt::format("schedule    step {} has lr {:.4g} (in the parent {:.4g}); weights and optimizer state carry over",
                           from.state.step + 1, learning_rate(job.schedule, from.state.step),
                           learning_rate(from.job.job.schedule, from.state.step)));
  console.note("numerics    " + describe_numerics(from.state.numerics, ready.numerics));
}

/// A launch of the same job with the same id goes on with the run.
RunResult go_on_with(const RunIdentity& existing, const RunDirectory& run, const ParsedJob& job, const LaunchRequest& request,
                     FileSystem& fs, Clock& clock, Console& console) {
  const auto lineage = lineage_of(existing.lineage_json);
  const auto begun = std::find_if(lineage.rbegin(), lineage.rend(), [](const LineageEntry& e) { return e.kind == LineageEntry::branch; });
  const std::string root = begun == lineage.rend() ? "" : begun->root;
  if (existing.spec_hash != job.hash || root != (request.from ? request.from->root_hash : ""))
    throw Error(ErrorCode::kSpec, fmt::format("run {} exists with another job spec or beginning ({}); choose another "
                                              "observability.run_id, or continue it with `trainctl resume {}`",
                                              existing.run_id, run.job(), existing.run_id));
  console.note(fmt::format("run {} exists with the same job: going on with it", existing.run_id));
  ParsedJob before = parse_job({.text = fs.read_text(run.job()), .file = run.job(), .overrides = {}, .environment = {}});
  if (!before.ok()) before = job;
  // What `auto` came to when the run was launched stays.
  const bool decided = request.job.job.device != "auto" || before.job.device == "auto";
  const ParsedJob now = decided ? job : with_decided(job, {"device=" + before.job.device}, "auto, decided at launch");
  return resume_run({.run = run, .before = before, .now = now, .program = request.program, .max_steps = request.max_steps}, fs, clock,
                    console);
}

}  // namespace

RunResult launch_run(const LaunchRequest& request, FileSystem& fs, Clock& clock, Console& console) {
  ParsedJob job = with_device(request.job, device_kind(request.job.job));
  if (request.from) job = without_run_id_of_parent(job, *request.from);
  const std::string root = absolute(job.job.observability.run_dir);
  check_writable(fs, root);
  const std::string id =
      job.job.observability.run_id.empty() ? new_run_id(fs, root, job.job.name) : job.job.observability.run_id;
  if (request.from) job = with_own_checkpoint_dir(job, *request.from, id);
  const RunDirectory run{root + "/" + id};
  if (const auto existing = read_identity(fs, run)) return go_on_with(*existing, run, job, request, fs, clock, console);
  if (fs.exists(run.path) && !fs.list(run.path).empty() && !fs.exists(run.file("supervisor.lock")))
    throw Error(ErrorCode::kPreflight,
                fmt::format("{} exists and is no run; choose another observability.run_id", run.path));
  refuse_foreign_checkpoints(fs, run, job.job);
  if (request.from) require_steps_left(*request.from, job.job);
  const StopSignals signals;  // a stop that comes before there is a supervisor is kept for it
  std::optional<RunLock> lock;
  RunIdentity identity{.run_id = id,
                       .spec_hash = job.hash,
                       .program_version = TRAINCTL_VERSION,
                       .working_directory = std::filesystem::current_path().string(),
                       .created_unix_s = clock.unix_s(),
                       .command = request.command};
  SupervisePlan plan;
  const Ready ready = get_ready(job.job, fs, clock, [&](const Ready& checked) {
    fs.make_directories(run.path);
    lock.emplace(lock_or_refuse(fs, run, id));
    if (read_identity(fs, run)) refuse_busy(fs, run, id);  // another launch of this id was faster
    check_checkpoint_folder(fs, job.job, run.checkpoints(job.job), 0);
    identity.numerics = checked.numerics;
    plan = plan_of(job, id, request.program, checked, request.max_steps);
    if (request.from) begin_from(*request.from, checked, identity, plan);
    create_run(fs, run, identity, job, checked.preflight.data_json);
    RunStatus status{.run_id = id, .directory = run.path, .total_steps = job.job.schedule.total_steps};
    status.started_unix_s = status.updated_unix_s = clock.unix_s();
    write_status(fs, run.status(), status);
  });
  plan.matmul_flops_per_s = ready.peak_flops_per_s;
  print_header(console, id, run, job.job, ready);
  note_lock(console, *lock);
  if (request.from) print_branch(console, *request.from, identity, job.job, ready);
  return supervise(plan, run, fs, clock, console);
}

namespace {

std::unique_ptr<ckpt::Checkpoint> open_parent(FileSystem& fs, const std::string& parent, const RunIdentity& identity) {
  if (fs.exists(parent)) return ckpt::Checkpoint::open(fs, parent);
  throw Error(ErrorCode::kCheckpoint, fmt::format("run {} has no checkpoint of its own yet, and {}, which it began from, is gone: launch it "
                                                  "again from another checkpoint",
                                                  identity.run_id, parent));
}

/// The checkpoint to go on from; null: there is none yet.
std::unique_ptr<ckpt::Checkpoint> choose_checkpoint(const ResumeRequest& request, const RunIdentity& identity, FileSystem& fs,
                                                    Console& console) {
  const std::string directory = request.run.checkpoints(request.now.job);
  const std::string& parent = identity.parent_checkpoint;
  if (request.step) {
    if (parent.ends_with(ckpt::step_directory("", *request.step)) && !fs.exists(ckpt::step_directory(directory, *request.step)))
      return open_parent(fs, parent, identity);
    return open_step(fs, directory, *request.step);
  }
  int skipped = 0;
  auto checkpoint =
      ckpt::open_latest(fs, directory, -1, [&](const std::string& path, const std::string& reason) {
        ++skipped;
        console.note(fmt::format(" ! {} is skipped: {}", path, reason));
      });
  if (!checkpoint && skipped > 0)
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("none of the {} checkpoints in {} is usable; to begin again, launch the job as a new run",
                    skipped, directory));
  if (!checkpoint && !parent.empty()) return open_parent(fs, parent, identity);
  return checkpoint;
}

/// The folder may be one given anew (checkpoint.dir): another run's checkpoints must not be taken for ours, and
/// an empty one must not make a run with saved steps begin again.
void check_belongs(const ckpt::Checkpoint* checkpoint, const ResumeRequest& request, const RunIdentity& identity,
                   FileSystem& fs) {
  const std::string directory = request.run.checkpoints(request.now.job);
  if (checkpoint && checkpoint->path() == identity.parent_checkpoint) return;
  if (checkpoint && checkpoint->state().run_id != identity.run_id)
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{} is a checkpoint of run {} (spec hash {}), not of run {} (spec hash {}); give this "
                            "run's own checkpoint.dir",
                            checkpoint->path(), checkpoint->state().run_id, checkpoint->state().spec_hash,
                            identity.run_id, identity.spec_hash));
  const std::string recorded = request.run.checkpoints(request.before.job);
  if (checkpoint || recorded == directory || !fs.is_directory(recorded)) return;
  const auto saved = ckpt::list_steps(fs, recorded);
  if (!saved.empty())
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{} has no checkpoint, but run {} saved {} in {}; a resume starts from step 0 only if "
                            "the run never saved one: resume without the new checkpoint.dir, or copy them there",
                            directory, identity.run_id, saved.size() == 1 ? "one" : "some", recorded));
}

void print_resume(Console& console, const ckpt::Checkpoint& checkpoint, const ResumeRequest& request,
                  const std::string& numerics, double opened_in_s) {
  uint64_t bytes = 0;
  for (const auto& file : checkpoint.files()) bytes += file.file_bytes;
  console.note(fmt::format("checkpoint  step {} · {}B in {} files · opened in {:.2f} s",
                           checkpoint.state().step, short_number(double(bytes)), checkpoint.files().size(),
                           opened_in_s));
  // Compared with the mesh that wrote the checkpoint, which a resume before this one may have changed.
  const ParsedJob wrote = parse_job({.text = checkpoint.state().resolved_spec_json,
                                     .file = "manifest.json",
                                     .overrides = {},
                                     .environment = {}});
  const bool same_numerics = checkpoint.state().numerics == numerics;
  const std::string change = describe_change(wrote.ok() ? wrote.job : request.before.job, request.now.job, same_numerics);
  const std::string none = "none: " + mesh_text(request.now.job) + (same_numerics ? ", the same bits" : "");
  console.note("change      " + (change.empty() ? none : change));
  console.note("numerics    " + describe_numerics(checkpoint.state().numerics, numerics));
  console.note(fmt::format("data        position {} tokens · {} source{} unchanged ✓",
                           checkpoint.state().tokens, request.now.job.data.train.size(),
                           request.now.job.data.train.size() == 1 ? "" : "s"));
}

/// Where a branch begins again while it has no checkpoint of its own; nothing for other runs.
std::optional<SupervisePlan::Start> start_of(const RunIdentity& identity) {
  if (identity.parent_checkpoint.empty()) return std::nullopt;
  SupervisePlan::Start start{.checkpoint = identity.parent_checkpoint};
  for (const LineageEntry& entry : lineage_of(identity.lineage_json)) {
    if (entry.kind != LineageEntry::branch) continue;
    start.step = entry.step;
    start.new_data = entry.new_data;
  }
  return start;
}

RunResult nothing_to_do(const RunDirectory& run, const std::string& id, FileSystem& fs, int64_t step,
                        Console& console) {
  console.say(fmt::format("run {} is finished: step {} of {} is saved. Nothing to do.", id, step, step));
  const auto known = status_of_run(fs, run);
  console.say("next: trainctl status " + id);
  return {0, known ? known->status : RunStatus{}};
}

}  // namespace

RunResult resume_run(const ResumeRequest& asked, FileSystem& fs, Clock& clock, Console& console) {
  ResumeRequest request = asked;
  request.now = with_device(asked.now, device_kind(asked.now.job));   // runs of older programs kept `auto`
  const RunDirectory& run = request.run;
  const auto identity = read_identity(fs, run);
  if (!identity) throw Error(ErrorCode::kUsage, fmt::format("{} is not a run directory", run.path));
  const std::string id = identity->run_id;
  const JobSpec& job = request.now.job;
  const RunLock lock = lock_or_refuse(fs, run, id);
  const StopSignals signals;  // as in launch_run
  const double begin_s = clock.monotonic_s();
  const auto checkpoint = choose_checkpoint(request, *identity, fs, console);
  check_belongs(checkpoint.get(), request, *identity, fs);
  const double opened_in_s = clock.monotonic_s() - begin_s;
  const int64_t step = checkpoint ? checkpoint->state().step : 0;
  if (checkpoint && step >= job.schedule.total_steps) return nothing_to_do(run, id, fs, step, console);
  if (request.max_steps > 0 && step >= request.max_steps)
    throw Error(ErrorCode::kUsage, fmt::format("--max-steps {} is not beyond step {}, where the run stands",
                                               request.max_steps, step));
  check_checkpoint_folder(fs, job, run.checkpoints(job), step);
  require_gpus_of_run(job, id);
  const Ready ready = get_ready(job, fs, clock);
  const std::string changed = changed_data(fs.read_text(run.file("data.json")), ready.preflight.data_json);
  if (!changed.empty())
    throw Error(ErrorCode::kData, fmt::format("{}; put the old file back, or launch a new run", changed));
  print_header(console, id, run, job, ready);
  note_lock(console, lock);
  if (checkpoint) {
    print_resume(console, *checkpoint, request, ready.numerics, opened_in_s);
  } else {
    console.note("checkpoint  there is none yet: starting from step 0");
  }
  if (const std::string text = fs.read_text(run.job()); text != request.now.resolved_json + "\n") {
    fs.replace_text(run.file(fmt::format("job.before-e{}.json", last_epoch(fs, run) + 1).c_str()), text);
    fs.replace_text(run.job(), request.now.resolved_json + "\n");
    fs.replace_text(run.file("origins.json"), request.now.origins_json + "\n");
  }
  SupervisePlan plan = plan_of(request.now, id, request.program, ready, request.max_steps);
  plan.resume_from = checkpoint ? checkpoint->path() : "";
  plan.resume_step = step;
  if (checkpoint) plan.numerics_before = checkpoint->state().numerics;
  plan.resume_fixed = request.step.has_value();
  const bool own = checkpoint && checkpoint->path() != identity->parent_checkpoint;
  plan.lineage_json = own ? checkpoint->state().lineage_json : identity->lineage_json;
  plan.start = start_of(*identity);
  return supervise(plan, run, fs, clock, console);
}

}  // namespace trainctl
