// The crash record of a rank: a small JSON file in the run directory, failures/rank-N.json, that says why the
// rank ended.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/activity.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/record_fields.h"
#include "runtime/run/wire/stop_at.h"

namespace trainctl {

struct CrashRecord {
  int rank = -1, pid = 0;
  uint64_t epoch = 0;
  ErrorCode code = ErrorCode::kWorker;
  int signal = 0;       ///< the signal that ended the rank; 0: none
  std::string message;  ///< one sentence
  std::optional<Activity> activity;  ///< at the time of the failure
  std::string host;
  double unix_s = 0;
  std::string to_json() const;
  static void fields(auto& f, auto& r) {
    f.written("v", 1);
    f("rank", r.rank);
    f("pid", r.pid);
    f("epoch", r.epoch);
    f("code", r.code);
    f.written("code_name", name_of(r.code));
    f("signal", r.signal);
    f("message", r.message);
    f("activity", r.activity);
    f.written("doing", r.activity ? render(*r.activity) : "");
    f("host", r.host);
    f("t", r.unix_s);
  }
};

std::string crash_record_path(const std::string& run_directory, int rank);

/// Writes the record. Keeps the first record of a rank and epoch, because later failures are effects of the
/// first. Never throws.
void write_crash_record(FileSystem& fs, const std::string& run_directory, const CrashRecord& record);

/// The record of `rank` in `epoch`; nullopt if it is missing, unreadable or of another epoch.
std::optional<CrashRecord> read_crash_record(FileSystem& fs, const std::string& run_directory, int rank,
                                             uint64_t epoch);

/// Installs handlers for SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT that write a record and then run the
/// previous handler. The handlers are async-signal-safe: this call prepares the text, and the handler adds
/// the last noted activity. Removes the record of an earlier epoch. Call it once per process, after MPI_Init,
/// which expects no handlers.
void install_crash_handlers(const std::string& run_directory, int rank, uint64_t epoch);
/// Makes note_activity and note_device_activity also write to this rank's slots of the ActivityBoard in the
/// file `path`, and note_activity to a FlightRing near it. "" or a missing file: no board, no ring.
void note_activity_on_board(const std::string& path, int rank);
/// Stores `activity` for the signal handlers, the heartbeat and (on the board) the node's agent. Cheap: no
/// system call. One thread calls it.
void note_activity(const Activity& activity);
/// Stores what the device of this rank waits for. Any thread; one call at a time.
void note_device_activity(const Activity& activity);
/// Test hook (runtime/run/wire/stop_at.h): this process sends itself SIGSTOP when note_activity gets a
/// matching activity.
void stop_at(const StopAt& when);
/// The last noted activity of host and device (with_device); nullopt: none was noted. Any thread.
std::optional<Activity> noted_activity();

/// The signal for messages: "SIGSEGV (invalid memory access)".
std::string describe_signal(int signal);

}  // namespace trainctl
