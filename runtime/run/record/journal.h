// The two files from which every view of a run is derived: metrics.jsonl (one line a step) and events.jsonl
// (what happened).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/file_system.h"

namespace trainctl {

/// A file that only grows, a line at a time. One owner, one thread. A full disk must not end a run: append
/// never throws, and the first failure is kept in error().
class Journal {
 public:
  /// Opens or creates `path`; a last line torn by a crash is cut off. Error(kIo).
  explicit Journal(const std::string& path);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  /// `line` without newlines.
  void append(const std::string& line);
  /// Makes everything appended durable.
  void sync();
  const std::string& error() const { return error_; }
  /// Of the file now.
  int64_t bytes() const;

 private:
  std::string path_, error_;
  int fd_ = -1;
};

/// A journal that keeps its newest lines: at `most_bytes` the file is renamed to `earlier_path`, whose lines
/// are lost, and begins again. Opened by its first line. One owner, one thread; a failure ends no run and is
/// not reported, as these lines are a view.
class BoundedJournal {
 public:
  BoundedJournal(std::string path, std::string earlier_path, int64_t most_bytes)
      : path_(std::move(path)), earlier_path_(std::move(earlier_path)), most_bytes_(most_bytes) {}
  void append(const std::string& line);

 private:
  std::string path_, earlier_path_;
  int64_t most_bytes_, bytes_ = 0;
  std::optional<Journal> journal_;
};

/// {"v":1,"t":unix_s,"kind":kind, ...fields of `json`} as a line of events.jsonl; fields that are no object go
/// under "value".
std::string event_line(double unix_s, const std::string& kind, const std::string& json);

/// Moves every line of `metrics_path` whose step is greater than `step` (and any that is damaged) to the end of
/// `side_path`, so that a run that goes back to a checkpoint has each step once, in order. Returns how many. A
/// missing file has none.
int64_t supersede_metrics(FileSystem& fs, const std::string& metrics_path, int64_t step,
                          const std::string& side_path);

/// The last `most` lines of a text file that may be large, "" if it is missing.
std::string tail_of(const std::string& path, int most);

/// The whole lines of a JSONL file; missing: none.
std::vector<std::string> lines_of(FileSystem& fs, const std::string& path);

}  // namespace trainctl
