// Preflight: the checks on this machine before a run starts. A failed check throws Error with one sentence
// and what to do.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/problem.h"
#include "runtime/plan/device_model.h"
#include "runtime/plan/memory_need.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

struct Preflight {
  std::string mpirun;                ///< full path
  bool cross_memory_attach = false;  ///< processes of one user may read each other's memory
  std::string data_json;             ///< see data/data_record.h
  std::vector<std::string> data_files;  ///< token files, and the tokenizer's
  uint64_t train_tokens = 0, val_tokens = 0;
  uint64_t train_samples = 0;        ///< of an epoch of all sources
  double padding = 0;                ///< the share of their tokens that is padding
  double val_bytes_per_token = 0;    ///< of the validation text; 0: its sidecars do not say it
  std::string memory_text;           ///< "1.2 GiB needed, 8.0 GiB available"
  uint64_t rank_room_bytes = 0;      ///< memory that a rank may take, alike on all nodes; 0: not known
  std::string copies_note;           ///< copies of the state that have no room here; "": there are none
};

/// None if the job fits into host memory; otherwise one sentence: bytes needed and available, the three
/// largest terms, what to change.
Problem memory_refusal(const JobSpec& job, const MemoryNeed& need, uint64_t available_bytes);
/// None if /dev/shm and the memory have room for the copies of the state and for the second copies of
/// another node's; otherwise one sentence with the sizes with and without the second copies, and what to
/// set. A job that insists (checkpoint.memory = on) is refused with it. `mode`: checkpoint.memory.
/// `available_bytes` 0, `shm_free_bytes` nullopt: not known.
Problem copies_problem(MemoryCopies mode, const MemoryNeed& need, uint64_t available_bytes,
                       std::optional<uint64_t> shm_free_bytes);
/// copies_problem, for a job that insists.
Problem copies_refusal(MemoryCopies mode, const MemoryNeed& need, uint64_t available_bytes,
                       std::optional<uint64_t> shm_free_bytes);
/// As memory_refusal, for the memory of one GPU and the ranks on it. `gpu`: its name.
Problem gpu_memory_refusal(const JobSpec& job, const MemoryNeed& need, const std::string& gpu, uint64_t free_bytes);

/// The full path of mpirun. `name`: launcher.mpirun. Error(kPreflight).
std::string find_mpirun(const std::string& name);
/// Checks shared memory, memory and GPUs; sets memory_text and copies_note. Error(kPlan), Error(kPreflight).
/// The ranks as in check_machine_and_data.
void check_room(const JobSpec& job, std::optional<int> ranks_here, int second_ranks_here, Preflight& result);

/// Runs all checks. Error(kPlan): not enough memory. Error(kPreflight): launcher, slots or shared memory.
/// Error(kData): the data cannot be opened or do not fit the vocabulary.
///   ranks_here          the number of the job's ranks on this machine; nullopt: all of them
///   second_ranks_here   the number of ranks on another node whose second copies this machine holds
Preflight check_machine_and_data(const JobSpec& job, FileSystem& fs,
                                 std::optional<int> ranks_here = std::nullopt, int second_ranks_here = 0);

/// Checks only the data, whose tokens are below `vocab_size`; sets the fields of `result` about them.
void check_data(const DataSpec& data, int64_t vocab_size, Preflight& result);

/// Makes `directory` if it is missing and checks that a file can be made in it and written; the file has no
/// name any more when it is written, so that nothing of it stays, whatever ends this process.
/// Error(kPreflight).
void check_writable(FileSystem& fs, const std::string& directory);

}  // namespace trainctl
