#include "runtime/launch/preflight.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "data/dataset.h"
#include "runtime/base/error.h"
#include "runtime/launch/process.h"
#include "runtime/train/trainer.h"

namespace trainctl {
namespace {

using nlohmann::json;

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

}  // namespace

Preflight check_machine_and_data(const JobSpec& job, FileSystem&) {
  Preflight result;
  const int ranks = job.mesh().world_size();
  result.mpirun = find_program(job.launcher.mpirun);
  if (result.mpirun.empty())
    throw Error(
        ErrorCode::kPreflight,
        fmt::format(
            "launcher.mpirun = \"{}\" is not an executable on PATH; install OpenMPI (openmpi-bin) or give the "
            "full path with -s launcher.mpirun=PATH",
            job.launcher.mpirun));
  if (job.launcher.slots > 0 && ranks > job.launcher.slots)
    throw Error(
        ErrorCode::kPreflight,
        fmt::format(
            "the mesh needs {} ranks and launcher.slots = {}; raise launcher.slots or make parallelism smaller",
            ranks, job.launcher.slots));
  check_shared_memory(ranks);
  result.cross_memory_attach = cross_memory_attach_works();
  const auto train = data::open_dataset(dataset_options(job, false));
  result.train_tokens = train->token_count();
  json fingerprints = {{"train", json::parse(train->fingerprints_json())}, {"val", json::array()}};
  if (!job.data.val.empty()) {
    const auto val = data::open_dataset(dataset_options(job, true));
    result.val_tokens = val->token_count();
    fingerprints["val"] = json::parse(val->fingerprints_json());
  }
  result.data_json = fingerprints.dump(2);
  return result;
}

void check_writable(FileSystem& fs, const std::string& directory) try {
  fs.make_directories(directory);
  const std::string probe = fmt::format("{}/.trainctl-probe-{}", directory, ::getpid());
  if (fs.exists(probe)) fs.remove_file(probe);
  fs.write_new_text(probe, "probe\n");
  fs.remove_file(probe);
} catch (const Error& error) {
  throw Error(ErrorCode::kPreflight, fmt::format("{} cannot be written to: {}", directory, error.what()));
}

std::string changed_data(const std::string& run_data_json, const std::string& now_data_json) {
  const json run = json::parse(run_data_json, nullptr, false), now = json::parse(now_data_json, nullptr, false);
  // Only what is trained on decides what comes next; validation files may be added.
  if (!run.is_object() || !now.is_object() || !run.contains("train") || !now.contains("train"))
    return "the record of the run's data (data.json) is damaged";
  const json &before = run["train"], &after = now["train"];
  if (before.size() != after.size())
    return fmt::format("data.train had {} sources and has {} now", before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].value("fingerprint", "") == after[i].value("fingerprint", "")) continue;
    return fmt::format(
        "data.train[{}] ({}) is not the file that the run began with: {} tokens then, {} now, fingerprint {} "
        "then, {} now",
        i, after[i].value("path", "?"), before[i].value("tokens", int64_t(0)),
        after[i].value("tokens", int64_t(0)), before[i].value("fingerprint", "?"),
        after[i].value("fingerprint", "?"));
  }
  return "";
}

}  // namespace trainctl
