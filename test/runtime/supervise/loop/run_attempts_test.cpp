// Goal: Recovery learns how each attempt ended, and which attempt another supervisor has left running.
// Method: every outcome of an attempt; files of attempts at each width, from a checkpoint and from memory.
#include "runtime/supervise/loop/run_attempts.h"

#include <catch2/catch.hpp>

using namespace trainctl;

TEST_CASE("each outcome of an attempt is an end for recovery", "[run_attempts]") {
  struct Case {
    Verdict::Outcome outcome;
    bool regrouped;
    AttemptEnd::How how;
  };
  for (const Case& c :
       {Case{Verdict::finished, false, AttemptEnd::finished},
        Case{Verdict::finished, true, AttemptEnd::finished},  // it was at its last step
        Case{Verdict::stopped, false, AttemptEnd::stopped},
        Case{Verdict::stopped, true, AttemptEnd::regrouped},
        Case{Verdict::aborted, false, AttemptEnd::aborted}, Case{Verdict::aborted, true, AttemptEnd::aborted},
        Case{Verdict::failed, false, AttemptEnd::failed}, Case{Verdict::failed, true, AttemptEnd::failed}}) {
    INFO(int(c.outcome) << (c.regrouped ? " regrouped" : ""));
    const Verdict verdict{
        .outcome = c.outcome, .code = ErrorCode::kHang, .rank = 5, .cause = "rank 5 sent no heartbeat"};
    const AttemptEnd end = end_of(verdict, c.regrouped);
    CHECK(end.how == c.how);
    CHECK(end.code == ErrorCode::kHang);
    CHECK(end.cause == "rank 5 sent no heartbeat");
    CHECK(end.rank == 5);
    CHECK(end.node.empty());
  }
}

TEST_CASE("the attempt of another supervisor is the decision that began it", "[run_attempts]") {
  const std::vector<Width> widths = {
      {.data = 4, .ranks = 8}, {.data = 2, .ranks = 4}, {.data = 1, .ranks = 2}};
  AttemptFile file;
  file.epoch = 7;
  for (const Width& width : widths) {
    const int first = width.ranks / 2;
    file.nodes = {{.name = "b", .first = 0, .count = first},
                  {.name = "a", .first = first, .count = width.ranks - first}};
    const StartAttempt start = start_of(file, widths);
    CHECK(start.width.data == width.data);
    CHECK(start.width.ranks == width.ranks);
    CHECK(start.nodes == std::vector<std::string>{"b", "a"});
    CHECK_FALSE(start.step);
    CHECK_FALSE(start.in_memory);
  }
  file.memory = MemoryState{.step = 41, .epoch = 6, .ranks = 2};
  const StartAttempt start = start_of(file, widths);
  CHECK(start.step == 41);
  REQUIRE(start.in_memory);
  CHECK(start.in_memory->step == 41);
  CHECK(start.in_memory->epoch == 6);
  CHECK(start.stage_layers.empty());
  file.overrides = {"parallelism.data=1", stage_layers_setting({1, 3})};
  CHECK(start_of(file, widths).stage_layers == std::vector<int64_t>{1, 3});
}

TEST_CASE("a weak place of second copies is said at each attempt that changes it", "[run_attempts]") {
  std::string known;
  const Problem none = Problem::none(), one("node a holds copies of its own replica"), other("node b does");
  CHECK(second_copies_note(none, known).empty());
  const std::string said = second_copies_note(one, known);
  CHECK(said == "   second copies of the memory of nodes: node a holds copies of its own replica");
  CHECK(second_copies_note(one, known).empty());
  CHECK(second_copies_note(other, known) == "   second copies of the memory of nodes: node b does");
  CHECK(second_copies_note(none, known) ==
        "   second copies of the memory of nodes: no such weakness any more");
  CHECK(second_copies_note(none, known).empty());
  CHECK(second_copies_note(one, known) == said);
}
