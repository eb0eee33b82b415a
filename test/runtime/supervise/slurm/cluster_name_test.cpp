// Goal: runs of one cluster share a quarantine list, and no other cluster's nodes of the same names are
// meant. Method: the facts of machines of each kind.
#include <catch2/catch.hpp>

#include "runtime/supervise/slurm/cluster_name.h"

using namespace trainctl;

TEST_CASE("a cluster is called by Slurm, Kubernetes or the domain, in this order") {
  CHECK(cluster_name({"hpc", "ml", "login1.example.org"}) == "hpc");
  CHECK(cluster_name({"", "ml", "pod-0.example.org"}) == "kubernetes-ml");
  CHECK(cluster_name({"", "", "login1.example.org"}) == "example.org");
  CHECK(cluster_name({"", "", "laptop"}) == "");
}
