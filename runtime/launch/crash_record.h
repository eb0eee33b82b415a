// Why a rank ended: one small JSON file that it leaves in the run directory, failures/rank-N.json.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace trainctl {

struct CrashRecord {
  int rank = -1, pid = 0;
  uint64_t epoch = 0;
  ErrorCode code = ErrorCode::kWorker;
  int signal = 0;       ///< that ended it, or 0
  std::string message;  ///< one sentence
  std::string doing;    ///< what it was doing, "" unknown
  std::string host;
  double unix_s = 0;
  std::string to_json() const;
};

std::string crash_record_path(const std::string& run_directory, int rank);

/// Writes the record (the first one of a rank and epoch stays: what follows a crash is an effect). Never
/// throws.
void write_crash_record(FileSystem& fs, const std::string& run_directory, const CrashRecord& record);

/// The record of `rank` if there is one of this epoch.
std::optional<CrashRecord> read_crash_record(FileSystem& fs, const std::string& run_directory, int rank,
                                             uint64_t epoch);

/// Makes SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT write a record (async-signal-safe: the text is prepared
/// here, what the rank is doing is added through note_doing) and go on to the handler there was before. Once
/// per process, after MPI_Init, which wants to find none.
void install_crash_handlers(const std::string& run_directory, int rank, uint64_t epoch);
/// From here on note_doing also writes to this rank's slot of the board in that file, if there is one.
void note_doing_on_board(const std::string& path, int rank);
/// Keeps `what` where a signal handler (and the supervisor, on the board) can read it.
void note_doing(const std::string& what);
/// What was noted last in this process.
std::string noted_doing();

/// "SIGSEGV (invalid memory access)" and the like, for messages.
std::string describe_signal(int signal);

}  // namespace trainctl
