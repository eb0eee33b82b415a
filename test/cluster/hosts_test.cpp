// Goal: nodes that cannot take part are named with the reason and what to do, and never hang a run; where
//       enough others are there, the run goes on with these.
// Method: launches on fake nodes with hosts that are unknown, unreachable, named twice, without the program
//         or the run directory, of another version, or behind a remote shell that asks for a password; a
//         network interface that leads nowhere; and the real ssh.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "test/cluster/cluster_run.h"

using namespace trainctl::test;
namespace fs = std::filesystem;

namespace {

std::string all_output(const Outcome& outcome) { return outcome.out + outcome.err; }

/// A remote shell that runs `lines` before the usual one; "$1" is the host.
std::string shell_with(FakeNodes& nodes, const std::string& lines) {
  const std::string path = nodes.folder() + "/shell";
  write_file(path, "#!/bin/bash\n" + lines + "\nexec " + nodes.remote_shell() + " \"$@\"\n");
  fs::permissions(path, fs::perms::owner_all);
  return path;
}

/// The run finishes on the other nodes, undisturbed, and says about the missing one.
void check_runs_without(ClusterRun& run, const std::string& said) {
  const Outcome outcome = run.finish();
  INFO(all_output(outcome) << run.story());
  REQUIRE(outcome.status == 0);
  CHECK(run.epoch() == 1);
  if (!said.empty()) CHECK(run.story().find(said) != std::string::npos);
  run.check_bits();
  run.check_nothing_left();
}

/// The run ends before its first step, within `seconds`, and says why.
void check_refused(ClusterRun& run, const std::vector<std::string>& said, double seconds = 30) {
  const Outcome outcome = run.finish(seconds);
  INFO(all_output(outcome) << run.story());
  CHECK(outcome.status != 0);
  for (const std::string& words : said) CHECK(all_output(outcome).find(words) != std::string::npos);
  CHECK(run.step() == 0);
  run.check_nothing_left();
}

/// No node is to be lost here, however loaded the machine is.
constexpr double kCalm = 3;

/// Three nodes do not carry the run: none must be missing, and the run does not wait for one.
const std::vector<std::string> kStrict = {"fault_tolerance.elastic=false",
                                          "fault_tolerance.too_few_nodes=stop"};

}  // namespace

TEST_CASE("a host that is named twice is refused", "[hosts][cluster_run]") {
  FakeNodes nodes(2, machines());
  ClusterRun run(nodes, {.hosts = R"(["node0","node1","node1"])"});
  run.launch();
  check_refused(run, {"node1 is named twice"});
}

TEST_CASE("a spare whose name does not resolve, or that is not there, is done without",
          "[hosts][cluster_run]") {
  const std::string spare = GENERATE("nosuchnode", "10.77.0.99");
  CAPTURE(spare);
  FakeNodes nodes(4, machines());
  ClusterRun run(nodes,
                 {.silence_s = kCalm, .hosts = R"(["node0","node1","node2","node3",")" + spare + R"("])"});
  run.launch();
  check_runs_without(run, "");
}

TEST_CASE("a host without the program is named", "[hosts][cluster_run]") {
  FakeNodes nodes(4, machines());
  const std::string shell = shell_with(
      nodes, "if [ \"$1\" = node2 ]; then echo 'env: trainctl: No such file or directory' >&2; exit 127; fi");
  ClusterRun run(nodes, {.hosts = R"(["node0","node1","node2","node3"])", .set = kStrict});
  run.launch({"launcher.shell=" + shell});
  check_refused(run, {"node2", "No such file or directory"}, 90);
}

TEST_CASE("a remote shell that asks for a password does not hang the run", "[hosts][cluster_run]") {
  FakeNodes nodes(5, machines());
  // As ssh does it: from the terminal, not from its input.
  const std::string shell = shell_with(nodes, "if [ \"$1\" = node1 ]; then sleep 300; fi");
  ClusterRun run(nodes, {.silence_s = kCalm});
  run.launch({"launcher.shell=" + shell});
  check_runs_without(run, "");
}

TEST_CASE("another version of the program on a node is refused by name", "[hosts][cluster_run]") {
  FakeNodes nodes(4, machines());
  const std::string other = nodes.folder() + "/other-trainctl", version = "0.1.0";
  // The linker keeps it as the end of a longer text that ends with it.
  std::string binary = read_file(program());
  REQUIRE(binary.find(version + '\0') != std::string::npos);
  for (size_t at = 0; (at = binary.find(version + '\0', at)) != std::string::npos; ++at)
    binary.replace(at, version.size(), "0.0.9");
  write_file(other, binary);
  fs::permissions(other, fs::perms::owner_all);
  const std::string replaced = "\"$(sed 's|" + program() + "|" + other + "|g' <<<\"$2\")\"";
  const std::string shell =
      shell_with(nodes, "[ $1 = node3 ] && exec " + nodes.remote_shell() + " $1 " + replaced);
  ClusterRun run(nodes, {.hosts = R"(["node0","node1","node2","node3"])", .set = kStrict});
  run.launch({"launcher.shell=" + shell});
  check_refused(run, {"node3 runs trainctl 0.0.9", "same version"}, 90);
}

TEST_CASE("a node that does not see the run directory is named", "[hosts][cluster_run]") {
  // Each node has its own /srv; the run is launched in it.
  FakeNodes::Options own = machines();
  own.own_folders.push_back("/srv");
  FakeNodes nodes(4, own);
  ClusterRun run(nodes, {.hosts = R"(["node0","node1","node2","node3"])", .set = kStrict});
  run.launch({"observability.run_dir=/srv"});
  const Outcome outcome = run.finish();
  INFO(all_output(outcome));
  CHECK(outcome.status != 0);
  CHECK(all_output(outcome).find("sees no run directory /srv/") != std::string::npos);
  CHECK(run.processes().empty());
}

TEST_CASE("an interface that leads nowhere does not hang MPI", "[hosts][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  for (int node = 0; node < 5; ++node) {
    const Outcome made =
        nodes.run(node, {"bash", "-c",
                         "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && "
                         "ip link set docker0 up"});
    INFO(made.err);
    REQUIRE(made.status == 0);
  }
  ClusterRun run(nodes, {.start = start, .silence_s = kCalm});
  run.launch();
  check_runs_without(run, "");
}

TEST_CASE("the real ssh starts the agents", "[hosts][ssh][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  const std::string configuration = nodes.start_sshd();
  ClusterRun run(nodes, {.start = start});
  run.launch({"launcher.shell=ssh -F " + configuration});
  run.await_step(7);
  nodes.crash(run.members()[0]);
  const Outcome outcome = run.finish();
  INFO(all_output(outcome) << run.story());
  REQUIRE(outcome.status == 0);
  CHECK(run.epoch() > 1);
  run.check_bits();
  run.check_nothing_left();
}

TEST_CASE("a host list in which no width fits is refused with what would fit", "[hosts][cluster_run]") {
  FakeNodes nodes(2, machines());
  SECTION("not even one replica") {
    ClusterRun run(nodes, {.hosts = R"(["node0:2"])"});
    run.launch();
    check_refused(
        run,
        {"the mesh needs 8 ranks and launcher.hosts (1 node with 2 slots) has room for 2 in whole tensor "
         "groups of 2; name more nodes, give nodes more slots, or make tensor and pipeline smaller: one "
         "replica alone has 4 ranks"});
  }
  SECTION("one replica, in a run that may not become narrower") {
    ClusterRun run(nodes, {.hosts = R"(["node0:2","node1:3"])", .set = {"fault_tolerance.elastic=false"}});
    run.launch();
    check_refused(run, {"(2 nodes with 5 slots) has room for 4 in whole tensor groups of 2",
                        "take -s parallelism.data=1 -s parallelism.world_size=4, which fits"});
  }
}

TEST_CASE("a host list that is too small for the mesh runs narrower, with the same bits",
          "[hosts][cluster_run]") {
  FakeNodes nodes(2, machines());
  ClusterRun run(nodes, {.silence_s = kCalm, .hosts = R"(["node0:2","node1:2"])"});
  run.launch();
  check_runs_without(run, "");
}

TEST_CASE("nodes with a GPU each carry a mesh that one machine's GPUs would not", "[hosts][cluster_run]") {
  FakeNodes nodes(2, machines());
  ClusterRun run(nodes, {.steps = 2,
                         .silence_s = kCalm,
                         .hosts = R"(["node0","node1"])",
                         .set = {"launcher.slots=1", "parallelism.tensor=1", "parallelism.data=1",
                                 "parallelism.lanes=1", "parallelism.transport=host",
                                 "batch.global_sequences=1", "schedule.warmup_steps=0"},
                         .program = emulated_program()});
  run.launch();
  run.await_event("ranks_up");
  CHECK(run.story().find("on 2 GPUs") != std::string::npos);
  run.kill_supervisor();
  REQUIRE(eventually(120, [&] { return run.processes().empty(); }));
  // A resume does not ask one machine for the GPUs of all. (Steps of an emulated GPU take too long here.)
  run.resume(1);
  run.await_event("ranks_up", 2);
}
