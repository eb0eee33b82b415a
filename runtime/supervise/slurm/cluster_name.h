// The name of the cluster on which this machine is: the names of nodes mean something in it alone.
#pragma once
#include <string>

namespace trainctl {

/// What may say it; "" where something is silent.
struct ClusterFacts {
  std::string slurm;  ///< $SLURM_CLUSTER_NAME, or what the controller of Slurm says
  std::string pods;   ///< the namespace of Kubernetes
  std::string host;   ///< the name of this machine, perhaps with its domain
};
/// Slurm's name, else the namespace, else the domain, else "": it is not known. Pure.
std::string cluster_name(const ClusterFacts& facts);
/// That of this machine; the first call asks Slurm where it is installed and the environment does not say it,
/// for a few seconds at most. Where Slurm does not answer it is not known.
const std::string& this_cluster();

}  // namespace trainctl
