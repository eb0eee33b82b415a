// What mpirun says.
//
// Goal: a rank's death and the reason why MPI could not start are found in mpirun's output, and end up in the verdict. Method: real outputs
// of OpenMPI 4.1.
#include <catch2/catch.hpp>

#include "runtime/supervise/decide/supervision.h"

using namespace trainctl;

TEST_CASE("the launcher's words on a death are understood") {
  const auto killed_notice = parse_death_notice(
      "\nmpirun noticed that process rank 12 with PID 0 on node vm exited on signal 11 (Segmentation "
      "fault).\n");
  REQUIRE(killed_notice);
  CHECK(killed_notice->rank == 12);
  CHECK(killed_notice->signal == 11);
  const auto exit_notice = parse_death_notice(
      "The first process to do so was:\n\n  Process name: [[19821,1],2]\n  Exit code:    10\n");
  REQUIRE(exit_notice);
  CHECK(exit_notice->rank == 2);
  CHECK(exit_notice->exit_code == 10);
  CHECK_FALSE(parse_death_notice("all is well: Exit code: 0"));
}

TEST_CASE("why MPI could not start is quoted from mpirun's output") {
  const std::string dashes(74, '-');
  const std::string text = dashes + R"(
At least one pair of MPI processes are unable to reach each other for
MPI communications.  This means that no Open MPI device has indicated
that it can be used to communicate between these processes.

  Process 1 ([[8261,1],1]) is on host: vm
  BTLs attempted: tcp

Your MPI job is now going to abort; sorry.
)" + dashes + "\n" + dashes + "\nMPI_INIT has failed because at least one MPI process is unreachable\n" + dashes + "\n";
  const std::string reason =
      "At least one pair of MPI processes are unable to reach each other for MPI communications. "
      "(Process 1 ([[8261,1],1]) is on host: vm; BTLs attempted: tcp)";
  CHECK(launcher_reason(text) == reason);
  CHECK(launcher_reason("[vm:1] [[1,0],0] ORTE_ERROR_LOG: Out of resource\n" + text) == reason);
  CHECK(launcher_reason("[vm:1] [[1,0],0] ORTE_ERROR_LOG: Out of resource\n") == "[vm:1] [[1,0],0] ORTE_ERROR_LOG: Out of resource");
  CHECK(launcher_reason("") == "");
  CHECK(launcher_reason(dashes + "\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code.\n" + dashes) == "");
  Supervision s({.ranks = 2}, 0);
  for (const int rank : {0, 1}) s.hello(rank, 100 + rank, "host", 0);
  s.activity(1, Activity{.kind = Activity::waiting, .phase = RunPhase::starting, .operation = "MPI_Init"}, 1);
  s.launcher_output(text);
  s.lost(1, {}, 3);
  s.lost(0, {}, 3.01);
  s.launcher_ended(1 << 8, 3.05);
  for (double now_s = 3; !s.over() && now_s < 60; now_s += 0.1) {
    s.tick(now_s);
    s.all_gone(now_s);
  }
  REQUIRE(s.over());
  CHECK(s.verdict().cause == "rank 1 (pid 101) ended without a word while: starting, waiting in MPI_Init; mpirun says: " + reason);
}

TEST_CASE("ranks that end with the PMIx server of their node name it, in each phase") {
  for (const bool stepped : {false, true}) {
    Supervision s({.ranks = 2}, 0);
    for (const int rank : {0, 1}) s.hello(rank, 100 + rank, "host", 0);
    if (stepped) s.progressed(1, 0.5);
    s.lost(1, {}, 3);
    s.launcher_output("the PMIx server of node3 ended by itself\n");
    s.lost(0, {}, 3.01);
    for (double now_s = 3; !s.over() && now_s < 60; now_s += 0.1) {
      s.tick(now_s);
      s.all_gone(now_s);
    }
    REQUIRE(s.over());
    CHECK(s.verdict().cause.starts_with(
        "the PMIx server of node3 ended by itself, and its ranks with it: rank 1 (pid 101"));
  }
  // Of another node it is a second fact.
  Supervision s({.ranks = 2, .nodes = {{"node1", 0, 1}, {"node3", 1, 1}}}, 0);
  for (const int rank : {0, 1}) s.hello(rank, 100 + rank, "host", 0);
  s.lost(0, {}, 3);
  s.launcher_output("the PMIx server of node3 ended by itself\n");
  for (double now_s = 3; !s.over() && now_s < 60; now_s += 0.1) {
    s.tick(now_s);
    s.all_gone(now_s);
  }
  REQUIRE(s.over());
  CHECK(s.verdict().cause.starts_with("rank 0 (pid 100 on node1) ended without a word"));
  CHECK(s.verdict().cause.ends_with("; the PMIx server of node3 ended by itself"));
  CHECK(pmix_server_end("the PMIx server of node3 did not answer\n").empty());
  CHECK(pmix_server_end("x\nthe PMIx server of a did not answer\nthe PMIx server of b ended by itself\n") ==
        "the PMIx server of b ended by itself");
}
