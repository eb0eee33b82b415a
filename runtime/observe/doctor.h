// `trainctl doctor`: whether this machine can run jobs on its CPU and on its GPUs. gather_doctor_facts has
// the effects; the verdict and its two forms (a table, JSON) are pure. Name, memory and peak of a GPU are
// those of its DeviceModel, as in `plan`.
//
// A missing GPU is not a failure, because the machine can run jobs on its CPU. A GPU that cannot be used is a
// warning.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/device.h"

namespace trainctl {

struct CpuFacts {
  std::string model;            ///< the processor's own name; "": not reported
  int cores = 0, usable = 0;    ///< cores of the machine; cores that this process may use (affinity)
  double quota_cores = 0;       ///< CPU limit of the control group, in cores; 0: none
  /// The set that the kernels use; nullopt: the processor lacks x86-64-v2.
  std::optional<kernels::cpu::InstructionSet> instruction_set;
};

struct MemoryFacts {
  uint64_t total_bytes = 0, available_bytes = 0;  ///< 0: not reported
  uint64_t group_limit_bytes = 0, group_used_bytes = 0;  ///< of the control group; limit 0: none
  uint64_t address_space_bytes = 0;               ///< ulimit -v; 0: no limit
  uint64_t open_files = 0;                        ///< ulimit -n
  /// The memory that a run may take: the smallest of the available memory, the rest of the control group's
  /// limit, and the limit on address space.
  uint64_t free_bytes() const;
};

/// A folder that a run writes to.
struct FolderFacts {
  std::string path, type;  ///< type of the file system, e.g. "ext4"; "": unknown
  bool exists = false;
  std::string problem;     ///< why the folder cannot be written; "": it can
  uint64_t total_bytes = 0, free_bytes = 0;
};

struct MpiFacts {
  std::string launcher;          ///< full path of the mpirun that a launch would use; "": none
  std::string launcher_text;     ///< first line of its --version, e.g. "mpirun (Open MPI) 4.1.4"
  std::string library_text;      ///< of the library in this process, e.g. "Open MPI v4.1.4, package: ..."
  std::string bundle;            ///< root of this program's bundle; "": in no bundle
  bool bundled = false;          ///< the launcher is in the bundle
};

/// A library that is loaded when a job uses a GPU.
struct LibraryFacts {
  std::string name, path, version, problem;  ///< problem: why it could not be loaded; "": it was loaded
  bool needed = false;                       ///< every run on a GPU needs it
};

struct CudaFacts {
  kernels::CudaStatus status;
  std::vector<kernels::GpuFacts> gpus;
  std::vector<LibraryFacts> libraries;
};

/// What a run without a supervisor left in memory (ckpt/memory_folder.h).
struct LeftMemory {
  std::string path, run_directory;
  uint64_t bytes = 0;
};

struct DoctorFacts {
  std::string program_version;
  CpuFacts cpu;
  MemoryFacts memory;
  FolderFacts shared_memory, scratch, here;
  MpiFacts mpi;
  CudaFacts cuda;
  std::vector<LeftMemory> left_memory;  ///< of this user
};
/// Collects the facts of this machine. Runs `mpirun --version`, creates no GPU context, leaves no files. Does
/// not throw for problems that it finds.
DoctorFacts gather_doctor_facts();

/// One line of the verdict. `none`: absent, and runs on the CPU do not need it.
struct DoctorCheck {
  enum Verdict { ok, warn, fail, none } verdict = ok;
  std::string name, found;
  std::string advice;  ///< what to do; "" exactly for ok
};

struct DoctorReport {
  std::vector<DoctorCheck> checks;
  bool cpu_runs = false, gpu_runs = false;  ///< this machine can run jobs on its CPU; on its GPUs
  int warnings = 0;
};
DoctorReport examine(const DoctorFacts& facts);

/// The line of a check, and lines below it: `below` if it is not "", and the advice if there is any.
///   width   of the names
std::string render_check(const DoctorCheck& check, size_t width, const std::string& below, bool color);
const char* verdict_word(DoctorCheck::Verdict verdict);  ///< "ok", "warn", "fail", "none"

/// A table: a line for each check, a second line for its advice if there is any, and the conclusion at the
/// end.
std::string render_doctor(const DoctorReport& report, bool color);
/// {"v": 1, "cpu_runs", "gpu_runs", "warnings", "checks": [...], "facts": {...}}
std::string doctor_json(const DoctorReport& report, const DoctorFacts& facts);

/// The version in a text: "4.1.4" for "mpirun (Open MPI) 4.1.4" and "Open MPI v4.1.4, package: ..."; "" if
/// there is none.
std::string version_in(const std::string& text);
/// The limit in a control group's cpu.max, in cores: 2 for "200000 100000", 0 (no limit) for "max 100000".
double quota_of(const std::string& cpu_max);

}  // namespace trainctl
