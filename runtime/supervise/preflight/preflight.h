// What must hold on this machine before a run is started. Each check throws Error with one sentence and what
// to do.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/plan/device_model.h"
#include "runtime/plan/memory_need.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

struct Preflight {
  std::string mpirun;                ///< full path
  bool cross_memory_attach = false;  ///< ranks may read each other's memory
  std::string data_json;             ///< {"train": [...], "val": [...]}, with fingerprints
  uint64_t train_tokens = 0, val_tokens = 0;
  std::string memory_text;           ///< "1.2 GiB needed, 8.0 GiB available"
};

/// "" if it fits; else one sentence: needed, available, the three largest terms and what would help.
std::string memory_refusal(const JobSpec& job, const MemoryNeed& need, uint64_t available_bytes);
/// The same for one GPU and the ranks on it.
std::string gpu_memory_refusal(const JobSpec& job, const MemoryNeed& need, const std::string& gpu, uint64_t free_bytes);

/// Memory: Error(kPlan). Launcher, slots, shared memory: Error(kPreflight). Data opens and fits the
/// vocabulary: Error(kData).
///   ranks_here   how many of the job's ranks run on this machine; nothing: all of them
Preflight check_machine_and_data(const JobSpec& job, FileSystem& fs, std::optional<int> ranks_here = std::nullopt);

/// The part of it that looks at the data.
void check_data(const JobSpec& job, Preflight& result);

/// A file can be made in `directory` (which is created): else Error(kPreflight).
void check_writable(FileSystem& fs, const std::string& directory);

/// Names the first source of the spec that is not what it was when the run began ("" when all are). Both as
/// in data_json.
std::string changed_data(const std::string& run_data_json, const std::string& now_data_json);

}  // namespace trainctl
