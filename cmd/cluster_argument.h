// --cluster of the commands that predict.
#pragma once
#include <string>

#include "runtime/predict/cluster.h"

namespace trainctl::cmd {

/// A known cluster by its exact name, that of a file, or sized_cluster ("h100-2048", "DGX H100"), the first of
/// these that there is. Error(kUsage).
predict::ClusterModel cluster_of(const std::string& text);

}  // namespace trainctl::cmd
