// What `trainctl doctor` looks at. Each function asks one thing of the machine and keeps what it hears; nothing is decided here.
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>

#include "ckpt/memory_folder.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/library_search.h"
#include "parallel/communicator.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/process_memory.h"
#include "runtime/machine/bundle.h"
#include "runtime/machine/kernel_log.h"
#include "runtime/machine/process.h"
#include "runtime/observe/doctor.h"
#include "runtime/supervise/preflight/preflight.h"

namespace trainctl {
namespace {

/// A launcher that hangs says nothing.
constexpr double kVersionLimitS = 10;

/// "" when there is no such file. Files of /proc and /sys have no size, so FileSystem cannot read them.
std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A line "name ... : value" of /proc/cpuinfo.
std::string value_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    const size_t colon = line.find(':');
    const size_t at = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    if (at != std::string::npos) return line.substr(at);
  }
  return "";
}

CpuFacts cpu_facts() {
  using kernels::cpu::InstructionSet;
  CpuFacts cpu;
  cpu.model = value_of(text_of_file("/proc/cpuinfo"), "model name");
  cpu.cores = int(::sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cpu.usable = CPU_COUNT(&set);
  for (const std::string& group : control_groups_of(text_of_file("/proc/self/cgroup"), "")) {
    const double quota = quota_of(text_of_file(group + "/cpu.max"));
    if (quota > 0) cpu.quota_cores = cpu.quota_cores == 0 ? quota : std::min(cpu.quota_cores, quota);
  }
  for (const InstructionSet set : {InstructionSet::v2, InstructionSet::v3, InstructionSet::v4})
    if (kernels::cpu::supports(set)) cpu.instruction_set = set;
  return cpu;
}

uint64_t limit_of(decltype(RLIMIT_AS) which) {
  rlimit limit;
  return ::getrlimit(which, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? uint64_t(limit.rlim_cur) : 0;
}

/// The tightest limit among the control groups.
void group_limit(MemoryFacts& memory) {
  for (const GroupMemory& group : memory_groups()) {
    if (group.limit_bytes >= memory.total_bytes) continue;   // no limit in effect
    if (memory.group_limit_bytes > 0 && group.limit_bytes >= memory.group_limit_bytes) continue;
    memory.group_limit_bytes = group.limit_bytes;
    memory.group_used_bytes = group.used_bytes;
  }
}

MemoryFacts memory_facts() {
  MemoryFacts memory;
  const SystemMemory system = machine_memory();
  memory.total_bytes = system.total_bytes;
  memory.available_bytes = system.available_bytes;
  group_limit(memory);
  memory.address_space_bytes = limit_of(RLIMIT_AS);
  memory.open_files = limit_of(RLIMIT_NOFILE);
  return memory;
}

/// Type of the file system that holds `path`: of the longest mount point above it, the last one where several lie on each other.
std::string file_system_type(const std::string& path) {
  std::istringstream mounts(text_of_file("/proc/self/mounts"));
  std::string best_type, device, point, type, rest;
  size_t best = 0;
  while (mounts >> device >> point >> type && std::getline(mounts, rest)) {
    for (size_t at; (at = point.find("\\040")) != std::string::npos;) point.replace(at, 4, " ");
    const bool above = point == "/" || path == point || path.starts_with(point + "/");
    if (above && point.size() >= best) best = point.size(), best_type = type;
  }
  return best_type;
}

FolderFacts folder_facts(const std::string& path) {
  FolderFacts folder{.path = path};
  FileSystem& fs = real_file_system();
  folder.exists = fs.is_directory(path);
  if (!folder.exists) return folder;
  folder.type = file_system_type(path);
  struct statvfs s;
  if (::statvfs(path.c_str(), &s) == 0) {
    folder.total_bytes = uint64_t(s.f_blocks) * s.f_frsize;
    folder.free_bytes = uint64_t(s.f_bavail) * s.f_frsize;
  }
  try {
    check_writable(fs, path);
  } catch (const Error& error) {
    folder.problem = error.what();
  }
  return folder;
}

/// First line of what `PROGRAM --version` says; "" if it fails or takes too long.
std::string version_text(const std::string& program, const Environment& environment) try {
  ChildProcess child({program, "--version"}, environment);
  const double end = real_clock().monotonic_s() + kVersionLimitS;
  std::string text;
  while (!child.reap() && real_clock().monotonic_s() < end) {
    pollfd fds[] = {{.fd = child.output_fd(), .events = POLLIN}, {.fd = child.exit_fd(), .events = POLLIN}};
    ::poll(fds, 2, 100);
    text += child.read_output();
  }
  text += child.read_output();
  return child.reap() == std::optional<int>(0) ? text.substr(0, text.find('\n')) : "";
} catch (const Error&) {
  return "";
}

MpiFacts mpi_facts() {
  MpiFacts mpi;
  mpi.bundle = own_bundle();
  mpi.launcher = find_launcher("mpirun", mpi.bundle, find_program);
  mpi.bundled = is_of_bundle(mpi.launcher, mpi.bundle);
  if (!mpi.launcher.empty())
    mpi.launcher_text = version_text(mpi.launcher, mpi.bundled ? bundle_environment(mpi.bundle) : Environment{});
  mpi.library_text = parallel::mpi_library_version();
  return mpi;
}

/// A library that says its version by a function without arguments; `digits` splits it: 10000 for 130100 = 13.1.0.
LibraryFacts cublaslt_facts() {
  const kernels::LoadedLibrary library = kernels::load_cublaslt();
  LibraryFacts facts{.name = "cublaslt", .path = library.path, .problem = library.problem};
  facts.needed = true;
  if (const auto version = reinterpret_cast<size_t (*)()>(library.find("cublasLtGetVersion"))) {
    const size_t v = version();
    facts.version = fmt::format("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100);
  }
  return facts;
}

CudaFacts cuda_facts() {
  CudaFacts cuda{.status = kernels::cuda_status()};
  for (int i = 0; i < cuda.status.devices; ++i) {
    try {
      cuda.gpus.push_back(gpu_facts_with_log(i));
    } catch (const Error& error) {
      cuda.status.problem = error.what();
    }
  }
  if (!cuda.status.built) return cuda;
  cuda.libraries.push_back(cublaslt_facts());
  const parallel::NcclStatus nccl = parallel::nccl_status();
  cuda.libraries.push_back({.name = "nccl",
                            .path = nccl.path,
                            .version = nccl.version > 0 ? fmt::format("{}.{}.{}", nccl.version / 10000, nccl.version / 100 % 100,
                                                                      nccl.version % 100)
                                                        : "",
                            .problem = nccl.problem});
  return cuda;
}

}  // namespace

static std::vector<LeftMemory> left_memory() {
  std::vector<LeftMemory> left;
  for (const ckpt::StrayMemory& stray : ckpt::stray_memory(real_clock().unix_s()))
    left.push_back({stray.path, stray.run_directory, stray.bytes});
  return left;
}

DoctorFacts gather_doctor_facts() {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  return {.program_version = TRAINCTL_VERSION,
          .cpu = cpu_facts(),
          .memory = memory_facts(),
          .shared_memory = folder_facts("/dev/shm"),
          .scratch = folder_facts("/tmp"),
          .here = folder_facts(error ? "." : here.string()),
          .mpi = mpi_facts(),
          .cuda = cuda_facts(),
          .left_memory = left_memory()};
}

}  // namespace trainctl
