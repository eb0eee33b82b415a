#include "runtime/base/paths.h"

#include <filesystem>

#include "runtime/base/error.h"

namespace trainctl {

std::string current_folder() {
  std::error_code gone;
  return std::filesystem::current_path(gone).string();
}

std::string absolute_path(const std::string& path) {
  if (path.empty())
    throw Error(ErrorCode::kUsage, "an empty name is no path; is a variable of the command line not set?");
  const std::string here = path[0] == '/' ? "/" : current_folder();
  if (here.empty())
    throw Error(
        ErrorCode::kUsage,
        fmt::format("the current folder was removed, so that {} leads nowhere; cd to another one", path));
  std::string text = (std::filesystem::path(here) / path).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

}  // namespace trainctl
