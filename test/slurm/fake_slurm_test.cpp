// Goal: the Slurm of the tests is a real one: it runs steps on all nodes, has GPUs and a topology, keeps a
//       job under --no-kill when a node is lost, and leaves nothing.
// Method: two nodes and the login node; what Slurm itself reports.
#include <catch2/catch.hpp>
#include <filesystem>

#include "test/support/fake_nodes.h"

using namespace trainctl::test;

TEST_CASE("Slurm runs on the fake nodes", "[slurm]") {
  std::string folder;
  {
    FakeSlurm slurm({.nodes = 2, .gpus = 2, .topology = true});
    folder = slurm.nodes().folder();
    const Outcome names = slurm.run({"srun", "-N2", "-l", "hostname"});
    CHECK(names.out.find("0: node0\n") != std::string::npos);
    CHECK(names.out.find("1: node1\n") != std::string::npos);
    const std::string show = "echo $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES $SLURM_TOPOLOGY_ADDR";
    CHECK(slurm.run({"srun", "-N1", "-wnode1", "--gres=gpu:2", "bash", "-c", show}).out ==
          "2 0,1 spine.leaf1.node1\n");

    const Outcome job = slurm.run({"sbatch", "--parsable", "-N2", "--no-kill", "--wrap", "sleep 6000"});
    const std::string id = job.out.substr(0, job.out.find('\n'));
    REQUIRE(eventually(120, [&] { return slurm.state(id) == "RUNNING"; }));
    slurm.nodes().poweroff(1);
    REQUIRE(slurm.run({"scontrol", "update", "nodename=node1", "state=down", "reason=test"}).status == 0);
    CHECK(slurm.state(id) == "RUNNING");
    CHECK(slurm.run({"scancel", id}).status == 0);
    slurm.boot(1);
    slurm.run({"scontrol", "update", "nodename=node1", "state=resume"});
    slurm.wait_idle(2);
  }
  CHECK_FALSE(std::filesystem::exists(folder));
}
