// Goal: the preflight of a run on several nodes counts the second copies that this machine will hold.
// Method: this machine and others, which have addresses that no machine has, with different numbers of slots.
#include <catch2/catch.hpp>

#include "runtime/supervise/start/start.h"

using namespace trainctl;

TEST_CASE("this machine holds the second copies of the ranks of one other node") {
  JobSpec job;
  job.parallelism = {.world_size = 8, .data = 8};
  const auto on = [](std::vector<ClusterNode> list) {
    RunNodes nodes;
    nodes.nodes = std::move(list);
    nodes.one_machine = nodes.nodes.size() == 1;
    return nodes;
  };
  const ClusterNode here{"localhost", 4, ""}, other{"192.0.2.7", 4, ""};
  CHECK(second_ranks_here(job, job.checkpoint, on({here, other})) == 4);
  CHECK(second_ranks_here(job, job.checkpoint, on({{"localhost", 6, ""}, {"192.0.2.7", 2, ""}})) == 2);
  CHECK(second_ranks_here(job, job.checkpoint, on({{"192.0.2.7", 6, ""}, {"localhost", 2, ""}})) == 6);
  // Nodes that get no rank, or a supervisor that is on none of the nodes.
  CHECK(second_ranks_here(job, job.checkpoint, on({{"192.0.2.7", 4, ""}, {"192.0.2.8", 4, ""}, here})) == 0);
  CHECK(second_ranks_here(job, job.checkpoint, on({other, {"192.0.2.8", 4, ""}})) == 0);
  CHECK(second_ranks_here(job, job.checkpoint, on({{"localhost", 8, ""}})) == 0);
  // A narrower width is placed later.
  CHECK(second_ranks_here(job, job.checkpoint, on({{"localhost", 2, ""}, {"192.0.2.7", 2, ""}})) == 0);
  job.checkpoint.partner = PartnerCopies::off;
  CHECK(second_ranks_here(job, job.checkpoint, on({here, other})) == 0);
  job.checkpoint = {.memory = MemoryCopies::off};
  CHECK(second_ranks_here(job, job.checkpoint, on({here, other})) == 0);
}
