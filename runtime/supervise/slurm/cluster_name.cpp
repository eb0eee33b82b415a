#include "runtime/supervise/slurm/cluster_name.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/supervise/slurm/slurm_commands.h"

namespace trainctl {
namespace {

constexpr double kQueryS = 5;

/// "" if the file is missing.
std::string first_word(const char* path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

/// nullopt: the controller does not answer.
std::optional<std::string> slurm_name() {
  if (const char* name = std::getenv("SLURM_CLUSTER_NAME")) return name;
  if (!SlurmCommands::present()) return "";
  try {
    return SlurmCommands({.query_s = kQueryS}).cluster_name();
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string ask_for_cluster() {
  const std::optional<std::string> slurm = slurm_name();
  if (!slurm) return "";
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return cluster_name({.slurm = *slurm,
                       .pods = first_word("/var/run/secrets/kubernetes.io/serviceaccount/namespace"),
                       .host = host});
}

}  // namespace

std::string cluster_name(const ClusterFacts& facts) {
  if (!facts.slurm.empty()) return facts.slurm;
  if (!facts.pods.empty()) return "kubernetes-" + facts.pods;
  const size_t dot = facts.host.find('.');
  return dot == std::string::npos ? "" : facts.host.substr(dot + 1);
}

const std::string& this_cluster() {
  static const std::string name = ask_for_cluster();
  return name;
}

}  // namespace trainctl
