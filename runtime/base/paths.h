// Paths and the folder that this process is in, which may have been removed.
#pragma once
#include <string>

namespace trainctl {

/// "" if it was removed.
std::string current_folder();

/// `path` from the root on, without `.` and `..`, and without a slash at its end. Error(kUsage): `path` is
/// empty, or it is relative and the current folder was removed.
std::string absolute_path(const std::string& path);

}  // namespace trainctl
