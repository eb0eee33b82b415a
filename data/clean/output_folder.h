// OutputFolder: a folder that has its name only when all that is in it is complete.
#pragma once
#include <string>

#include "runtime/base/file_system.h"

namespace trainctl::data {

/// Works in PATH.partial, which the destructor removes unless it was published; what a killed process left
/// there, the next one removes. Not thread-safe.
class OutputFolder {
 public:
  /// Error(kUsage): `path` exists and is no empty folder, or PATH.partial holds files that are no remains of
  /// a cleaning. Error(kData): another process works there. Error(kIo).
  OutputFolder(FileSystem& fs, std::string path);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;

  /// The path, for the time being, of a file of the folder.
  std::string operator/(const std::string& name) const { return partial_ + "/" + name; }
  /// Gives the folder its name, for good. Its files are synced.
  void publish();

 private:
  void lock();
  void clear();

  FileSystem& fs_;
  const std::string path_, partial_;
  int lock_ = -1;
  bool is_published_ = false;
};

}  // namespace trainctl::data
