// Scratch files: room on a disk of this machine for what has no place in memory. They have no name, so that
// nothing is left of them when their process ends, in whatever way.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/file_system.h"

namespace trainctl {

struct ScratchFileOptions {
  std::string directory;
  std::string field;   ///< of the job, that names the directory, for messages
  uint64_t bytes = 0;  ///< its size, which is taken from the disk at once where the file system can do that
};
/// Reads and writes go past the system's cache where they are of whole blocks (4096) in offset, size and
/// address, and the file system can do that. A failure there is Error(kIo), with what to do about it. Its
/// reads and writes may be made by several threads at once.
/// Error(kPreflight): the directory is missing, is not on a disk of this machine, or has too little room.
std::unique_ptr<File> create_scratch_file(const ScratchFileOptions& options);
/// Error(kPreflight) for what is known of the directory beforehand. Makes nothing.
void require_scratch_folder(const ScratchFileOptions& options);

/// What kind of file system is no disk of this machine: "NFS", "memory (tmpfs)", by statfs's f_type; null: it
/// may be one.
const char* no_local_disk(uint64_t file_system_type);

}  // namespace trainctl
