// Goal: ranks are started through our own PMIx server, on one host and on several, epoch after epoch,
// whatever happens to them: a rank that is killed in or after MPI_Init, or that calls MPI_Abort, does not
// keep the next epoch from working. Method: each host is a process of its own (test/runtime/machine/pmix/host.cpp) that
// serves PMIx to real MPI ranks (test/runtime/machine/pmix/rank.cpp); the test exchanges their fences. A sum of integers over
// all ranks must be exact. Everything ends with the test (PR_SET_PDEATHSIG).
#include <sys/wait.h>

#include <catch2/catch.hpp>

#include "runtime/machine/outer_launcher.h"
#include "runtime/machine/pmix/pmix_log.h"
#include "runtime/machine/pmix/pmix_server.h"
#include "test/runner.h"
#include "test/runtime/machine/pmix/hosts.h"

using namespace trainctl;

namespace {

std::string g_host_program, g_rank_program;

Hosts hosts_of(std::vector<std::vector<int>> ranks_of_host) {
  const size_t count = ranks_of_host.size();
  return Hosts(g_host_program, g_rank_program, std::move(ranks_of_host), count);
}

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

double seconds_to_ready_by_mpirun(int ranks) {
  const Stopwatch since;
  Environment environment = mpi_settings();
  for (const auto& [name, value] : Environment{{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                               {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                               {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                               {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                                               {"OMPI_MCA_plm", "^rsh"},
                                               {"OMPI_MCA_ras", "^slurm"},
                                               {"OMPI_MCA_odls_base_num_threads", "0"}})
    environment.emplace_back(name, value);
  ChildProcess child({"mpirun", "-n", std::to_string(ranks), g_rank_program, "sum", std::to_string(ranks)},
                     environment);
  std::string output;
  const auto ready = [&] {
    int count = 0;
    for (size_t at = 0; (at = output.find("ready\n", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  while (ready() < ranks && since.seconds() < 60 && child.output_fd() >= 0) {
    pollfd fd = {child.output_fd(), POLLIN, 0};
    ::poll(&fd, 1, 1000);
    output += child.read_output();
  }
  const double seconds = since.seconds();
  CAPTURE(output);
  CHECK(ready() == ranks);
  pollfd ended = {child.exit_fd(), POLLIN, 0};
  ::poll(&ended, 1, 60000);
  return seconds;
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
  hosts.send_old_answers_first();
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) hosts.sum(epoch);
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

TEST_CASE("ranks killed at any moment of their start do not harm the next epoch", "[server]") {
  Hosts hosts = hosts_of({{0, 1, 2}, {3, 4}});
  uint64_t epoch = 0;
  for (int delay_ms = 0; delay_ms < 60; delay_ms += 3) {
    hosts.begin(++epoch, "sum");
    hosts.wait_begun();
    ::poll(nullptr, 0, delay_ms);  // the moment that this round is about
    hosts.kill(-1);
    hosts.wait_exits();
    hosts.end();
    if (delay_ms % 12 == 9) hosts.sum(++epoch);
  }
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

TEST_CASE("a rank killed while the others are in MPI_Finalize does not harm the next epoch", "[server]") {
  Hosts hosts = hosts_of({{0, 1}, {2, 3}});
  hosts.begin(1, "stay");  // the last rank stays after MPI_Init, the others finalize
  hosts.wait_ready(4);
  hosts.kill(3);
  hosts.wait_exits(1);
  hosts.kill(-1);
  hosts.wait_exits();
  hosts.end();
  hosts.sum(2);
}

TEST_CASE("files of killed ranks go with their epoch", "[server]") {
  Hosts hosts = hosts_of({{0, 1}, {2, 3}});
  hosts.begin(1, "hold");
  hosts.wait_ready(4);
  CHECK(hosts.files() > 0);
  hosts.kill(-1);
  hosts.wait_exits();
  hosts.end();
  CHECK(hosts.files() == 0);
}

TEST_CASE("the reason of a failed MPI_Init is reported", "[server]") {
  Hosts hosts = hosts_of({{0, 1}});
  hosts.begin(1, "sum", "OMPI_MCA_btl=self");  // two ranks and no way between them
  hosts.wait_exits();
  for (const auto& [rank, status] : hosts.statuses()) CHECK(status != 0);
  hosts.wait_log("unable to reach each other");  // it comes from another process than the exits
  hosts.end();
  hosts.sum(2);
}

TEST_CASE("1,000 ranks on one host, 2,000 hosts of 8 ranks", "[server]") {
  std::vector<std::vector<int>> one(1), many(2000);
  for (int rank = 0; rank < 1000; ++rank) one[0].push_back(rank);
  for (int rank = 0; rank < 16000; ++rank) many[size_t(rank / 8)].push_back(rank);
  for (const auto& ranks : {one, many}) {
    Hosts hosts(g_host_program, g_rank_program, ranks, 1);
    for (uint64_t epoch = 1; epoch <= 2; ++epoch) {
      hosts.begin(epoch, "none");
      hosts.wait_begun();
      hosts.end();
    }
  }
}

TEST_CASE("an epoch that cannot be is refused", "[server]") {
  const std::vector<std::vector<std::vector<int>>> wrong = {{{0, 2}}, {{0, 0}}, {{0}, {}}, {{1}}};
  for (const auto& ranks : wrong) {
    Hosts hosts(g_host_program, g_rank_program, ranks, 1);
    CHECK_THAT(hosts.failure_of_begin(), Catch::Contains("attempt 1 cannot begin: "));
  }
}

TEST_CASE("the probe sees whether ranks get through MPI_Init", "[server]") {
  Hosts hosts = hosts_of({{0, 1}});
  CHECK(hosts.probe("probe") == "");
  CHECK_THAT(hosts.probe("alone"), Catch::Contains("did not see the other one: world_size 1"));
  CHECK_THAT(hosts.probe("late"), Catch::Contains("did not get through MPI_Init within 0.5 s"));
  CHECK_THAT(hosts.probe("nonsense"), Catch::Contains("exited with 2"));
  CHECK(hosts.files() == 0);
  hosts.sum(1);
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
  hosts.wait_log("MPI_ABORT was invoked on rank 2");
  hosts.kill(-1);
  hosts.wait_exits();
  hosts.end();
  hosts.sum(2);
}

TEST_CASE("the end of the server itself is reported, and the next epoch has a new one", "[server]") {
  Hosts hosts = hosts_of({{0, 1}});
  hosts.begin(1, "hold");
  hosts.wait_ready(2);
  hosts.break_servers();
  hosts.wait_log("the PMIx server of h0 ended by itself");
  hosts.kill(-1);
  hosts.wait_exits();
  hosts.end();
  hosts.break_servers();  // also the one that waits for the next epoch
  hosts.sum(2);
  hosts.sum(3);
}

TEST_CASE("after everything below the owner was killed the next epoch begins", "[server]") {
  Hosts hosts = hosts_of({{0, 1}});
  hosts.begin(1, "hold");
  hosts.wait_ready(2);
  hosts.kill_descendants();
  hosts.wait_exits();
  hosts.end();
  hosts.sum(2);
  hosts.kill_descendants();  // while no epoch runs
  hosts.sum(3);
}

TEST_CASE("nothing of a server outlives its owner", "[server]") {
  Hosts hosts = hosts_of({{0, 1}});
  hosts.begin(1, "hold");
  hosts.wait_ready(2);
  CHECK(hosts.crash() == 4);  // two ranks, which end with their parent, the fork server and the server
}

TEST_CASE("nobody takes the server's processes for its owner", "[server]") {
  Hosts hosts = hosts_of({{0}, {1}});
  CHECK(hosts.files() == 0);   // both answer: their servers are there
  CHECK(hosts.marked() == 2);  // the two hosts
  hosts.sum(1);
  CHECK(hosts.marked() == 2);
}

TEST_CASE("from the start to the last rank after MPI_Init", "[.start_time]") {
  std::vector<double> pmix, mpirun;
  Hosts hosts = hosts_of({{0, 1, 2, 3, 4, 5, 6, 7}});
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    const Stopwatch since;
    hosts.begin(epoch, "sum");
    hosts.wait_ready(8);
    pmix.push_back(since.seconds());
    hosts.wait_exits();
    hosts.end();
    mpirun.push_back(seconds_to_ready_by_mpirun(8));
  }
  for (auto* times : {&pmix, &mpirun}) std::sort(times->begin(), times->end());
  std::printf("8 ranks, median of 5: PMIx %.3f s (%.3f to %.3f), mpirun %.3f s (%.3f to %.3f)\n", pmix[2],
              pmix[0], pmix[4], mpirun[2], mpirun[0], mpirun[4]);
}

TEST_CASE("the text of a packed buffer is found", "[server]") {
  const auto packed = [](const std::string& text) {
    const size_t n = text.size() + 1;
    std::string bytes;
    for (const int shift : {24, 16, 8, 0}) bytes += char(n >> shift & 0xff);
    return bytes + text + '\0';
  };
  const std::string names = packed("help-mpi-api.txt") + packed("mpi-abort") + '\1';
  // Lengths whose last bytes are printable: 0x41, 0x2041.
  for (const size_t length : {20u, 64u, 300u, 8256u, 20000u}) {
    const std::string text = std::string(length - 2, 'x') + "y\n";
    CHECK(longest_text(names + packed(text)) == text);
  }
  CHECK(longest_text("plain") == "plain");
  CHECK(longest_text("") == "");
  CHECK(longest_text(std::string(3, '\0')) == "");
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
  if (const trainctl::Problem problem = trainctl::pmix_problem(); problem.exists()) {
    std::printf("skipped: %s\n", problem.text().c_str());
    return 77;
  }
  const std::string folder = std::string(argv[0]).substr(0, std::string(argv[0]).rfind('/') + 1);
  g_host_program = folder + "pmix_host";
  const char* other = std::getenv("TRAINCTL_TEST_RANK_PROGRAM");
  g_rank_program = other ? other : folder + "pmix_rank";
  return trainctl::test::run_tests(argc, argv);
}
