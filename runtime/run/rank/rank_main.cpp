#include "runtime/run/rank/rank_main.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>

#include "parallel/communicator.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/units.h"
#include "runtime/machine/binding.h"
#include "runtime/machine/bundle.h"
#include "runtime/machine/rank_device.h"
#include "runtime/run/pieces/held_pieces.h"
#include "runtime/run/rank/burn_in_phase.h"
#include "runtime/run/rank/control_client.h"
#include "runtime/run/rank/flipping_device.h"
#include "runtime/run/record/crash_record.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/wire/environment.h"
#include "runtime/run/wire/times_at.h"
#include "runtime/train/control/rank_activity.h"
#include "runtime/train/trainer.h"

namespace trainctl {
namespace {

/// A live supervisor ends a save that makes no progress for save_timeout_seconds and says why; a rank ends itself only
/// when that has not happened.
constexpr double kVerdictGraceS = 10;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// The rank, before MPI is there to ask.
int rank_from_environment() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"})
    if (const std::string text = variable(name); !text.empty()) return std::atoi(text.c_str());
  throw Error(ErrorCode::kUsage,
              "`trainctl rank` is what `trainctl launch` starts on every slot; it does nothing by hand");
}

/// This rank's number among those of its machine.
int local_rank_from_environment() {
  const std::string text = variable("OMPI_COMM_WORLD_LOCAL_RANK");
  return text.empty() ? 0 : std::atoi(text.c_str());
}

/// stdout and stderr of this process go to its log from here on.
void redirect_to_log(const RunDirectory& run, int rank, uint64_t epoch) {
  const std::string path = run.rank_log(rank);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0)
    throw Error(ErrorCode::kIo, fmt::format("cannot open the log {}: {}", path, std::strerror(errno)));
  ::dup2(fd, STDOUT_FILENO);
  ::dup2(fd, STDERR_FILENO);
  ::close(fd);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  fmt::print("--- {} attempt {} rank {} pid {}\n", utc_text(real_clock().unix_s()), epoch, rank, ::getpid());
}

/// A failed rank ends at once, so that its supervisor and peers learn of it now: no destructors that could wait
/// for a peer.
[[noreturn]] void fail(FileSystem& fs, const RunDirectory& run, CrashRecord record) {
  record.pid = ::getpid();
  record.activity = noted_activity();
  record.unix_s = real_clock().unix_s();
  fmt::print(stderr, "rank {}: {}: {}\n", record.rank, name_of(record.code), record.message);
  write_crash_record(fs, run.path, record);
  std::fflush(nullptr);
  ::_exit(exit_status(record.code));
}

/// The same with the exception being handled.
[[noreturn]] void fail_with_exception(FileSystem& fs, const RunDirectory& run, CrashRecord record) {
  try {
    throw;
  } catch (const Error& error) {
    record.code = error.code();
    record.message = error.what();
  } catch (const std::bad_alloc&) {
    record.code = ErrorCode::kPlan;
    record.message = out_of_memory_text();
  } catch (const std::exception& error) {
    record.code = ErrorCode::kInternal;
    record.message = error.what();
  }
  fail(fs, run, record);
}

/// For a rank that gets no more memory, or no more descriptors. It ends with that cause, and is started again
/// where its state is: a new process may have what this one has not.
struct Exhaustion {
  FileSystem* fs = nullptr;
  RunDirectory run;
  CrashRecord record;
  /// Given back first, so that there is something to say it with. Larger than what malloc keeps for itself.
  std::unique_ptr<char[]> memory = std::make_unique<char[]>(kReserveBytes);
  std::array<int, 4> descriptors;
  static constexpr size_t kReserveBytes = size_t(4) << 20;
  Exhaustion(FileSystem& f, RunDirectory r, CrashRecord c) : fs(&f), run(std::move(r)), record(std::move(c)) {
    for (int& fd : descriptors) fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
};
Exhaustion* g_exhaustion = nullptr;

/// Whichever thread asked in vain. Returns in the thread that is ending already.
void end_exhausted(ErrorCode code, const std::function<std::string()>& why) {
  static std::atomic<bool> is_ending{false};
  static thread_local bool ends_here = false;
  if (ends_here) return;
  if (is_ending.exchange(true))
    while (true) ::pause();
  ends_here = true;
  g_exhaustion->memory.reset();
  CrashRecord record = g_exhaustion->record;
  record.code = code;
  record.message = why();
  for (const int fd : g_exhaustion->descriptors) ::close(fd);
  fail(*g_exhaustion->fs, g_exhaustion->run, record);
}

void end_out_of_memory() {
  end_exhausted(ErrorCode::kPlan, out_of_memory_text);
  throw std::bad_alloc();
}

void end_out_of_descriptors(const std::string& what) {
  end_exhausted(ErrorCode::kIo, [&] { return out_of_descriptors_text(what); });
}

/// `limit_s`: the longest wait for another node.
std::optional<MemoryLoad> memory_of(const AttemptFile& attempt, double limit_s, FileSystem& fs) {
  if (!attempt.memory) return std::nullopt;
  const MemoryState& state = *attempt.memory;
  MemoryLoad load{.set = {.step = state.step, .epoch = state.epoch, .ranks = state.ranks}};
  if (!state.whole)
    load.elsewhere =
        pieces_elsewhere(fs, variable(kMemoryVariable), state.ranks, limit_s, load.read_elsewhere);
  return load;
}

RankOptions options_of(const RunDirectory& run, const RunIdentity& identity, const AttemptFile& attempt,
                       const ParsedJob& job, const std::string& job_text, int rank, FileSystem& fs) {
  std::vector<NodeRanks> nodes;
  if (attempt.nodes.size() > 1)
    for (const AttemptFile::Node& node : attempt.nodes) nodes.push_back({node.name, node.first, node.count});
  const double limit_s = job.job.fault_tolerance.collective_timeout_seconds;
  const std::string memory_folder = variable(kMemoryVariable);
  std::function<std::unique_ptr<ckpt::NodeMemory>(uint64_t bytes)> partner;
  if (!memory_folder.empty() && attempt.nodes.size() > 1)
    partner = partner_memory(
        fs, memory_folder,
        {.rank = rank, .ranks = job.job.mesh().world_size(), .epoch = attempt.epoch}, limit_s);
  return {.run_id = identity.run_id,
          .resolved_spec_json = job_text,
          .spec_hash = job.hash,
          .checkpoint_dir = run.checkpoints(job.job.checkpoint),
          .memory_folder = memory_folder,
          .scratch_folder = attempt.session_folder,
          .resume_from = attempt.resume_from,
          .resume_manifest = attempt.resume_manifest,
          .from_store = attempt.from_store,
          .memory = memory_of(attempt, limit_s, fs),
          .partner = partner,
          .new_data = attempt.new_data,
          .lineage_json = attempt.lineage_json,
          .epoch = attempt.epoch,
          .max_steps = attempt.max_steps,
          .gradients_dir = job.job.observability.save_gradients ? run.file("gradients") : "",
          .matmul_flops_per_s = attempt.matmul_flops_per_s,
          .saves = attempt.saves,
          .nodes = std::move(nodes),
          .data_record = fs.exists(run.file("data.json")) ? fs.read_text(run.file("data.json")) : "",
          .remedies = attempt.remedies,
          .disputes = attempt.disputes};
}

/// `control` is the caller's, so that unwinding does not close the connection before the crash record is
/// written.
void run(FileSystem& fs, const RunDirectory& directory, const AttemptFile& attempt, const CrashRecord& record,
         std::unique_ptr<Control>& control) {
  const int rank = record.rank;
  const auto identity = read_identity(fs, directory);
  if (!identity) throw Error(ErrorCode::kIo, fmt::format("{} is not a run directory", directory.path));
  const std::string text = fs.read_text(directory.job());
  // The spec is resolved: neither --set nor the environment of this machine has a say any more.
  ParsedJob job = parse_job({.text = text,
                             .file = directory.job(),
                             .overrides = attempt.overrides,
                             .environment = {},
                             .is_of_run = true});
  if (!job.ok())
    throw Error(ErrorCode::kSpec, "the run's job.json does not parse: " + render(job.diagnostics, false));
  if (attempt.threads_per_rank > 0) job.job.parallelism.threads_per_rank = attempt.threads_per_rank;
  // The threads that compute, and one heap for all others.
  limit_heaps(job.job.parallelism.threads_per_rank + 1);
  // Before threads are started: they inherit it.
  const std::string local_ranks = variable("OMPI_COMM_WORLD_LOCAL_SIZE");
  bool is_bound = false;
  if (const int count = std::atoi(local_ranks.c_str()); job.job.launcher.bind && count > 0)
    if (const std::string cores =
            bind_rank(local_rank_from_environment(), count, job.job.parallelism.threads_per_rank,
                      gpus_of_ranks(job.job, device_kind(job.job), count));
        !cores.empty()) {
      is_bound = true;
      fmt::print("bound to cores {}\n", cores);
    }
  control = connect_control(
      variable(kAgentVariable), variable(kTokenVariable), rank, job.job.fault_tolerance.heartbeat_seconds,
      job.job.fault_tolerance.save_timeout_seconds + kVerdictGraceS, variable(kTimesAtVariable));
  // Its thread sends heartbeats from here on, so that also a start that hangs is seen.
  control->activity({.kind = Activity::waiting, .phase = RunPhase::starting, .operation = "MPI_Init"});
  parallel::MpiWorld mpi;
  install_crash_handlers(directory.path, rank, attempt.epoch);
  auto host = mpi.world(job.job.fault_tolerance.collective_timeout_seconds);
  host->set_deadline(job.job.fault_tolerance.start_skew_seconds);   // until all are ready for the first step
  RankActivity activity(*control, RunPhase::starting);
  const DeviceKind device = device_kind(job.job);
  auto backend = make_rank_backend(job.job, device, local_rank_from_environment());
  const auto flip = FlipAt::parse(variable(kFlipAtVariable), attempt.epoch);
  if (flip && flip->rank == rank) backend = make_flipping_device(std::move(backend), *flip);
  const int gpu = gpu_of_rank(job.job, device, local_rank_from_environment());
  try {
    burn_in_phase(
        attempt,
        {.seconds = job.job.launcher.burn_in,
         // Cores that other programs keep busy are no fault; one that never answers is a hang.
         .answer_s = gpu >= 0 ? LauncherSpec::kBurnInAnswerS : job.job.fault_tolerance.setup_timeout_seconds,
         .rank = rank,
         .local_rank = local_rank_from_environment(),
         .local_ranks = std::max(1, std::atoi(local_ranks.c_str())),
         .gpu = gpu,
         .is_bound = is_bound},
        *host, *control, activity);
  } catch (...) {
    fail_with_exception(fs, directory, record);  // a thread may still compute
  }
  activity.enter(RunPhase::joining);
  const auto world = make_device_world(job.job, device, std::move(host), *backend);
  RankOptions options = options_of(directory, *identity, attempt, job, text, rank, fs);
  options.gpu = gpu;
  std::optional<Trainer> trainer;
  try {
    trainer.emplace(job.job, options, *world, *backend, *control, fs);
    trainer->run();
  } catch (...) {
    // Before anything is unwound: giving back a GPU's memory waits for all messages under way on it, also for those of peers that wait
    // for this rank or have failed.
    fail_with_exception(fs, directory, record);
  }
  trainer.reset();
  control->done();
  mpi.finalize();
}

}  // namespace

int probe_main() {
  enter_bundle(own_bundle());
  parallel::MpiWorld mpi;
  fmt::print("world_size {}\n", mpi.world(10)->size());
  std::fflush(stdout);
  mpi.finalize();
  return 0;
}

int exchange_main() {
  enter_bundle(own_bundle());
  parallel::MpiWorld mpi;
  const auto world = mpi.world(30);
  if (world->size() != 2) throw Error(ErrorCode::kUsage, "an exchange is measured between two ranks");
  constexpr size_t kMost = size_t{4} << 20;
  std::vector<std::byte> sent(kMost), received(kMost);
  const int peer = 1 - world->rank();
  for (size_t bytes = 1 << 10; bytes <= kMost; bytes *= 4) {
    std::vector<double> seconds;
    for (int i = 0; i < 100; ++i) {
      parallel::barrier(*world);
      const parallel::Transfer both[] = {{parallel::Transfer::send, peer, sent.data(), bytes},
                                         {parallel::Transfer::receive, peer, received.data(), bytes}};
      const double begin_s = real_clock().monotonic_s();
      world->exchange_and_wait(both, "measure an exchange");
      seconds.push_back(real_clock().monotonic_s() - begin_s);
    }
    std::nth_element(seconds.begin(), seconds.begin() + 50, seconds.end());
    if (world->rank() == 0) fmt::print("exchange {} {:.9f}\n", bytes, seconds[50]);
  }
  std::fflush(stdout);
  mpi.finalize();
  return 0;
}

int rank_main(const std::string& run_directory) {
  enter_bundle(own_bundle());  // first: no other thread reads the environment yet
  prepare_device_environment();
  ::setpriority(PRIO_PROCESS, 0, 0);  // the agent, whose child this is, has a higher one
  // A scheduler may warn every process of the job; the supervisor saves and stops for all.
  for (const int warning : {SIGTERM, SIGUSR1, SIGUSR2}) std::signal(warning, SIG_IGN);
  FileSystem& fs = real_file_system();
  const RunDirectory directory{run_directory};
  const int rank = rank_from_environment();
  const AttemptFile attempt = AttemptFile::from_json(fs.read_text(directory.attempt()));
  redirect_to_log(directory, rank, attempt.epoch);
  if (variable(kEpochVariable) != fmt::format("{}", attempt.epoch)) {
    // A node that was cut off starts its ranks late: the run has gone on without it.
    fmt::print(stderr, "rank {}: of attempt {}, which is over: ending\n", rank, variable(kEpochVariable));
    return exit_status(ErrorCode::kLauncher);
  }
  note_activity_on_board(variable(kBoardVariable), rank);
  const auto stop = StopAt::parse(variable(kStopAtVariable), attempt.epoch);
  if (stop && stop->rank == rank) stop_at(*stop);
  const CrashRecord record{.rank = rank, .epoch = attempt.epoch};
  Exhaustion exhaustion(fs, directory, record);
  g_exhaustion = &exhaustion;
  std::set_new_handler(end_out_of_memory);
  set_no_descriptor_handler(end_out_of_descriptors);
  std::unique_ptr<Control> control;
  try {
    run(fs, directory, attempt, record, control);
    return 0;
  } catch (...) {
    fail_with_exception(fs, directory, record);
  }
}

}  // namespace trainctl
