#include "runtime/supervise/start/submit.h"

#include <fmt/format.h>

#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/paths.h"
#include "runtime/base/record.h"
#include "runtime/machine/rank_device.h"
#include "runtime/supervise/decide/quarantine.h"
#include "runtime/supervise/preflight/preflight.h"
#include "runtime/supervise/preflight/storage.h"
#include "runtime/supervise/slurm/cluster_name.h"
#include "runtime/supervise/slurm/slurm_commands.h"
#include "runtime/supervise/start/start.h"

namespace trainctl {
namespace {

constexpr const char* kRecord = "slurm.json";
constexpr const char* kScript = "job.sh";

/// Nodes in quarantine; sbatch refuses names that Slurm does not know.
std::vector<std::string> nodes_to_exclude(FileSystem& fs, Clock& clock) {
  const std::string path = quarantine_path("");
  if (path.empty()) return {};
  const std::vector<std::string> out =
      QuarantineFile(fs, clock, path, this_cluster()).read().nodes_out(clock.unix_s());
  return SlurmCommands::present() ? SlurmCommands().known_of(out) : out;
}

Submitted prepared(const SubmitRequest& request, const std::string& id, FileSystem& fs, Clock& clock) {
  const JobSpec& job = request.job.job;
  Submitted result{.run = {absolute_path(job.observability.run_dir) + "/" + id}, .id = id};
  const SlurmRequest slurm = slurm_request(job, id, request.chain, nodes_to_exclude(fs, clock));
  result.script = batch_script(slurm, request.program, result.run.path);
  result.record = {
      .jobs = {}, .name = slurm.job_name, .chain = request.chain > 1, .requeue = job.launcher.slurm.requeue};
  return result;
}

void refuse_if_queued(const SlurmRecord& before, const std::string& id) {
  if (const auto lines = queue_lines(before); !lines.empty())
    throw Error(ErrorCode::kUsage, fmt::format("run {} waits for Slurm already: {}; cancel that with "
        "`trainctl stop {}`",
                                               id, lines.front(), id));
}

/// The folder and records of a run that nothing has started yet.
void make_run(const SubmitRequest& request, const Submitted& result, FileSystem& fs, Clock& clock) {
  const RunDirectory& run = result.run;
  const ParsedJob decided = with_data_decided(request.job, fs);  // nobody decides later
  const JobSpec& job = decided.job;
  refuse_foreign_checkpoints(fs, run.checkpoints(job.checkpoint));
  Preflight preflight;
  check_data(job.data, job.model.vocab_size, preflight);
  fs.make_directories(run.path);
  const RunLock lock = lock_or_refuse(fs, run, result.id);
  check_checkpoint_folder(fs, space_need(job), run.checkpoints(job.checkpoint), 0);
  create_run(fs, run,
             {.run_id = result.id,
              .spec_hash = request.job.hash,
              .program_version = TRAINCTL_VERSION,
              .working_directory = current_folder(),
              .created_unix_s = clock.unix_s(),
              .command = request.command},
             decided, preflight.data_json);
}

}  // namespace

std::string SlurmRecord::to_json() const { return record_text(*this, 2) + "\n"; }

std::optional<SlurmRecord> read_slurm_record(FileSystem& fs, const RunDirectory& run) {
  if (!fs.exists(run.file(kRecord))) return std::nullopt;
  return read_record<SlurmRecord>(fs.read_text(run.file(kRecord)), run.file(kRecord));
}

SlurmRequest slurm_request(const NodeNeed& need, const std::string& run_id, int chain,
                           std::vector<std::string> exclude) {
  const SlurmSpec& spec = need.launcher.slurm;
  const int ranks = need.use.ranks, group = need.group();
  if (need.use.choice == DeviceChoice::cuda && spec.gpus_per_node == 0)
    throw Error(ErrorCode::kSpec, "device = cuda and launcher.slurm.gpus_per_node = 0, so no GPU would be "
        "asked for; "
                                  "set it to the GPUs of a node, e.g. -s launcher.slurm.gpus_per_node=8");
  const int slots = spec.gpus_per_node > 0    ? spec.gpus_per_node * need.use.ranks_per_gpu
                    : need.launcher.slots > 0 ? need.launcher.slots
                                              : spec.cpus_per_node;
  const int whole = ranks_on(slots, group, {});
  if (spec.nodes == 0 && slots > 0 && whole == 0)
    throw Error(ErrorCode::kSpec, fmt::format("a tensor group has {} ranks and a node room for {}; make "
                                              "parallelism.tensor smaller or allow "
                                                  "launcher.tensor_across_nodes",
                                              group, slots));
  SlurmRequest request{.job_name = "trainctl." + run_id,
                       .partition = spec.partition,
                       .account = spec.account,
                       .qos = spec.qos,
                       .reservation = spec.reservation,
                       .constraint = spec.constraint,
                       .time_limit = spec.time,
                       .nodes = spec.nodes > 0 ? spec.nodes : whole > 0 ? (ranks + whole - 1) / whole : 1,
                       .spares = spec.spares,
                       .gpus_per_node = spec.gpus_per_node,
                       .gpu_type = spec.gpu_type,
                       .cpus_per_node = spec.cpus_per_node,
                       .exclude = std::move(exclude)};
  if (spec.signal_seconds > 0) request.signal_s = spec.signal_seconds;
  request.requeue = spec.requeue;
  request.chain = chain;
  request.extra = spec.arguments;
  request.setup = spec.setup;
  return request;
}

Submitted preview_submit(const SubmitRequest& request, FileSystem& fs, Clock& clock) {
  const JobSpec& job = request.job.job;
  return prepared(request, job.observability.run_id.empty() ? job.name + "-XXXX"
      : job.observability.run_id, fs, clock);
}

Submitted submit_run(const SubmitRequest& request, FileSystem& fs, Clock& clock) {
  const JobSpec& job = request.job.job;
  const std::string root = absolute_path(job.observability.run_dir);
  check_writable(fs, root);
  const std::string id = job.observability.run_id.empty() ? new_run_id(fs, root, job.name)
      : job.observability.run_id;
  Submitted result = prepared(request, id, fs, clock);
  const RunDirectory& run = result.run;
  if (!SlurmCommands::present())
    throw Error(ErrorCode::kLauncher, "there is no Slurm here: sbatch is not on PATH; use a login node of "
        "the cluster");
  if (const auto existing = read_identity(fs, run)) {
    if (existing->spec_hash != request.job.hash)
      throw Error(ErrorCode::kSpec, fmt::format("run {} exists with another job spec ({}); choose another "
                                                "observability.run_id",
                                                id, run.job()));
    if (supervisor_place(fs, run)) refuse_busy(fs, run, id);
    if (const auto before = read_slurm_record(fs, run)) refuse_if_queued(*before, id);
  }
  const bool is_new = !fs.exists(run.file("run.json"));
  if (is_new) make_run(request, result, fs, clock);
  const std::string script = run.file(kScript);
  fs.replace_text(script, result.script);
  // Before the job can begin: it reads there how it ends.
  fs.replace_text(run.file(kRecord), result.record.to_json());
  if (!fs.exists(run.status())) {
    RunStatus status{.run_id = id, .directory = run.path, .state = RunState::submitted,
        .total_steps = job.schedule.total_steps};
    status.updated_unix_s = clock.unix_s();
    status.advice = "trainctl status " + command_name(run);
    write_status(fs, run.status(), status);
  }
  try {
    result.record.jobs = SlurmCommands().submit(script, request.chain);
  } catch (const Error&) {
    if (is_new) fs.remove_tree(run.path);  // a run that nothing will ever start
    throw;
  }
  fs.replace_text(run.file(kRecord), result.record.to_json());
  return result;
}

namespace {

/// The job as it runs in the set.
ParsedJob in_pods(const ManifestRequest& request, const SlurmRequest& slurm) {
  const JobSpec& job = request.submit.job.job;
  const int slots = slurm.gpus_per_node > 0  ? slurm.gpus_per_node * job.launcher.ranks_per_gpu
                    : job.launcher.slots > 0 ? job.launcher.slots
                                             : even_slots(job.parallelism, slurm.nodes);
  return with_decided(
      request.submit.job,
      {"launcher.hosts=" + dump_json(Json(jobset_nodes(slurm))), "launcher.shell=none",
       fmt::format("launcher.port={}", request.pods.port), fmt::format("launcher.slots={}", slots)},
      "manifest");
}

}  // namespace

Manifest preview_manifest(const ManifestRequest& request, FileSystem&) {
  const JobSpec& job = request.submit.job.job;
  const std::string id = job.observability.run_id.empty() ? job.name + "-XXXX" : job.observability.run_id;
  Manifest result{.run = {absolute_path(job.observability.run_dir) + "/" + id}, .id = id};
  const SlurmRequest slurm = slurm_request(job, id, 1, {});
  in_pods(request, slurm);
  result.text = jobset_manifest(slurm, request.pods, request.submit.program, result.run.path);
  return result;
}

Manifest write_manifest(const ManifestRequest& given, FileSystem& fs, Clock& clock) {
  const std::string root = absolute_path(given.submit.job.job.observability.run_dir);
  check_writable(fs, root);
  ManifestRequest request = given;
  if (request.submit.job.job.observability.run_id.empty())
    request.submit.job = with_decided(
        request.submit.job, {"observability.run_id=" + new_run_id(fs, root, request.submit.job.job.name)},
        "manifest");
  const Manifest result = preview_manifest(request, fs);
  request.submit.job = in_pods(request, slurm_request(request.submit.job.job, result.id, 1, {}));
  if (const auto existing = read_identity(fs, result.run)) {
    if (existing->spec_hash != request.submit.job.hash)
      throw Error(ErrorCode::kSpec, fmt::format("run {} exists with another job spec ({}); choose another "
                                                "observability.run_id",
                                                result.id, result.run.job()));
    if (supervisor_place(fs, result.run)) refuse_busy(fs, result.run, result.id);
  } else {
    make_run(request.submit, {.run = result.run, .id = result.id}, fs, clock);
  }
  fs.replace_text(result.run.file("jobset.yaml"), result.text);
  return result;
}

std::vector<std::string> queue_lines(const SlurmRecord& record) {
  std::vector<std::string> lines;
  for (const std::string& id : record.jobs) try {
      const auto job = SlurmCommands({.query_s = 5}).job(id);
      if (!job || job->state == SlurmState::over) continue;
      lines.push_back(fmt::format("Slurm job {} is {}{}", id, job->state_word,
                                  job->reason.empty() || job->reason == "None" ? ""
                                      : " (" + job->reason + ")"));
    } catch (const Error&) {
      return lines;
    }
  return lines;
}

int cancel_queued(const SlurmRecord& record) {
  int cancelled = 0;
  for (const std::string& id : record.jobs) {
    const auto job = SlurmCommands().job(id);
    if (!job || job->state != SlurmState::pending) continue;
    SlurmCommands().cancel(id);
    ++cancelled;
  }
  return cancelled;
}

}  // namespace trainctl
