// A folder that appears under its name complete or not at all: it is written as NAME.partial-PID beside it
// and renamed at the end.
#pragma once
#include <functional>
#include <string>

#include "runtime/base/file_system.h"

namespace trainctl {

/// Makes the folder `path`: makes NAME.partial-PID, calls write() with its path, and renames what write()
/// returns to `path`: that folder itself or one in it, with synced files. On return the new name is durable.
/// Error(kUsage), one sentence, if `path` exists and is not an empty folder; Error(kIo). If this or write()
/// throws an exception, nothing is left.
void make_new_folder(FileSystem& fs, const std::string& path,
                     const std::function<std::string(const std::string& partial)>& write);

/// Without slashes at its end.
std::string folder_name(std::string path);

}  // namespace trainctl
