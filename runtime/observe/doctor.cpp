#include "runtime/observe/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "kernels/driver_floor.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/observe/console.h"
#include "runtime/plan/device_model.h"

namespace trainctl {
namespace {

/// Below this a run of even a small model is likely to be killed.
constexpr uint64_t kLittleMemory = uint64_t{1} << 30;
/// A rank takes about 5 MiB of shared memory; docker gives a container 64 MiB.
constexpr uint64_t kLittleSharedMemory = uint64_t{128} << 20, kNoSharedMemory = uint64_t{10} << 20;
constexpr uint64_t kLittleDisk = uint64_t{1} << 30, kNoDisk = uint64_t{16} << 20;
/// The supervisor holds a connection to each rank, and a rank its data files and peers.
constexpr uint64_t kFewOpenFiles = 256;

const char* name_of(kernels::cpu::InstructionSet set) {
  switch (set) {
    case kernels::cpu::InstructionSet::v2: return "x86-64-v2";
    case kernels::cpu::InstructionSet::v3: return "x86-64-v3";
    case kernels::cpu::InstructionSet::v4: break;
  }
  return "x86-64-v4";
}

DoctorCheck cpu_check(const CpuFacts& cpu) {
  DoctorCheck check{.name = "cpu"};
  check.found = fmt::format("{} · {}", cpu.model.empty() ? "unnamed processor" : cpu.model,
                            count_of(cpu.cores, "core"));
  if (cpu.usable > 0 && cpu.usable < cpu.cores)
    check.found += fmt::format(", {} of them usable here", cpu.usable);
  if (cpu.quota_cores > 0)
    check.found += fmt::format(", at most {:.1f} by its control group", cpu.quota_cores);
  if (!cpu.instruction_set) {
    check.verdict = DoctorCheck::fail;
    check.advice =
        "the kernels need x86-64-v2 (SSE4.2); use a processor made after 2009, or give the virtual machine "
        "its host's";
    return check;
  }
  check.found += std::string(" · ") + name_of(*cpu.instruction_set);
  if (*cpu.instruction_set == kernels::cpu::InstructionSet::v2) {
    check.verdict = DoctorCheck::warn;
    check.advice =
        "no AVX2: runs are several times slower; give the virtual machine its host's processor type";
  }
  return check;
}

DoctorCheck memory_check(const MemoryFacts& memory) {
  DoctorCheck check{.name = "memory"};
  check.found =
      fmt::format("{} free of {}", memory_text(memory.free_bytes()), memory_text(memory.total_bytes));
  if (memory.group_limit_bytes > 0)
    check.found += fmt::format(" · control group {} of {} taken", memory_text(memory.group_used_bytes),
                               memory_text(memory.group_limit_bytes));
  if (memory.address_space_bytes > 0)
    check.found += fmt::format(" · ulimit -v {}", memory_text(memory.address_space_bytes));
  check.found += fmt::format(" · {} open files", memory.open_files);
  if (memory.free_bytes() < kLittleMemory) {
    check.verdict = DoctorCheck::warn;
    check.advice =
        "little memory is free; end other programs or raise the limit, and look at `trainctl plan` first";
  } else if (memory.open_files < kFewOpenFiles) {
    check.verdict = DoctorCheck::warn;
    check.advice = "few files may be open at once; `ulimit -n 4096` before a launch of many ranks";
  }
  return check;
}

/// `name` for the line, `fix` for what to do when nothing can be written.
DoctorCheck folder_check(const char* name, const FolderFacts& folder, uint64_t little, uint64_t nothing,
                         const char* fix) {
  DoctorCheck check{.name = name, .found = folder.path};
  if (!folder.type.empty()) check.found += " · " + folder.type;
  if (!folder.exists || !folder.problem.empty()) {
    check.verdict = DoctorCheck::fail;
    check.found += " · " + (folder.problem.empty() ? std::string("missing") : folder.problem);
    check.advice = fix;
    return check;
  }
  check.found += fmt::format(" · writable · {} free", memory_text(folder.free_bytes));
  if (folder.free_bytes < nothing) {
    check.verdict = DoctorCheck::fail;
    check.advice = fix;
  } else if (folder.free_bytes < little) {
    check.verdict = DoctorCheck::warn;
    check.advice = fix;
  }
  return check;
}

DoctorCheck left_memory_check(const std::vector<LeftMemory>& left) {
  uint64_t bytes = 0;
  std::string folders;
  for (const LeftMemory& one : left) bytes += one.bytes, folders += " " + one.path;
  return {.verdict = DoctorCheck::warn,
          .name = "left in memory",
          .found = fmt::format("{} of {} that ended, the first is {}", memory_text(bytes),
                               count_of(int64_t(left.size()), "run"), left.front().run_directory),
          .advice = "resume them, or free the memory with: rm -r" + folders};
}

DoctorCheck launcher_check(const MpiFacts& mpi) {
  DoctorCheck check{.name = "mpirun"};
  if (mpi.launcher.empty()) {
    check.verdict = DoctorCheck::fail;
    check.found = mpi.bundle.empty() ? "not on PATH" : "not in " + mpi.bundle + "/bin and not on PATH";
    check.advice = mpi.bundle.empty()
                       ? "install OpenMPI 4 (Debian: openmpi-bin), or name it: -s launcher.mpirun=PATH"
                       : "unpack the bundle again: a part of it is missing";
    return check;
  }
  check.found = fmt::format("{} · {} · {}", mpi.launcher,
                            mpi.launcher_text.empty() ? "says no version" : mpi.launcher_text,
                            mpi.bundled ? "the bundle's own" : "of this machine");
  const std::string launcher = version_in(mpi.launcher_text), library = version_in(mpi.library_text);
  if (launcher.empty()) {
    check.verdict = DoctorCheck::fail;
    check.advice = fmt::format(
        "`{} --version` does not run; mend it, or name another: -s launcher.mpirun=PATH", mpi.launcher);
  } else if (mpi.launcher_text.find("Open MPI") == std::string::npos) {
    check.verdict = DoctorCheck::fail;
    check.advice =
        "this is another MPI than the one trainctl is linked with; name an OpenMPI: -s launcher.mpirun=PATH";
  } else if (!library.empty() &&
             launcher.substr(0, launcher.find('.')) != library.substr(0, library.find('.'))) {
    check.verdict = DoctorCheck::fail;
    check.advice =
        fmt::format("launcher {} and library {} do not work together; name an mpirun of version {}", launcher,
                    library, library);
  } else if (!library.empty() && launcher != library) {
    check.verdict = DoctorCheck::warn;
    check.advice = fmt::format(
        "the launcher is {} and the library {}; should ranks not start, name an mpirun of version {}",
        launcher, library, library);
  }
  return check;
}

DoctorCheck library_check(const MpiFacts& mpi) {
  const std::string first = mpi.library_text.substr(0, mpi.library_text.find(','));
  DoctorCheck check{.name = "mpi library", .found = first.empty() ? "says no version" : first};
  if (!mpi.bundle.empty()) check.found += " · bundle " + mpi.bundle;
  if (version_in(first).empty()) {
    check.verdict = DoctorCheck::warn;
    check.advice = "build trainctl with OpenMPI 4 or 5; another MPI is not tested";
  }
  return check;
}

DoctorCheck cuda_check(const CudaFacts& cuda) {
  const kernels::CudaStatus& status = cuda.status;
  DoctorCheck check{.name = "cuda"};
  const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  check.found = status.built ? "built in" : "not built in";
  if (status.runtime_version > 0)
    check.found += " · runtime " + version(status.runtime_version) + " (" +
                   kernels::driver_floor_text(status.runtime_version) + ")";
  if (status.driver_version > 0) check.found += " · driver for CUDA " + version(status.driver_version);
  if (status.devices > 0) {
    check.found += fmt::format(" · {}", count_of(status.devices, "GPU"));
    return check;
  }
  check.verdict = status.built && status.driver_version > 0 ? DoctorCheck::warn : DoctorCheck::none;
  check.advice = status.problem.empty() ? "runs are made on the CPU; no GPU was found" : status.problem;
  return check;
}

/// The precision that GPUs are compared in.
DeviceModel model_of(const kernels::GpuFacts& gpu) { return device_of_gpu(gpu, DType::bf16); }

/// What a plan knows about the GPU, then the readings of its health, which decide the verdict.
DoctorCheck gpu_check(const kernels::GpuFacts& g) {
  const DeviceModel device = model_of(g);
  DoctorCheck check{.name = fmt::format("gpu {}", g.index)};
  check.found = fmt::format("{} · sm_{}{} · {} multiprocessors · {} free of {}", device.name, g.compute_major,
                            g.compute_minor, g.multiprocessors,
                            device.memory_bytes > 0 ? memory_text(device.memory_bytes) : "an unknown amount",
                            memory_text(device.total_bytes));
  if (!g.driver.empty()) check.found += " · driver " + g.driver;
  if (g.temperature_c) check.found += fmt::format(" · {:.0f} °C", *g.temperature_c);
  if (g.power_w && g.power_limit_w)
    check.found += fmt::format(" · {:.0f} of {:.0f} W", *g.power_w, *g.power_limit_w);
  if (g.sm_clock_mhz && g.sm_clock_max_mhz)
    check.found += fmt::format(" · {:.0f} of {:.0f} MHz", *g.sm_clock_mhz, *g.sm_clock_max_mhz);
  check.found += device.flops_per_s > 0
                     ? fmt::format(" · bf16 peak {}FLOP/s", short_number(device.flops_per_s))
                     : " · peak unknown: a launch measures it";
  const auto warn = [&](const std::string& advice) {
    check.verdict = DoctorCheck::warn;
    check.advice = advice;
  };
  // Least grave first: the last that holds is shown.
  if (device.memory_bytes > 0 && device.memory_bytes < device.total_bytes / 2)
    warn("more than half of its memory is taken; see with nvidia-smi who has it");
  if (g.remapped_rows && *g.remapped_rows > 0)
    warn(fmt::format("{} memory rows were replaced by spares; watch it, and report it if the number grows",
                     *g.remapped_rows));
  if (g.last_xid && *g.last_xid > 0)
    warn(fmt::format("the driver reported XID {}; look for it in dmesg before a long run", *g.last_xid));
  if (g.remap_pending.value_or(false))
    warn("memory rows will be replaced at the next reset; reset the GPU (nvidia-smi -r) before a long run");
  if (g.remap_failed.value_or(false)) warn("memory rows could not be replaced; have the GPU replaced");
  if (g.ecc_uncorrected && *g.ecc_uncorrected > 0)
    warn(fmt::format("{} memory errors could not be corrected; take this GPU out of use until it is reset",
                     *g.ecc_uncorrected));
  return check;
}

DoctorCheck gpu_library_check(const LibraryFacts& library, bool gpus) {
  DoctorCheck check{.name = library.name};
  if (library.problem.empty()) {
    check.found =
        fmt::format("{} · {}", library.version.empty() ? "version unknown" : library.version, library.path);
    return check;
  }
  check.verdict = gpus && library.needed ? DoctorCheck::warn : DoctorCheck::none;
  check.found = "not found";
  check.advice = library.problem;
  return check;
}

OrderedJson folder_json(const FolderFacts& folder) {
  return {{"path", folder.path},
          {"type", folder.type},
          {"exists", folder.exists},
          {"writable", folder.exists && folder.problem.empty()},
          {"problem", folder.problem},
          {"total_bytes", folder.total_bytes},
          {"free_bytes", folder.free_bytes}};
}

OrderedJson gpu_json(const kernels::GpuFacts& g) {
  const DeviceModel device = model_of(g);
  OrderedJson j = {{"index", g.index},
                   {"name", device.name},
                   {"uuid", g.uuid},
                   {"pci_bus_id", g.pci_bus_id},
                   {"driver", g.driver},
                   {"compute", fmt::format("{}.{}", g.compute_major, g.compute_minor)},
                   {"multiprocessors", g.multiprocessors},
                   {"total_bytes", device.total_bytes},
                   {"free_bytes", device.memory_bytes}};
  const auto put = [&](const char* name, const auto& value) {
    j[name] = value ? OrderedJson(*value) : OrderedJson(nullptr);
  };
  put("temperature_c", g.temperature_c);
  put("power_w", g.power_w);
  put("power_limit_w", g.power_limit_w);
  put("sm_clock_mhz", g.sm_clock_mhz);
  put("sm_clock_max_mhz", g.sm_clock_max_mhz);
  put("memory_clock_mhz", g.memory_clock_mhz);
  put("ecc_uncorrected", g.ecc_uncorrected);
  put("remapped_rows", g.remapped_rows);
  put("remap_pending", g.remap_pending);
  put("remap_failed", g.remap_failed);
  put("slowed_by", g.slowed_by);
  put("last_xid", g.last_xid);
  j["bf16_peak_flops_per_s"] =
      device.flops_per_s > 0 ? OrderedJson(device.flops_per_s) : OrderedJson(nullptr);
  return j;
}

OrderedJson cuda_json(const CudaFacts& cuda) {
  OrderedJson gpus = OrderedJson::array(), libraries = OrderedJson::array();
  for (const kernels::GpuFacts& gpu : cuda.gpus) gpus.push_back(gpu_json(gpu));
  for (const LibraryFacts& l : cuda.libraries)
    libraries.push_back({{"name", l.name}, {"path", l.path}, {"version", l.version}, {"problem", l.problem}});
  return {{"built", cuda.status.built},
          {"devices", cuda.status.devices},
          {"driver_version", cuda.status.driver_version},
          {"driver_needed",
           cuda.status.runtime_version > 0 ? kernels::driver_floor_text(cuda.status.runtime_version) : ""},
          {"runtime_version", cuda.status.runtime_version},
          {"problem", cuda.status.problem},
          {"gpus", gpus},
          {"libraries", libraries}};
}

OrderedJson facts_json(const DoctorFacts& facts) {
  const MemoryFacts& m = facts.memory;
  return {{"program_version", facts.program_version},
          {"cpu",
           {{"model", facts.cpu.model},
            {"cores", facts.cpu.cores},
            {"usable_cores", facts.cpu.usable},
            {"quota_cores", facts.cpu.quota_cores},
            {"instruction_set", facts.cpu.instruction_set ? name_of(*facts.cpu.instruction_set) : ""}}},
          {"memory",
           {{"total_bytes", m.total_bytes},
            {"available_bytes", m.available_bytes},
            {"group_limit_bytes", m.group_limit_bytes},
            {"group_used_bytes", m.group_used_bytes},
            {"address_space_bytes", m.address_space_bytes},
            {"open_files", m.open_files},
            {"free_bytes", m.free_bytes()}}},
          {"shared_memory", folder_json(facts.shared_memory)},
          {"scratch", folder_json(facts.scratch)},
          {"here", folder_json(facts.here)},
          {"mpi",
           {{"launcher", facts.mpi.launcher},
            {"launcher_version", version_in(facts.mpi.launcher_text)},
            {"library_version", version_in(facts.mpi.library_text)},
            {"bundle", facts.mpi.bundle},
            {"launcher_is_bundled", facts.mpi.bundled}}},
          {"cuda", cuda_json(facts.cuda)}};
}

/// One line, whatever the machine said.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  return text;
}

}  // namespace

uint64_t MemoryFacts::free_bytes() const {
  uint64_t least = available_bytes > 0 ? available_bytes : total_bytes;
  if (group_limit_bytes > 0)
    least = std::min(least, group_limit_bytes - std::min(group_used_bytes, group_limit_bytes));
  if (address_space_bytes > 0) least = std::min(least, address_space_bytes);
  return least;
}

DoctorReport examine(const DoctorFacts& facts) {
  DoctorReport report;
  std::vector<DoctorCheck>& checks = report.checks;
  checks.push_back(cpu_check(facts.cpu));
  checks.push_back(memory_check(facts.memory));
  checks.push_back(
      folder_check("shared memory", facts.shared_memory, kLittleSharedMemory, kNoSharedMemory,
                   "ranks talk through it, 5 MiB each; remove old files there, or give the container more "
                   "(docker run --shm-size 1g)"));
  if (!facts.left_memory.empty()) checks.push_back(left_memory_check(facts.left_memory));
  checks.push_back(folder_check("scratch", facts.scratch, kLittleDisk / 16, kNoDisk / 16,
                                "mpirun and ranks keep sockets there; make it writable and free some space"));
  checks.push_back(folder_check(
      "this folder", facts.here, kLittleDisk, kNoDisk,
      "runs are written below it; change to a folder of yours with room, or set observability.run_dir "
      "and checkpoint.dir"));
  checks.push_back(launcher_check(facts.mpi));
  checks.push_back(library_check(facts.mpi));
  report.cpu_runs = std::none_of(checks.begin(), checks.end(),
                                 [](const auto& c) { return c.verdict == DoctorCheck::fail; });
  checks.push_back(cuda_check(facts.cuda));
  const bool gpus = facts.cuda.status.devices > 0;
  report.gpu_runs = report.cpu_runs && gpus;
  for (const kernels::GpuFacts& gpu : facts.cuda.gpus) checks.push_back(gpu_check(gpu));
  for (const LibraryFacts& library : facts.cuda.libraries) {
    checks.push_back(gpu_library_check(library, gpus));
    if (library.needed && !library.problem.empty()) report.gpu_runs = false;
  }
  report.warnings = int(std::count_if(checks.begin(), checks.end(),
                                      [](const auto& c) { return c.verdict == DoctorCheck::warn; }));
  return report;
}

const char* verdict_word(DoctorCheck::Verdict verdict) {
  switch (verdict) {
    case DoctorCheck::ok: return "ok";
    case DoctorCheck::warn: return "warn";
    case DoctorCheck::fail: return "fail";
    case DoctorCheck::none: break;
  }
  return "none";
}

std::string render_check(const DoctorCheck& check, size_t width, const std::string& below, bool color) {
  const char* paint = check.verdict == DoctorCheck::ok     ? "\x1b[32m"
                      : check.verdict == DoctorCheck::warn ? "\x1b[33m"
                      : check.verdict == DoctorCheck::fail ? "\x1b[1;31m"
                                                           : "\x1b[2m";
  std::string text = fmt::format("{:<{}}  {}{:<4}{}  {}\n", check.name, width, color ? paint : "",
                                 verdict_word(check.verdict), color ? "\x1b[0m" : "", one_line(check.found));
  for (const std::string& line : {below, check.advice})
    if (!line.empty()) text += fmt::format("{:<{}}        {}\n", "", width, one_line(line));
  return text;
}

std::string render_doctor(const DoctorReport& report, bool color) {
  size_t width = 0;
  for (const DoctorCheck& check : report.checks) width = std::max(width, check.name.size());
  std::string text;
  for (const DoctorCheck& check : report.checks) text += render_check(check, width, "", color);
  text += report.cpu_runs ? "runs on the CPU: possible"
                          : "runs: not possible before what is marked fail is mended";
  if (report.cpu_runs) text += report.gpu_runs ? " · runs on a GPU: possible" : " · runs on a GPU: not here";
  if (report.warnings > 0) text += fmt::format(" · {}", count_of(report.warnings, "warning"));
  text += "\n";
  if (report.cpu_runs) text += "next: trainctl init -o job.json\n";
  return text;
}

std::string doctor_json(const DoctorReport& report, const DoctorFacts& facts) {
  OrderedJson checks = OrderedJson::array();
  for (const DoctorCheck& c : report.checks)
    checks.push_back(
        {{"name", c.name}, {"verdict", verdict_word(c.verdict)}, {"found", c.found}, {"advice", c.advice}});
  const OrderedJson j = {{"v", 1},
                         {"cpu_runs", report.cpu_runs},
                         {"gpu_runs", report.gpu_runs},
                         {"warnings", report.warnings},
                         {"checks", checks},
                         {"facts", facts_json(facts)}};
  return dump_json(j, 2);
}

std::string version_in(const std::string& text) {
  // The first word of digits and dots that begins with a digit, after a "v" or not.
  for (size_t begin = 0; begin < text.size(); ++begin) {
    const bool word = begin == 0 || text[begin - 1] == ' ' || text[begin - 1] == 'v';
    if (!word || !std::isdigit(static_cast<unsigned char>(text[begin]))) continue;
    size_t end = begin;
    while (end < text.size() && (std::isdigit(static_cast<unsigned char>(text[end])) || text[end] == '.'))
      ++end;
    if (text.substr(begin, end - begin).find('.') != std::string::npos)
      return text.substr(begin, end - begin);
  }
  return "";
}

double quota_of(const std::string& cpu_max) {
  char* end = nullptr;
  const double quota = std::strtod(cpu_max.c_str(), &end);
  if (end == cpu_max.c_str()) return 0;
  const double period = std::strtod(end, nullptr);
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace trainctl
