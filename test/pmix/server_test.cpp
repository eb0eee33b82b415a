// Goal: ranks are started through our own PMIx server, on one host and on several, epoch after epoch,
// whatever happens to them: a rank that is killed in or after MPI_Init, or that calls MPI_Abort, does not
// keep the next epoch from working. Method: each host is a process of its own (test/pmix/host.cpp) that
// serves PMIx to real MPI ranks (test/pmix/rank.cpp); the test exchanges their fences. A sum of integers over
// all ranks must be exact. Everything ends with the test (PR_SET_PDEATHSIG).
#define CATCH_CONFIG_RUNNER
#include <sys/wait.h>

#include <catch2/catch.hpp>

#include "runtime/machine/outer_launcher.h"
#include "runtime/machine/pmix_server.h"
#include "test/pmix/hosts.h"

using namespace trainctl;

namespace {

std::string g_host_program, g_rank_program;

Hosts hosts_of(std::vector<std::vector<int>> ranks_of_host) {
  return Hosts(g_host_program, g_rank_program, std::move(ranks_of_host));
}

}  // namespace

TEST_CASE("one host: 1, 2 and 5 ranks", "[server]") {
  for (const std::vector<int>& ranks : {std::vector<int>{0}, {0, 1}, {0, 1, 2, 3, 4}}) {
    Hosts hosts = hosts_of({ranks});
    hosts.sum(1);
    CHECK(hosts.fences() == 0);  // libpmix settles what concerns one host alone
  }
}

TEST_CASE("two hosts with 2 and 1 ranks exchange their fences", "[server]") {
  Hosts hosts = hosts_of({{0, 1}, {2}});
  hosts.sum(1);
  CHECK(hosts.fences() >= 2);  // MPI_Init, MPI_Finalize
}

TEST_CASE("ranks need not be in the order of the hosts", "[server]") {
  Hosts hosts = hosts_of({{2, 0}, {1}});
  hosts.sum(1);
}

TEST_CASE("five epochs in a row, and late answers of old ones", "[server]") {
  Hosts hosts = hosts_of({{0, 1}, {2}});
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    hosts.answer_old_fence(epoch - 1);
    hosts.sum(epoch);
  }
}

TEST_CASE("ranks killed in MPI_Init do not harm the next epoch", "[server]") {
  Hosts hosts = hosts_of({{0, 1}, {2, 3}});
  hosts.begin(1, "late");  // the last rank never gets to MPI_Init, the others wait in it
  hosts.wait_ready(4);
  hosts.kill(-1);
  hosts.wait_exits();
  hosts.end();
  hosts.sum(2);
}

TEST_CASE("a rank killed after MPI_Init does not harm the next epoch", "[server]") {
  for (const int victim : {0, 3}) {
    Hosts hosts = hosts_of({{0, 1}, {2, 3}});
    hosts.begin(1, "hold");
    hosts.wait_ready(4);
    hosts.kill(victim);
    hosts.kill(-1);
    hosts.wait_exits();
    for (const auto& [rank, status] : hosts.statuses()) CHECK(WIFSIGNALED(status));
    hosts.end();
    hosts.sum(2);
    hosts.sum(3);
  }
}

TEST_CASE("an epoch may begin without the end of the one before", "[server]") {
  Hosts hosts = hosts_of({{0, 1}});
  hosts.begin(1, "hold");
  hosts.wait_ready(2);
  hosts.kill(-1);
  hosts.wait_exits();
  hosts.sum(2);
}

TEST_CASE("MPI_Abort is reported", "[server]") {
  Hosts hosts = hosts_of({{0, 1}, {2}});
  hosts.begin(1, "abort");
  hosts.wait_aborted();
  CHECK(hosts.aborted() == std::map<int, int>{{2, 7}});
  hosts.kill(-1);
  hosts.wait_exits();
  hosts.end();
  hosts.sum(2);
}

TEST_CASE("variables of an outer launcher are known by name", "[server]") {
  for (const char* name :
       {"SLURM_STEP_ID", "PMIX_RANK", "PMIX_SERVER_URI41", "PMI_FD", "OMPI_COMM_WORLD_RANK",
        "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri", "PRTE_LAUNCHED"})
    CHECK(is_of_outer_launcher(name));
  for (const char* name :
       {"PMIX_MCA_gds", "PMIX_PREFIX", "PMIX_INSTALL_PREFIX", "OMPI_MCA_btl", "OPAL_PREFIX", "PATH", "HOME"})
    CHECK_FALSE(is_of_outer_launcher(name));
}

int main(int argc, char** argv) {
  if (const std::string problem = pmix_problem(); !problem.empty()) {
    std::printf("skipped: %s\n", problem.c_str());
    return 77;
  }
  const std::string folder = std::string(argv[0]).substr(0, std::string(argv[0]).rfind('/') + 1);
  g_host_program = folder + "pmix_host";
  const char* other = std::getenv("TRAINCTL_TEST_RANK_PROGRAM");
  g_rank_program = other ? other : folder + "pmix_rank";
  return Catch::Session().run(argc, argv);
}
