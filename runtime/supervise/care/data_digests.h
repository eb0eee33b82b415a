// DataDigests holds a run to the data that it began with, every byte of them. What is compared when the
// files are opened is cheap (sizes, first and last MiB); here the whole content of each file is read once,
// behind training, and its digest recorded (RUN/data.files.json). Before each attempt a file that has
// another time of change than its record is read again; if its content differs, the run must not go on with
// it.
//
// A digest is XXH3-64 of all bytes. Files that were changed before they were read once cannot be told apart
// from those before; then what is compared when they are opened is all that is known.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/problem.h"
#include "runtime/base/record_fields.h"

namespace trainctl {

struct DataFile {
  std::string path;
  uint64_t bytes = 0;
  int64_t changed_s = 0, changed_ns = 0;  ///< st_mtim
  std::string digest;                     ///< 16 hex digits
  /// Whether it has the same size and time of change.
  bool looks_like(const DataFile& other) const {
    return bytes == other.bytes && changed_s == other.changed_s && changed_ns == other.changed_ns;
  }
  static void fields(auto& f, auto& r) {
    f("path", r.path);
    f("bytes", r.bytes);
    f("changed_s", r.changed_s);
    f("changed_ns", r.changed_ns);
    f("digest", r.digest);
  }
};

struct DataFiles {
  std::vector<DataFile> files;
  static void fields(auto& f, auto& r) {
    f.written("v", 1);
    f("files", r.files);
  }
};

class DataDigests {
 public:
  struct Options {
    std::string record;               ///< path of the DataFiles
    std::vector<std::string> paths;   ///< of the data
    double read_bytes_per_s = 0;      ///< behind training; 0: without a limit
    std::function<void()> must_hold;  ///< throws if the run is no longer this process's; may be empty
  };
  /// `fs` outlives this object and the thread, which is left to itself where a file system hangs.
  DataDigests(FileSystem& fs, Options options);
  ~DataDigests();

  /// Compares the files that have changed since their content was recorded. The first whose content differs
  /// is the problem. `say` gets a line for each that must be read; `is_given_up` is asked between blocks.
  Problem find_changed(const std::function<void(const std::string&)>& say,
                       const std::function<bool()>& is_given_up);
  /// From now on a thread of the lowest priority records the content of the files that have no record.
  /// Another call does nothing.
  void begin();

 private:
  struct Work;
  const std::shared_ptr<Work> work_;
  std::thread thread_;
};

}  // namespace trainctl
