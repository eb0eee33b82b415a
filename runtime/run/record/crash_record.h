// Why a rank ended: one small JSON file that it leaves in the run directory, failures/rank-N.json.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/activity.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/run/wire/stop_at.h"

namespace trainctl {

struct CrashRecord {
  int rank = -1, pid = 0;
  uint64_t epoch = 0;
  ErrorCode code = ErrorCode::kWorker;
  int signal = 0;       ///< that ended it, or 0
  std::string message;  ///< one sentence
  std::optional<Activity> activity;  ///< what it did then
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
/// here, what the rank does is added through note_activity) and go on to the handler there was before. Once
/// per process, after MPI_Init, which wants to find none.
void install_crash_handlers(const std::string& run_directory, int rank, uint64_t epoch);
/// From here on note_activity also writes to this rank's slot of the board in that file, if there is one.
void note_activity_on_board(const std::string& path, int rank);
/// Keeps `activity` where a signal handler, the heartbeat and (on the board) the supervisor can read it. Cheap; called by one thread.
void note_activity(const Activity& activity);
/// The same for what its device waits for; one call at a time, from any thread.
void note_device_activity(const Activity& activity);
/// The test hook of runtime/run/wire/stop_at.h: this process stops itself when such an activity is noted.
void stop_at(const StopAt& when);
/// The last activity noted in this process; any thread.
std::optional<Activity> noted_activity();

/// "SIGSEGV (invalid memory access)" and the like, for messages.
std::string describe_signal(int signal);

}  // namespace trainctl
