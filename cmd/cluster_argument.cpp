#include "cmd/cluster_argument.h"

#include <fmt/ranges.h>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace trainctl::cmd {

predict::ClusterModel cluster_of(const std::string& text) {
  if (!predict::known_cluster_text(text).empty()) return predict::known_cluster(text);
  // A file of one's own is before other spellings of known names: "dgx-h100" may be either.
  FileSystem& files = real_file_system();
  if (files.exists(text) && !files.is_directory(text))
    return predict::parse_cluster(files.read_text(text), text);
  if (auto cluster = predict::sized_cluster(text)) return *std::move(cluster);
  throw Error(ErrorCode::kUsage,
              fmt::format("--cluster {}: is no file and no known cluster; use {}, or one with its number of "
                          "devices: h100-2048",
                          text, fmt::join(predict::cluster_names(), ", ")));
}

}  // namespace trainctl::cmd
