#include "runtime/supervise/preflight/preflight.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "ckpt/chunk_stream.h"
#include "data/data_record.h"
#include "data/sidecar.h"
#include "kernels/device.h"
#include "kernels/library_search.h"
#include "kernels/limits.h"
#include "parallel/communicator.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/machine/bundle.h"
#include "runtime/machine/process.h"
#include "runtime/train/trainer.h"

namespace trainctl {
namespace {

/// OpenMPI's shared-memory transport maps one 4 MiB segment a rank, and a little more for queues.
constexpr uint64_t kSharedBytesPerRank = 5u << 20;

void check_shared_memory(int ranks) {
  struct statvfs s;
  if (::statvfs("/dev/shm", &s) != 0)
    throw Error(ErrorCode::kPreflight, "/dev/shm is missing; ranks on one machine talk through it");
  const uint64_t free_bytes = uint64_t(s.f_bavail) * s.f_frsize, needed = kSharedBytesPerRank * uint64_t(ranks);
  if (free_bytes < needed)
    throw Error(
        ErrorCode::kPreflight,
        fmt::format(
            "/dev/shm has {} MiB free and {} ranks need {}; remove old files there, or give the container "
            "more (docker run --shm-size)",
            free_bytes >> 20, ranks, needed >> 20));
}

/// A supervisor that can open no more files fails anywhere. Raises the soft limit where it is allowed to: not
/// without bound, because some launchers close every possible descriptor one by one.
void check_descriptors(int ranks) {
  constexpr rlim_t kEnough = 4096;
  constexpr int kOfRun = 24, kOfRank = 4;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_cur < kEnough && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = std::min(kEnough, limit.rlim_max);
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
    (void)::getrlimit(RLIMIT_NOFILE, &limit);
  }
  const auto needed = rlim_t(kOfRun + kOfRank * ranks);
  if (limit.rlim_cur < needed)
    throw Error(
        ErrorCode::kPreflight,
        fmt::format("this process may open {} files (ulimit -Hn), and a run of {} needs {}; raise the limit "
                    "(limits.conf, or docker run --ulimit nofile=)",
                    limit.rlim_cur, count_of(ranks, "rank"), needed));
}

/// Whether process_vm_readv works between processes of one user: a container's seccomp filter or Yama may
/// forbid it.
bool cross_memory_attach_works() {
  std::ifstream yama("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  if (yama >> scope && scope > 0) return false;
  char from = 1, to = 0;
  const iovec local{&to, 1}, remote{&from, 1};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1;
}

/// What would make the job smaller, as far as the spec has not done it already.
std::string smaller_by(const JobSpec& job) {
  std::vector<std::string> ways;
  if (job.compute == DType::f32) ways.push_back("precision.compute = bf16");
  if (job.recompute == Recompute::none || job.recompute == Recompute::first_layers)
    ways.push_back("memory.activation_recompute = full");
  if (job.batch.micro_sequences > 1) ways.push_back("a smaller batch.micro_sequences");
  const ParallelSpec& p = job.parallelism;
  const bool shares = p.ranks_of_parameters() > 1;
  if (shares && p.zero_stage == 0) ways.push_back("parallelism.zero_stage = 1");
  const bool reduces_lanes =
      p.lanes % p.data == 0 || (p.context_blocks == 1 && p.expert == 1 && p.reduction != GradientSums::fast);
  if (shares && p.zero_stage < 2 && reduces_lanes && job.micro_batches_per_lane() == 1)
    ways.push_back("parallelism.zero_stage = 2");
  else if (shares && p.zero_stage < 3 && reduces_lanes)
    ways.push_back("parallelism.zero_stage = 3");
  if (shares && p.zero_stage == 3 && !p.reshard_after_forward)
    ways.push_back("parallelism.reshard_after_forward = true");
  if (job.parallelism.data > 1) ways.push_back("a smaller parallelism.data");
  ways.push_back("a smaller model");
  std::string text;
  for (size_t i = 0; i < ways.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ways.size() ? " or " : ", ", ways[i]);
  return text;
}

/// "weights 1.0 GiB, gradients 0.5 GiB, scratch 0.1 GiB", of what does not give way.
std::string three_largest(const MemoryNeed& need) {
  std::string text;
  int shown = 0;
  for (const auto& [name, bytes] : need.terms) {
    if (name == kCopiesTerm || shown++ >= 3) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, brief_memory_text(bytes));
  }
  return text;
}

}  // namespace

Problem memory_refusal(const JobSpec& job, const MemoryNeed& need, uint64_t available_bytes) {
  if (need.without_copies() <= available_bytes) return Problem::none();
  const int ranks = job.mesh().world_size();
  return Problem(
      fmt::format("{} rank{} would need {} of memory and {} are available here (most of it: {}); {} "
                  "would help, and `trainctl plan` shows what each rank takes",
                  ranks, ranks == 1 ? "" : "s", brief_memory_text(need.without_copies()),
                  brief_memory_text(available_bytes), three_largest(need), smaller_by(job)));
}

Problem copies_problem(MemoryCopies mode, const MemoryNeed& need, uint64_t available_bytes,
                       std::optional<uint64_t> shm_free_bytes) {
  const uint64_t all = need.copies + need.second_copies;
  if (mode == MemoryCopies::off || all == 0) return Problem::none();
  const bool one = mode == MemoryCopies::one, automatic = mode == MemoryCopies::automatic;
  /// `other`: what is taken in addition to the copies.
  const auto problem = [&](uint64_t other, const char* of, uint64_t free) {
    const std::string with_second =
        need.second_copies > 0
            ? fmt::format(", {} with the second copies for another node", brief_memory_text(all))
            : "";
    const bool one_fits = !one && other + all / 2 <= free;
    std::vector<std::string> ways{"give it more (mount -o remount,size=)"};
    if (need.second_copies > 0 && other + need.copies <= free)
      ways.push_back("set checkpoint.partner to off");
    if (need.second_copies > 0) ways.push_back("run fewer ranks a node (launcher.slots)");
    if (!automatic)
      ways.push_back(fmt::format("set checkpoint.memory to {}auto or off", one_fits ? "one, " : ""));
    std::string advice;
    for (size_t i = 0; i < ways.size(); ++i)
      advice += fmt::format("{}{}", i == 0 ? "" : i + 1 == ways.size() ? ", or " : ", ", ways[i]);
    const std::string single = one ? ""
                                   : fmt::format("; one copy takes {} and {}", brief_memory_text(all / 2),
                                                 !one_fits   ? "has no room either"
                                                 : automatic ? "is made instead"
                                                             : "has room");
    return Problem(fmt::format(
        "checkpoint.memory is {}: {} of the state take{} {} in /dev/shm{}, which makes {} of {}, and "
        "{} are free{}; {}",
        automatic ? "auto"
        : one     ? "one"
                  : "on",
        one ? "a copy" : "two copies", one ? "s" : "", brief_memory_text(need.copies), with_second,
        brief_memory_text(other + all), of, brief_memory_text(free), single, advice));
  };
  if (shm_free_bytes && all > *shm_free_bytes) return problem(0, "that file system", *shm_free_bytes);
  if (available_bytes > 0 && need.total + need.second_copies > available_bytes)
    return problem(need.without_copies(), "memory with all else", available_bytes);
  return Problem::none();
}

Problem copies_refusal(MemoryCopies mode, const MemoryNeed& need, uint64_t available_bytes,
                       std::optional<uint64_t> shm_free_bytes) {
  return mode != MemoryCopies::automatic ? copies_problem(mode, need, available_bytes, shm_free_bytes)
                                         : Problem::none();
}

Problem gpu_memory_refusal(const JobSpec& job, const MemoryNeed& need, const std::string& gpu,
                           uint64_t free_bytes) {
  if (need.total <= free_bytes) return Problem::none();
  return Problem(fmt::format(
      "{} would need {} of GPU memory and {} has {} free (most of it: {}); {} would help, and `trainctl "
      "plan` shows "
      "what each rank takes",
      job.launcher.ranks_per_gpu == 1 ? "a rank"
                                      : fmt::format("{} ranks on one GPU", job.launcher.ranks_per_gpu),
      brief_memory_text(need.total), gpu, brief_memory_text(free_bytes), three_largest(need),
      smaller_by(job)));
}

namespace {

/// The part of a job on this machine, as shares of its ranks.
struct SharesHere {
  double own = 1;     ///< that run here
  double second = 0;  ///< whose second copies are here
};

/// Throws if the job insists on copies that have no room; otherwise returns the note.
std::string check_copies(MemoryCopies mode, const MemoryNeed& need, uint64_t available) {
  const Problem problem = copies_problem(mode, need, available, real_file_system().free_bytes("/dev/shm"));
  if (problem.exists() && mode != MemoryCopies::automatic) throw Error(ErrorCode::kPlan, problem.text());
  return problem.text_or_empty();
}

/// Ranks that outgrow the machine would be killed one by one, long after the start. Where the system does not
/// say what is available nothing is refused.
void check_memory(const JobSpec& job, const SharesHere& here, Preflight& result) {
  const DeviceModel device = device_here(job, DeviceKind::cpu, false);
  const uint64_t available = device.room(job);
  MemoryNeed need = memory_need(job.parallelism, job.checkpoint.memory, make_plan(job, device));
  need.total = uint64_t(double(need.total) * here.own);
  need.saving = uint64_t(double(need.saving) * here.own);
  need.second_copies = uint64_t(double(need.copies) * here.second);
  need.copies = uint64_t(double(need.copies) * here.own);
  if (here.own > 0)
    result.rank_room_bytes =
        uint64_t(double(available) / std::ceil(double(job.mesh().world_size()) * here.own));
  if (available > 0)
    if (const Problem refusal = memory_refusal(job, need, available); refusal.exists())
      throw Error(ErrorCode::kPlan, refusal.text());
  result.copies_note = check_copies(job.checkpoint.memory, need, available);
  result.memory_text = fmt::format("{} needed", brief_memory_text(need.needed(available)));
  if (available > 0) result.memory_text += fmt::format(", {} available", brief_memory_text(available));
}

/// The host memory of ranks on GPUs: pinned, what a resume reads through, and the copies of the state.
void check_host_memory(const JobSpec& job, const SharesHere& here, Preflight& result) {
  if (here.own + here.second == 0) return;
  const JobPlan plan = make_plan(job, device_of_kind(job, DeviceKind::cuda));
  const double ranks_of_stage = double(job.mesh().world_size()) / double(plan.stages.size());
  MemoryNeed need;
  for (const RankMemory& stage : plan.stages) {
    need.total +=
        uint64_t(double(stage.pinned_host + ckpt::kReaderBytes + stage.copies) * ranks_of_stage * here.own);
    need.copies += uint64_t(double(stage.copies) * ranks_of_stage * here.own);
    need.second_copies += uint64_t(double(stage.copies) * ranks_of_stage * here.second);
  }
  const uint64_t available = system_memory().available_bytes, pinned = need.without_copies();
  if (job.optimizer.offload == StateOffload::host && available > 0 && pinned > available)
    throw Error(
        ErrorCode::kPlan,
        fmt::format("the ranks of this machine take {} of its memory with the optimizer's state, and {} is "
                    "available; use more nodes, optimizer.moments int8, or optimizer.offload none",
                    brief_memory_text(pinned), brief_memory_text(available)));
  result.copies_note = check_copies(job.checkpoint.memory, need, available);
}

}  // namespace

namespace {

/// GPUs are there and each has room for the ranks on it, before any of them is touched.
std::string check_gpus(const JobSpec& job, Preflight& result) {
  const kernels::CudaStatus status = kernels::cuda_status();
  if (const Problem missing = missing_gpus(job, status.devices, status.problem); missing.exists())
    throw Error(ErrorCode::kPreflight, missing.text());
  // Said here once, before every rank says it and the supervisor starts them again.
  if (const kernels::LoadedLibrary library = kernels::load_cublaslt(); !library) throw Error(ErrorCode::kPreflight, library.problem);
  if (job.mesh().world_size() > 1 && uses_nccl(job))
    if (const std::string problem = parallel::nccl_status().problem; !problem.empty()) throw Error(ErrorCode::kPreflight, problem);
  const MemoryNeed need =
      gpu_memory_need(job, job.checkpoint.memory, make_plan(job, device_of_kind(job, DeviceKind::cuda)));
  const int gpus = (job.mesh().world_size() + job.launcher.ranks_per_gpu - 1) / job.launcher.ranks_per_gpu;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    const DeviceModel device = device_here(job, DeviceKind::cuda, false, gpu);
    if (device.memory_bytes == 0) continue;   // not reported
    const uint64_t room = device.room(job) / uint64_t(job.launcher.ranks_per_gpu);
    result.rank_room_bytes = gpu == 0 ? room : std::min(room, result.rank_room_bytes);
    if (const Problem refusal = gpu_memory_refusal(job, need, device.name, device.room(job)); refusal.exists())
      throw Error(ErrorCode::kPlan, refusal.text());
  }
  return fmt::format("{} of GPU memory needed", brief_memory_text(need.total));
}

/// 0 where a source has no sidecar.
double bytes_per_token(const std::vector<DataSource>& sources) {
  double bytes = 0, tokens = 0;
  for (const DataSource& source : sources) {
    const auto sidecar = data::read_sidecar(source.path);
    if (!sidecar || sidecar->tokens == 0) return 0;
    bytes += double(sidecar->text_bytes), tokens += double(sidecar->tokens);
  }
  return tokens > 0 ? bytes / tokens : 0;
}

}  // namespace

void check_data(const DataSpec& data, int64_t vocab_size, Preflight& result) {
  const auto train = data::open_dataset(dataset_options(data, vocab_size, false));
  result.train_tokens = train->token_count();
  result.train_samples = train->samples_per_epoch();
  result.padding = train->padding();
  const auto val = data.val.empty() ? nullptr : data::open_dataset(dataset_options(data, vocab_size, true));
  if (val) result.val_tokens = val->token_count();
  result.data_json = data::data_record(*train, val.get());
  result.data_files = train->files();
  if (val)
    for (const std::string& path : val->files()) result.data_files.push_back(path);
  if (data.tokenizer.is_file()) result.data_files.push_back(data.tokenizer.path());
  // The loss of some tokens alone says nothing of the bytes of all.
  result.val_bytes_per_token = data.reads_loss() ? 0 : bytes_per_token(data.val);
}

std::string find_mpirun(const std::string& name) {
  const std::string found = find_launcher(name, own_bundle(), find_program);
  if (!found.empty()) return found;
  throw Error(
      ErrorCode::kPreflight,
      fmt::format("launcher.mpirun = \"{}\" is not an executable on PATH; install OpenMPI (openmpi-bin) or "
                  "give the full path with -s launcher.mpirun=PATH",
                  name));
}

void check_room(const JobSpec& job, std::optional<int> ranks_here, int second_ranks_here, Preflight& result) {
  const int ranks = job.mesh().world_size();
  check_descriptors(ranks_here.value_or(ranks));
  check_shared_memory(ranks_here.value_or(ranks));
  // What other nodes have is not seen from here.
  const SharesHere here{.own = double(ranks_here.value_or(ranks)) / double(ranks),
                        .second = double(second_ranks_here) / double(ranks)};
  if (device_kind(job) == DeviceKind::cuda) {
    if (job.model.head_dim() > kernels::kMostHeadDim)
      throw Error(
          ErrorCode::kPreflight,
          fmt::format(
              "model.head_dim = {}: attention on GPUs has at most {} channels a head; use more heads, or -s "
              "device=cpu",
              job.model.head_dim(), kernels::kMostHeadDim));
    result.memory_text = ranks_here ? "" : check_gpus(job, result);
    check_host_memory(job, here, result);
  } else {
    check_memory(job, here, result);
  }
}

Preflight check_machine_and_data(const JobSpec& job, FileSystem&, std::optional<int> ranks_here,
                                 int second_ranks_here) {
  Preflight result{.mpirun = find_mpirun(job.launcher.mpirun)};
  const int ranks = job.mesh().world_size();
  if (!ranks_here && job.launcher.slots > 0 && ranks > job.launcher.slots)
    throw Error(ErrorCode::kPreflight, fmt::format("the mesh needs {} ranks and launcher.slots = {}; raise "
                                                   "launcher.slots or make parallelism smaller",
                                                   ranks, job.launcher.slots));
  check_room(job, ranks_here, second_ranks_here, result);
  result.cross_memory_attach = cross_memory_attach_works();
  check_data(job.data, job.model.vocab_size, result);
  return result;
}

void check_writable(FileSystem& fs, const std::string& directory) try {
  fs.make_directories(directory);
  const std::string probe = fmt::format("{}/.trainctl-probe-{}", directory, ::getpid());
  if (fs.exists(probe)) fs.remove_file(probe);
  const auto write = [](File& file) {
    constexpr std::string_view kText = "probe\n";
    file.write_at(0, std::as_bytes(std::span(kText)));
    file.sync();
  };
  // Without its name first: a signal that ends the process leaves no file.
  try {
    const std::unique_ptr<File> file = fs.create(probe);
    fs.remove_file(probe);
    return write(*file);
  } catch (const Error&) {
    // Some file systems do not write what has no name.
  }
  {
    const std::unique_ptr<File> file = fs.create(probe);
    write(*file);
  }
  fs.remove_file(probe);
} catch (const Error& error) {
  throw Error(ErrorCode::kPreflight, fmt::format("{} cannot be written to: {}", directory, error.what()));
}

}  // namespace trainctl
