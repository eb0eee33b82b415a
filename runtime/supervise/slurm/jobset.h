// A run on Kubernetes: the manifest of a JobSet with one supervisor and one agent a node. Pure.
//
//   JobSet NAME
//     supervisor   one pod: PROGRAM resume RUN; the set is done when it is
//     node         one pod a node, spares included, at most one on each machine: PROGRAM node RUN, the agent
//
// The agents dial the supervisor by its stable name; the run directory lies on a volume that all pods mount.
// A pod that is lost is made again elsewhere, and its agent is a node that joins.
// Source: jobset.x-k8s.io/v1alpha2 and batch/v1, https://jobset.sigs.k8s.io.
#pragma once
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/supervise/slurm/slurm_script.h"

namespace trainctl {

/// What Kubernetes needs beyond the request.
struct PodRequest {
  std::string image;         ///< holds the program
  std::string name_space;    ///< "": the caller's own
  std::string claim, mount;  ///< a volume claim (ReadWriteMany) and where it is mounted; RUN lies below
  std::string memory;        ///< of a node's pod, "512Gi"; "": not asked for
  std::string shared_memory = "16Gi";           ///< /dev/shm of a node's pod
  int port = 7077;                              ///< at which the supervisor listens
  std::vector<std::string> supervisor_options;  ///< after PROGRAM resume RUN
  std::vector<std::string> agent_options;  ///< after PROGRAM node RUN --connect ... --name ...
};

/// What the agents of the set call their nodes, in order: launcher.hosts of the run.
std::vector<std::string> jobset_nodes(const SlurmRequest& request);

/// A name that Kubernetes takes: small letters, digits and dashes, at most 40 characters; "" if nothing is
/// left.
std::string kubernetes_name(const std::string& text);

/// The JobSet. Error(kUsage) with all problems: those of the request, and fields that mean nothing on
/// Kubernetes (account, reservation, constraint, extra, setup, chain).
nlohmann::ordered_json jobset(const SlurmRequest& request, const PodRequest& pods, const std::string& program,
                              const std::string& run);
/// The same as text for `kubectl apply -f -`.
std::string jobset_manifest(const SlurmRequest& request, const PodRequest& pods, const std::string& program,
                            const std::string& run);

}  // namespace trainctl
