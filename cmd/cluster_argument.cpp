#include "cmd/cluster_argument.h"

#include <fmt/ranges.h>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace trainctl::cmd {

predict::ClusterModel cluster_of(const std::string& text) {
  if (auto cluster = predict::sized_cluster(text)) return *std::move(cluster);
  if (!real_file_system().exists(text))
    throw Error(
        ErrorCode::kUsage,
        fmt::format("--cluster {}: is no file and no known cluster; use {}, or one with its number of "
                    "devices: h100-2048",
                    text, fmt::join(predict::cluster_names(), ", ")));
  return predict::parse_cluster(real_file_system().read_text(text), text);
}

}  // namespace trainctl::cmd
