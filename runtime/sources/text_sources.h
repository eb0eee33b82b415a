// TextSources: the inputs of a command that reads a corpus, of which some are in an object store.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/sources/object_files.h"

namespace trainctl {

/// Owns the cache. Not thread-safe; what files() gives may be used by several threads.
class TextSources {
 public:
  /// Looks the objects up: errors as find_inputs. `fs` and `access.clock` outlive it.
  TextSources(FileSystem& fs, const ObjectAccess& access, const std::vector<std::string>& inputs,
              CacheOptions cache);

  const std::vector<std::string>& paths() const { return found_.paths; }
  /// The version of each path; "" of files.
  std::vector<std::string> versions() const;
  /// Of objects that are not read, as a sentence; "": there are none.
  std::string left_out_text() const;
  FileSystem& files() { return files_; }

 private:
  FoundInputs found_;
  ObjectCache cache_;
  ObjectFiles files_;
};

}  // namespace trainctl
