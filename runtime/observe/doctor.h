// Can runs be made on this machine, and on what? The facts are gathered by thin functions; the verdict on them and its two forms (a table
// for people, JSON) are pure.
//
// A machine without a GPU is not ill: runs on its CPU are what the verdict is about. A GPU that is there and cannot be used is a warning.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace trainctl {

struct CpuFacts {
  std::string model;            ///< as the processor calls itself; "" if it does not say
  int cores = 0, usable = 0;    ///< of the machine; of this process (affinity)
  double quota_cores = 0;       ///< of the control group; 0: none
  std::string instruction_set;  ///< "x86-64-v4": what the kernels will use; "" if the processor has not even v2
};

struct MemoryFacts {
  uint64_t total_bytes = 0, available_bytes = 0;  ///< 0: not told
  uint64_t group_limit_bytes = 0, group_used_bytes = 0;  ///< of the control group; limit 0: none
  uint64_t address_space_bytes = 0;               ///< ulimit -v; 0: none
  uint64_t open_files = 0;                        ///< ulimit -n
  /// What a run may take: the least of the above.
  uint64_t free_bytes() const;
};

/// A folder that a run writes to.
struct FolderFacts {
  std::string path, type;  ///< type of the file system, e.g. "ext4"; "" if it has no name here
  bool exists = false;
  std::string problem;     ///< why nothing can be written; "" if it can
  uint64_t total_bytes = 0, free_bytes = 0;
};

struct MpiFacts {
  std::string launcher;          ///< full path of the mpirun a launch would take; "" if there is none
  std::string launcher_text;     ///< first line of its --version, e.g. "mpirun (Open MPI) 4.1.4"
  std::string library_text;      ///< of the library in this process, e.g. "Open MPI v4.1.4, package: ..."
  std::string bundle;            ///< root of the bundle this program is of; "" if none
  bool bundled = false;          ///< the launcher is the bundle's own
};

/// A library that is looked for when a job asks for a GPU.
struct LibraryFacts {
  std::string name, path, version, problem;  ///< problem "": found
  bool needed = false;                       ///< by every run on a GPU
};

struct GpuReport {
  kernels::GpuFacts facts;
  std::optional<double> bf16_peak_flops_per_s;  ///< nothing: unknown, a launch measures it
};

struct CudaFacts {
  kernels::CudaStatus status;
  std::vector<GpuReport> gpus;
  std::vector<LibraryFacts> libraries;
};

struct DoctorFacts {
  std::string program_version;
  CpuFacts cpu;
  MemoryFacts memory;
  FolderFacts shared_memory, scratch, here;
  MpiFacts mpi;
  CudaFacts cuda;
};
/// Looks at this machine. Starts `mpirun --version` and no GPU context; leaves nothing behind. Never throws for what it finds.
DoctorFacts gather_doctor_facts();

/// One line of the verdict. `none`: not here, and runs on the CPU do not need it.
struct DoctorCheck {
  enum Verdict { ok, warn, fail, none } verdict = ok;
  std::string name, found;
  std::string advice;  ///< what to do; "" exactly for ok
};

struct DoctorReport {
  std::vector<DoctorCheck> checks;
  bool cpu_runs = false, gpu_runs = false;  ///< possible here
  int warnings = 0;
};
DoctorReport examine(const DoctorFacts& facts);

/// A table, one line a check and one more for what to do, and the conclusion last.
std::string render_doctor(const DoctorReport& report, bool color);
/// {"v": 1, "cpu_runs", "gpu_runs", "warnings", "checks": [...], "facts": {...}}
std::string doctor_json(const DoctorReport& report, const DoctorFacts& facts);

/// "4.1.4" of "mpirun (Open MPI) 4.1.4" and of "Open MPI v4.1.4, package: ..."; "" if there is none.
std::string version_in(const std::string& text);
/// Cores of a control group's cpu.max ("200000 100000" is 2, "max 100000" is 0: no limit).
double quota_of(const std::string& cpu_max);

}  // namespace trainctl
