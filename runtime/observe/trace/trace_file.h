// A file for a trace: written under a temporary name, gzip if its name ends in .gz, and renamed when it is
// whole. One thread.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/file_system.h"

namespace trainctl::trace {

class TraceFile {
 public:
  /// Begins a temporary file near `path`. Error(kUsage): `path` is a folder, or its folder is missing.
  /// Error(kIo).
  TraceFile(FileSystem& fs, const std::string& path);
  /// Removes the temporary file unless commit() was called.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  /// Error(kIo).
  void write(std::string_view text);
  /// Completes the file, makes it durable and gives it its name. Returns its size in bytes. Error(kIo).
  uint64_t commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainctl::trace
