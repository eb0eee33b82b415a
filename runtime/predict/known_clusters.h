// The cluster files that are part of the program; the build writes them from scripts/clusters.
#pragma once
#include <span>
#include <string_view>

namespace trainctl::predict {

struct KnownCluster {
  std::string_view name, text;
};
std::span<const KnownCluster> known_clusters();

}  // namespace trainctl::predict
