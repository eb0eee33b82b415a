// Goal: a run in which a rank computed wrongly goes back to what was saved before the last check that agreed,
// and no further, however often; what a rank did wrong once, or in an earlier attempt, sends no run back.
// Method: a table of events and steps.
#include "runtime/supervise/decide/verified_state.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

using namespace trainctl;
using Catch::Matchers::Contains;

namespace {

std::string event_line(const std::string& kind, int64_t step, const std::string& more = "") {
  return fmt::format(R"({{"kind":"{}","step":{}{}}})", kind, step, more);
}
std::string differs(int64_t step, const std::string& answer) {
  return event_line("replay_differs", step, R"(,"answer":")" + answer + R"(","text":"rank 3 is wrong")");
}
std::string begun(int64_t step) {
  return fmt::format(R"({{"kind":"start","epoch":1,"from_step":{}}})", step);
}
/// As the supervisor finds it.
std::optional<int64_t> agreed_of(const std::vector<std::string>& steps) {
  for (auto line = steps.rbegin(); line != steps.rend(); ++line)
    if (const auto agreed = agreed_step(*line)) return agreed;
  return std::nullopt;
}
std::string trained(int64_t step, bool replayed) {
  return fmt::format(R"({{"v":1,"step":{},"loss":2{}}})", step, replayed ? R"(,"replayed":4)" : "");
}

}  // namespace

TEST_CASE("a run whose rank computes wrongly goes back to the last check that agreed", "[replay]") {
  const std::vector<std::string> steps = {trained(8, true), trained(15, false), trained(16, true),
                                          trained(20, false), trained(24, false)};
  const std::string start = begun(0), early = event_line("checkpoint", 10),
                    late = event_line("checkpoint", 20);
  struct Row {
    std::vector<std::string> events;
    std::optional<int64_t> at_most;
    bool may_begin_again = false;
  };
  for (const Row& row :
       {Row{{start, early}, {}}, Row{{start, early, differs(24, "go_on")}, {}},
        Row{{start, early, differs(24, "put_out")}, 16}, Row{{start, early, differs(24, "undecided")}, 16},
        Row{{start, late, differs(24, "put_out")}, 16, true}, Row{{start, differs(16, "put_out")}, 8, true},
        Row{{start, early, differs(24, "put_out"), start}, {}},
        Row{{start, early, differs(8, "put_out"), start, differs(24, "put_out")}, 16},
        Row{{start, early, "not JSON", differs(24, "put_out")}, 16},
        // the attempt began later than the run: it does not begin again
        Row{{start, begun(18), late, differs(24, "put_out")}, 16, false}}) {
    CAPTURE(row.events.size(), row.events.back());
    const auto back = back_to_verified(row.events, [&] { return steps; });
    REQUIRE(back.has_value() == row.at_most.has_value());
    if (!back) continue;
    CHECK(back->at_most == *row.at_most);
    CHECK(back->may_begin_again == row.may_begin_again);
    CHECK_THAT(back->why, Contains("rank 3 is wrong"));
  }
}

TEST_CASE("without a check that agreed a run goes back to what the attempt began from, and no further",
          "[replay]") {
  const std::vector<std::string> steps = {trained(20, false), trained(24, false)};
  const std::string doubt = differs(24, "put_out");
  struct Row {
    std::vector<std::string> events;
    int64_t at_most;
    bool may_begin_again;
  };
  for (const Row& row :
       {Row{{begun(0), doubt}, 0, true}, Row{{begun(0), event_line("checkpoint", 10), doubt}, 0, true},
        Row{{begun(0), event_line("checkpoint", 10), begun(20), doubt}, 20, false},
        // its checkpoints are removed
        Row{{begun(0), event_line("checkpoint", 10), begun(0), begun(20), doubt}, 20, false},
        // it began from the checkpoint of another run
        Row{{begun(12), doubt}, 12, true},
        Row{{begun(12), event_line("checkpoint", 12), doubt}, 12, false}}) {
    CAPTURE(row.events.size(), row.at_most);
    const auto back = back_to_verified(row.events, [&] { return steps; });
    REQUIRE(back);
    CHECK(back->at_most == row.at_most);
    CHECK(back->may_begin_again == row.may_begin_again);
    CHECK(back->doubt == 24);
    CHECK_THAT(back->why, Contains("no check has agreed before"));
    CHECK(way_back(row.events, agreed_of(steps)) == row.at_most);
  }
}

TEST_CASE("a run that goes back more than once does not go further back each time", "[replay]") {
  const std::string first = begun(0), doubt = differs(24, "undecided");
  // The line of the check that agreed behind step 16 is set aside, as all beyond step 10.
  const std::vector<std::string> left = {trained(8, true), trained(10, false)};
  std::vector<std::string> events = {first, event_line("checkpoint", 10), doubt};
  for (int times = 0; times < 3; ++times) {
    events.push_back(begun(10));
    events.push_back(doubt);
    CHECK(back_to_verified(events, [&] { return left; })->at_most == 10);
    CHECK(way_back(events, agreed_of(left)) == 10);
  }
  // A later check agreed again.
  const std::vector<std::string> more = {trained(8, true), trained(16, true), trained(24, false)};
  CHECK(back_to_verified(events, [&] { return more; })->at_most == 16);
  CHECK(way_back(events, agreed_of(more)) == 16);
  // Nothing verified was left: where it went on from is not.
  const std::vector<std::string> lost = {first, doubt, event_line("state_not_verified", 20), begun(20),
                                         differs(32, "undecided")};
  CHECK(back_to_verified(lost, [&] { return left; })->at_most == 8);
  // Nor what an attempt began from that followed no doubt, or what lies behind the doubt.
  CHECK(way_back({first, begun(20)}, agreed_of(left)) == 8);
  CHECK(back_to_verified({first, doubt, begun(20), differs(18, "undecided")}, [&] {
          return left;
        })->at_most == 8);
}

TEST_CASE("steps are read only where there is a doubt", "[replay]") {
  int reads = 0;
  const auto steps = [&] { return ++reads, std::vector<std::string>{}; };
  CHECK(!back_to_verified({begun(0), event_line("failure", 3)}, steps));
  CHECK(!back_to_verified({begun(0), differs(8, "put_out"), begun(0)}, steps));
  CHECK(reads == 0);
  CHECK(back_to_verified({begun(0), differs(8, "put_out")}, steps));
  CHECK(reads == 1);
}

TEST_CASE("a failure is undecided where ranks differ and nothing says which is wrong", "[replay]") {
  CHECK(is_undecided({begun(0), differs(8, "undecided")}));
  CHECK(is_undecided({begun(0), event_line("replicas_differ", 8)}));
  const auto judged = [](const char* wrong) {
    return fmt::format(R"({{"kind":"replicas_judged","step":8,"part":"1f","wrong":{}}})", wrong);
  };
  CHECK(is_undecided({begun(0), event_line("replicas_differ", 8), begun(0), judged("[]")}));
  CHECK(!is_undecided({begun(0), event_line("replicas_differ", 8), begun(0), judged(R"([{"rank":1}])")}));
  CHECK(!is_undecided({begun(0), differs(8, "put_out")}));
  CHECK(!is_undecided({begun(0), differs(8, "go_on")}));
  CHECK(!is_undecided({begun(0), differs(8, "undecided"), begun(0)}));
  CHECK(!is_undecided({begun(0), event_line("replicas_differ", 8), begun(0), event_line("failure", 9)}));
}
