// What must hold on this machine before a run is started. Each check throws Error with one sentence and what to
// do.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/spec/job.h"

namespace trainctl {

struct Preflight {
  std::string mpirun;                ///< full path
  bool cross_memory_attach = false;  ///< ranks may read each other's memory
  std::string data_json;             ///< {"train": [...], "val": [...]}, with fingerprints
  uint64_t train_tokens = 0, val_tokens = 0;
};

/// Launcher, slots, shared memory: Error(kPreflight). Data opens and fits the vocabulary: Error(kData).
Preflight check_machine_and_data(const JobSpec& job, FileSystem& fs);

/// A file can be made in `directory` (which is created): else Error(kPreflight).
void check_writable(FileSystem& fs, const std::string& directory);

/// Names the first source of the spec that is not what it was when the run began ("" when all are). Both as in
/// data_json.
std::string changed_data(const std::string& run_data_json, const std::string& now_data_json);

}  // namespace trainctl
