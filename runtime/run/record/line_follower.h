// LineFollower reads the lines of a file that grows, each once. One owner, one thread.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/file_system.h"

namespace trainctl {

class LineFollower {
 public:
  LineFollower(FileSystem& fs, std::string path) : fs_(fs), path_(std::move(path)) {}

  /// Whether the lines that were read are still those at the beginning of the file. False where a run went
  /// back and the file was replaced: then call rewind() and read all lines again.
  bool still_there() const;
  void rewind() { offset_ = 0, end_of_read_.clear(), rest_.clear(); }
  /// Calls `take` for each complete line that follows, of about `most_bytes`. A missing file has none.
  /// Returns whether all of the file was read.
  bool read(const std::function<void(std::string_view)>& take, uint64_t most_bytes = UINT64_MAX);
  bool exists() const { return fs_.exists(path_); }
  uint64_t read_bytes() const { return offset_; }
  /// Bytes after the last complete line: it is being written, or a crash cut it off.
  uint64_t incomplete_bytes() const { return rest_.size(); }
  const std::string& incomplete() const { return rest_; }

 private:
  FileSystem& fs_;
  std::string path_;
  uint64_t offset_ = 0;
  std::string end_of_read_;  ///< the last bytes before offset_
  std::string rest_;         ///< after the last complete line
};

}  // namespace trainctl
