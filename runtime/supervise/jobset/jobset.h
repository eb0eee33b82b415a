// The manifest of a JobSet that runs a job on Kubernetes with one supervisor and one agent per node. Pure.
//
//   JobSet NAME
//     supervisor   one pod: PROGRAM resume RUN; when it completes, the set is complete
//     node         one pod per node, spares included, at most one on each machine: PROGRAM node RUN, the agent
//
// The agents connect to the supervisor by its stable name. The run directory is on a volume that all pods
// mount. Kubernetes replaces a lost pod on another machine; its agent then joins the run as a returned node.
// Source: jobset.x-k8s.io/v1alpha2 and batch/v1, https://jobset.sigs.k8s.io.
#pragma once
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/supervise/slurm/slurm_script.h"

namespace trainctl {

/// What Kubernetes needs in addition to the SlurmRequest.
struct PodRequest {
  std::string image;         ///< image that has the program
  std::string name_space;    ///< "": the caller's default namespace
  std::string claim, mount;  ///< a volume claim (ReadWriteMany) and its mount path; RUN is below it
  std::string memory;        ///< memory request of a node's pod, "512Gi"; "": none
  std::string shared_memory = "16Gi";           ///< size of /dev/shm of a node's pod
  int port = 7077;                              ///< port on which the supervisor listens
  std::vector<std::string> supervisor_options;  ///< after PROGRAM resume RUN
  std::vector<std::string> agent_options;  ///< after PROGRAM node RUN --connect ... --name ...
};

/// The node names of the set's agents, in order. The run needs them as launcher.hosts.
std::vector<std::string> jobset_nodes(const SlurmRequest& request);

/// `text` as a name that Kubernetes accepts: small letters, digits and dashes, at most 40 characters; "" if
/// no valid character is left.
std::string kubernetes_name(const std::string& text);

/// The JobSet. Error(kUsage) with all problems: those of the request, and fields that have no meaning on
/// Kubernetes (account, reservation, constraint, extra, setup, chain).
OrderedJson jobset(const SlurmRequest& request, const PodRequest& pods, const std::string& program,
                              const std::string& run);
/// The JobSet as text for `kubectl apply -f -`.
std::string jobset_manifest(const SlurmRequest& request, const PodRequest& pods, const std::string& program,
                            const std::string& run);

}  // namespace trainctl
