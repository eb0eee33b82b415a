// Append-only JSONL files. Every view of a run is derived from two of them: metrics.jsonl (one line per step)
// and events.jsonl (launches, failures, restarts, saves).
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/problem.h"
#include "runtime/train/control/event_kind.h"

namespace trainctl {

/// A file to which lines are appended. One owner, one thread. A full disk must not end a run, so append and
/// sync never throw; error() returns the first failure. Lines that find no room are written before the next
/// one that does, the newest kMostWaitingBytes of them.
class Journal {
 public:
  /// Opens or creates `path` and cuts off an incomplete last line, which a crash may have left. Error(kIo).
  explicit Journal(const std::string& path);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  /// `line` without newlines.
  void append(const std::string& line);
  /// Makes all appended lines durable.
  void sync();
  /// The first failure.
  const Problem& error() const { return error_; }
  /// Bytes that are not in the file yet.
  size_t waiting_bytes() const { return waiting_.size(); }
  static constexpr size_t kMostWaitingBytes = size_t(16) << 20;
  /// The size of the file now.
  int64_t bytes() const;

 private:
  void write_waiting();
  std::string path_, waiting_;
  Problem error_ = Problem::none();
  int fd_ = -1;
};

/// A journal that keeps its newest lines. When `path` would exceed `most_bytes`, it is renamed to
/// `earlier_path` (replacing that file) and a new file begins. The first append opens the file. One owner,
/// one thread. Failures are not reported, because no other record depends on these lines.
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

/// A line of events.jsonl: {"v":1,"t":unix_s,"kind":kind, ...fields of `json`}. If `json` is not an object,
/// the line has its text under "value".
std::string event_line(double unix_s, EventKind kind, const std::string& json);

/// Moves the lines of `metrics_path` with a step greater than `step`, and damaged or out-of-order lines, to
/// the end of `side_path`. So a run that goes back to a checkpoint has each step once, in order. Returns the
/// number of moved lines; 0 if the file is missing.
int64_t supersede_metrics(FileSystem& fs, const std::string& metrics_path, int64_t step,
                          const std::string& side_path);

/// The last `most` lines of a text file, from at most its last 64 KiB; "" if the file is missing.
std::string tail_of(const std::string& path, int most);

/// The complete lines of a text file; empty if the file is missing.
std::vector<std::string> lines_of(FileSystem& fs, const std::string& path);

/// The last of these lines for which `is_it` says so; nullopt: there is none. Reads the file from its end,
/// and no more of it than kReadBytes beyond that line.
std::optional<std::string> last_line_that(FileSystem& fs, const std::string& path,
                                          const std::function<bool(const std::string&)>& is_it);
inline constexpr uint64_t kReadBytes = 64 << 10;

}  // namespace trainctl
