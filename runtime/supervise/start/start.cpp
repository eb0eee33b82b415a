#include "runtime/supervise/start/start.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <vector>

#include "ckpt/partners.h"
#include "kernels/device.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/supervise/nodes/own_address.h"
#include "runtime/supervise/preflight/job_files.h"

namespace trainctl {
namespace {

std::string devices_text(const DeviceUse& use) {
  if (device_kind(use) == DeviceKind::cpu) {
    // A GPU that is there and left aside is worth its reason.
    const kernels::CudaStatus status =
        use.choice == DeviceChoice::cpu ? kernels::CudaStatus{} : kernels::cuda_status();
    return status.driver_too_old ? fmt::format("on the CPU ({})", status.problem) : "on the CPU";
  }
  const int gpus = (use.ranks + use.ranks_per_gpu - 1) / use.ranks_per_gpu;
  return gpus == 1 ? "on one GPU" : fmt::format("on {} GPUs", gpus);
}

}  // namespace

std::string mesh_text(const parallel::MeshShape& mesh) {
  return fmt::format("{} = tensor {}{} × pipeline {} × data {}", count_of(mesh.world_size(), "rank"), mesh.tp,
                     mesh.cp > 1 ? fmt::format(" × context {}", mesh.cp) : "", mesh.pp, mesh.dp);
}

void refuse_busy(FileSystem& fs, const RunDirectory& run, const std::string& id) {
  const auto place = supervisor_place(fs, run);
  throw Error(
      ErrorCode::kUsage,
      fmt::format(
          "run {} is running already{}; stop it with `trainctl stop {}`, or watch it with `trainctl status "
          "{}`",
          id, place && place->pid ? fmt::format(" (supervisor pid {} on {})", place->pid, place->host) : "",
          id, id));
}

std::optional<int> ranks_here(const RunNodes& nodes) {
  if (nodes.one_machine) return std::nullopt;
  for (const ClusterNode& node : nodes.nodes)
    if (is_this_machine(node.name)) return node.slots;
  return 0;
}

int second_ranks_here(const NodeNeed& need, const CheckpointSpec& checkpoint, const RunNodes& nodes) {
  const parallel::MeshShape mesh = need.parallelism.mesh();
  if (nodes.one_machine || checkpoint.memory == MemoryCopies::off ||
      checkpoint.partner == PartnerCopies::off)
    return 0;
  const auto here = std::find_if(nodes.nodes.begin(), nodes.nodes.end(),
                                 [](const ClusterNode& node) { return is_this_machine(node.name); });
  if (here == nodes.nodes.end()) return 0;
  const PlacementResult placed =
      place(mesh, nodes.nodes, {.tensor_across_nodes = need.launcher.tensor_across_nodes});
  std::vector<int> node_of_rank;
  std::map<int, int> ranks_of_node;
  for (const RankRange& range : placed.placement.ranges) {
    node_of_rank.insert(node_of_rank.end(), size_t(range.count), range.node);
    ranks_of_node[range.node] = range.count;
  }
  // A narrower width of the job is placed later.
  if (node_of_rank.size() != size_t(mesh.world_size())) return 0;
  for (const auto& [node, partner] : ckpt::place_partners(mesh, node_of_rank).partner)
    if (partner == int(here - nodes.nodes.begin())) return ranks_of_node[node];
  return 0;
}

namespace {

void print_slurm(Console& console, const SlurmAllocation& allocation, const SlurmFacts& facts) {
  std::string text = fmt::format("  Slurm job {} · {}", allocation.job_id,
                                 count_of(int64_t(allocation.nodes.size()), "node"));
  if (allocation.restart_count > 0) text += fmt::format(" · started again {}×", allocation.restart_count);
  if (facts.end_unix_s)
    text += fmt::format(" · its time ends at {:%Y-%m-%d %H:%M:%S} UTC",
        fmt::gmtime(std::time_t(*facts.end_unix_s)));
  console.note(text);
  for (const std::string& note : facts.notes) console.note("  note: " + note);
}

}  // namespace

Ready get_ready(const JobSpec& job, FileSystem& fs, Clock& clock,
                const std::function<void(const Ready&)>& checked, const AttemptFile* living) {
  const double begin = clock.monotonic_s();
  Ready ready;
  ready.nodes = nodes_of(job, fs);
  if (ready.nodes.slurm) ready.slurm = ask_slurm(*ready.nodes.slurm);
  ready.preflight = check_machine_and_data(job, fs, living ? 0 : ranks_here(ready.nodes),
                                           living ? 0 : second_ranks_here(job, job.checkpoint, ready.nodes));
  ready.numerics = machine_numerics(job, device_kind(job));
  if (checked) checked(ready);
  ready.peak_flops_per_s = living && living->matmul_flops_per_s > 0
                               ? living->matmul_flops_per_s
                               : rank_peak_flops_per_s(job, device_kind(job)).value_or(0);
  ready.seconds = clock.monotonic_s() - begin;
  return ready;
}

void print_header(Console& console, const std::string& id, const RunDirectory& run, const JobSpec& job,
                  const Ready& ready) {
  console.note(fmt::format("trainctl {} · run {} · {}", TRAINCTL_VERSION, id, run.path));
  console.note(fmt::format("{} · {} · {} tokens/step · {} steps · logs {}/logs/rank-N.log",
                           mesh_text(job.mesh()), devices_text(job), job.tokens_per_step(),
                           job.schedule.total_steps, run.path));
  console.note(
      fmt::format("✓ spec  ✓ data {} tokens  ✓ preflight {:.1f} s  ✓ peak {}FLOP/s a rank  ✓ numerics {}",
                  short_number(double(ready.preflight.train_tokens)), ready.seconds,
                  short_number(ready.peak_flops_per_s), ready.numerics));
  if (job.data.packing == PackingKind::best_fit)
    console.note(
        fmt::format("  data.packing = best_fit: {} samples an epoch, {:.1f} % of their tokens are padding",
                    ready.preflight.train_samples, 100 * ready.preflight.padding));
  if (ready.nodes.slurm) print_slurm(console, *ready.nodes.slurm, ready.slurm);
  if (!ready.preflight.copies_note.empty()) console.note("  note: " + ready.preflight.copies_note);
  const int ranks = job.mesh().world_size(), cores = int(::sysconf(_SC_NPROCESSORS_ONLN));
  if (ranks * job.parallelism.threads_per_rank > cores)
    console.note(fmt::format("  {} ranks share {} cores", ranks, cores));
}

SupervisePlan plan_of(const ParsedJob& job, const RunDirectory& run, const std::string& program,
                      const Ready& ready, int64_t max_steps) {
  SupervisePlan plan;
  plan.job = job;
  plan.run_id = folder_name(run);
  plan.name = command_name(run);
  plan.program = program;
  plan.mpirun = ready.preflight.mpirun;
  plan.nodes = ready.nodes;
  if (ready.nodes.slurm)
    plan.slurm = {.job_id = ready.nodes.slurm->job_id, .end_unix_s = ready.slurm.end_unix_s};
  plan.cross_memory_attach = ready.preflight.cross_memory_attach;
  plan.max_steps = max_steps;
  plan.matmul_flops_per_s = ready.peak_flops_per_s;
  plan.rank_room_bytes = ready.preflight.rank_room_bytes;
  plan.data_files = ready.preflight.data_files;
  plan.val_bytes_per_token = ready.preflight.val_bytes_per_token;
  plan.numerics = ready.numerics;
  return plan;
}

DeviceKind device_of_run(const NodeNeed& need, FileSystem& fs) {
  if (need.use.choice != DeviceChoice::automatic) return device_kind(need.use);
  const RunNodes nodes = nodes_of(need, fs);
  const std::optional<int> here = ranks_here(nodes);
  if (here == 0 && nodes.slurm && nodes.slurm->gpus_on_this_node.value_or(0) > 0 &&
      kernels::cuda_status().built)
    return DeviceKind::cuda;
  return device_kind(need.use, here);
}

ParsedJob with_device(const ParsedJob& job, DeviceKind kind) {
  if (job.job.device != DeviceChoice::automatic) return job;
  return with_decided(job, {fmt::format("device={}", name_of(kind))}, "auto, decided at launch");
}

ParsedJob with_data_decided(const ParsedJob& job, FileSystem& fs, const DataSpec* parent) {
  const DataSpec& data = job.job.data;
  std::vector<std::string> decided;
  if (data.documents == Documents::automatic) {
    const bool masks = data.packing == PackingKind::best_fit ||
                       (parent ? parent->masks_documents() : sources_have_documents(data));
    decided.push_back(fmt::format("data.documents={}", word_of(masks ? Documents::mask : Documents::ignore)));
  }
  if (data.loss == TargetLoss::automatic) {
    const TargetLoss loss = parent ? parent->loss : loss_of_sources(data, fs);
    decided.push_back(fmt::format("data.loss={}", word_of(loss)));
  }
  return decided.empty() ? job : with_decided(job, decided, "auto, decided at launch");
}

RunLock lock_or_refuse(FileSystem& fs, const RunDirectory& run, const std::string& id) {
  auto lock = RunLock::try_take(run);
  if (!lock) refuse_busy(fs, run, id);
  return std::move(*lock);
}

void note_lock(Console& console, const RunLock& lock) {
  if (!lock.note().empty()) console.note("  " + lock.note());
}

void note_store(Console& console, const StoreCheck& check) {
  if (check.unusable.exists()) throw Error(ErrorCode::kPreflight, check.unusable.text());
  if (!check.note.empty()) console.note("  note: " + check.note);
}

}  // namespace trainctl
