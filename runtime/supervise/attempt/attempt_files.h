// AttemptFiles are the files of one attempt beside the records of its run: attempt.json, the launcher's log,
// and what ranks that crashed have left. One thread, which waits for no file longer than FileWorker does.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/file_worker.h"
#include "runtime/run/record/crash_record.h"
#include "runtime/run/record/journal.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/wire/machine.h"

namespace trainctl {

class AttemptFiles {
 public:
  /// `fs` and `files` must outlive this object.
  AttemptFiles(FileSystem& fs, const RunDirectory& run, FileWorker& files)
      : fs_(fs),
        run_(run),
        files_(files),
        launcher_log_(std::make_shared<Journal>(run.file("logs/mpirun.log"))) {}

  /// Writes attempt.json, and waits until it is written: ranks read it. Error(kIo).
  void record(const AttemptFile& file) { fs_.replace_text(run_.attempt(), file.to_json()); }
  void log(const std::string& line);
  /// Logs what the launcher has written, and returns the end of all that it wrote.
  const std::string& log_output(const std::string& output, const std::string& node);
  /// nullopt also if the file system does not answer for some seconds.
  std::optional<CrashRecord> crash_record(int rank, uint64_t epoch);

 private:
  FileSystem& fs_;
  const RunDirectory run_;
  FileWorker& files_;
  const std::shared_ptr<Journal> launcher_log_;  ///< of the thread of files_
  std::string launcher_text_;
};

}  // namespace trainctl
