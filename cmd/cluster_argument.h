// --cluster of the commands that predict.
#pragma once
#include <string>

#include "runtime/predict/cluster.h"

namespace trainctl::cmd {

/// A known cluster, one of so many devices ("h100-2048"), or that of a file. Error(kUsage).
predict::ClusterModel cluster_of(const std::string& text);

}  // namespace trainctl::cmd
