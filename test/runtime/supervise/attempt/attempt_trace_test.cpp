// Goal: a supervisor takes a request to trace while the ranks run, orders them once, asks the nodes of
// recorded ranks for their clocks, and answers with what came of it; what fails costs the trace alone.
// Method: AttemptTrace with its messages kept by the test, a clock wound by hand, a real folder; the
// command's side is the real one.
#include <fmt/format.h>
#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/observe/console.h"
#include "runtime/run/record/journal.h"
#include "runtime/supervise/attempt/attempt_trace.h"
#include "test/support/child.h"
#include "test/support/hand_clock.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;

namespace {

struct TraceStage {
  TraceStage() {
    for (const char* part : {"logs", "failures", "ckpt"}) std::filesystem::create_directory(dir / part);
    log.emplace(real_file_system(), clock, run, console);
    trace.emplace(real_file_system(), clock, *log, run,
                  AttemptTrace::Attempt{
                      .send_ranks = [this](const protocol::Down& down) { orders.push_back(down.order); },
                      .ask_clock = [this](int node, int64_t number) { asked.emplace_back(node, number); },
                      .nodes = {{"node0", 0, 2}, {"node1", 2, 2}},
                      .ranks = 4,
                      .epoch = 6});
  }
  void turn(bool is_running = true) {
    clock.now_s += 0.6;
    trace->turn(is_running);
  }
  /// Every question asked so far is answered by nodes whose clocks are ahead.
  void answer_clocks() {
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto [node, number] = asked[i];
      clock.now_s += 0.001;
      trace->clock(node, number, fmt::format("{:.9f}", clock.now_s - 0.0005 + 50 * (node + 1)));
    }
    asked.clear();
  }
  void request(std::vector<int> ranks, int64_t number = 33) {
    inquiry.emplace(real_file_system(), run,
                    TraceRequest{.number = number, .steps = 2, .ranks = std::move(ranks)});
  }
  TraceResult result(int64_t number = 33) const {
    return {.number = number, .first_step = 5, .last_step = 6, .spans = 10};
  }
  const TemporaryFolder dir;
  const RunDirectory run{dir.path()};
  HandClock clock;
  std::string text;
  TerminalConsole console{{.write = [this](const std::string& t) { text += t; }}};
  std::optional<RunLog> log;
  std::vector<TraceOrder> orders;
  std::vector<std::pair<int, int64_t>> asked;
  std::optional<AttemptTrace> trace;
  std::optional<TraceLock> lock = TraceLock::try_take(run);
  std::optional<TraceInquiry> inquiry;
};

}  // namespace

TEST_CASE("a request is served from the order to the answer") {
  TraceStage s;
  s.turn();
  s.request({1, 2});
  s.turn(false);  // not all ranks are there
  CHECK(s.orders.empty());
  CHECK_FALSE(s.inquiry->answer());
  s.turn();
  REQUIRE(s.orders.size() == 1);
  CHECK(s.orders[0].number == 33);
  CHECK(s.orders[0].steps == 2);
  CHECK(s.orders[0].ranks == std::vector{1, 2});
  CHECK(s.orders[0].folder == s.inquiry->folder());
  REQUIRE(s.inquiry->answer());
  CHECK(s.inquiry->answer()->state == TraceState::recording);
  s.answer_clocks();
  s.trace->clock(0, 999, "1");                     // never asked
  s.trace->clock(0, (int64_t{6} << 32) + 1, "1");  // answered already
  s.trace->clock(0, (int64_t{5} << 32) + 1, "1");  // of the epoch before
  s.trace->handed_in(1, s.result());
  s.trace->handed_in(2, s.result());
  s.answer_clocks();
  s.turn();
  const auto answer = s.inquiry->answer();
  REQUIRE(answer);
  CHECK(answer->state == TraceState::complete);
  CHECK(answer->epoch == 6);
  CHECK(answer->first_step == 5);
  CHECK(answer->last_step == 6);
  REQUIRE(answer->nodes.size() == 2);
  CHECK(answer->nodes[0].after->offset_s == Approx(50));
  CHECK(answer->nodes[1].before->offset_s == Approx(100));
  CHECK(answer->unix_s - answer->monotonic_s == 1e9);
  const std::vector<std::string> events = lines_of(real_file_system(), s.run.events());
  REQUIRE_FALSE(events.empty());
  CHECK_THAT(events.back(), Contains(R"("kind":"traced")") && Contains(R"("last_step":6)"));
  CHECK_THAT(s.text, Contains("steps 5 to 6 were traced"));
  s.turn();
  CHECK(s.orders.size() == 1);
}

TEST_CASE("an attempt that ends, a rank without a recording, a width that changed") {
  {
    TraceStage s;
    s.request({1, 2});
    s.turn();
    s.trace->handed_in(1, s.result());
    s.trace->end("attempt 6 failed (rank 2 was killed)");
    CHECK(s.inquiry->answer()->reason ==
          "attempt 6 failed (rank 2 was killed) while 2 ranks recorded; nothing was kept");
    s.trace->end("again");
  }
  {
    TraceStage s;
    s.request({0});
    s.turn();
    s.trace->handed_in(0, {.number = 33, .problem = "no space left"});
    CHECK(s.inquiry->answer()->state == TraceState::failed);
    CHECK_THAT(s.inquiry->answer()->reason, Contains("no space left"));
  }
  {
    TraceStage s;
    s.request({0, 7});
    s.turn();
    CHECK(s.orders.empty());
    CHECK_THAT(s.inquiry->answer()->reason, Contains("the run has 4 ranks in attempt 6"));
  }
}

TEST_CASE("a command that gave up, and the next one") {
  TraceStage s;
  s.request({1}, 33);
  s.turn();
  s.inquiry.reset();
  s.request({0}, 34);
  s.trace->handed_in(1, s.result(33));  // of the request before
  s.turn();
  REQUIRE(s.orders.size() == 2);
  CHECK(s.orders[1].number == 34);
  s.trace->handed_in(1, s.result(33));
  CHECK(s.inquiry->answer()->handed_in == 0);
  s.trace->handed_in(0, s.result(34));
  s.answer_clocks();
  s.turn();
  s.turn();
  CHECK(s.inquiry->answer()->state == TraceState::complete);
}

TEST_CASE("a file system that fails is asked for requests less often, and a request waits in it") {
  TraceStage s;
  s.request({1});
  const std::string request = s.run.file("trace.request"), kept = s.run.file("kept");
  std::filesystem::rename(request, kept);
  std::filesystem::create_directory(request);  // cannot be read
  for (int i = 0; i < 10; ++i) s.turn();  // 6 s
  const std::string line = "a request to trace was lost: ";
  const size_t first = s.text.find(line);
  REQUIRE(first != std::string::npos);
  CHECK(s.text.find(line, first + 1) == std::string::npos);
  std::filesystem::remove(request);
  std::filesystem::rename(kept, request);
  for (int i = 0; i < 10; ++i) s.turn();
  CHECK(s.orders.size() == 1);
}

TEST_CASE("a request that is no request costs nothing but a line on the console") {
  TraceStage s;
  write_file(s.run.file("trace.request"), "{");
  s.turn();
  s.turn();
  CHECK(s.orders.empty());
  CHECK_THAT(s.text, Contains("a request to trace was lost: ") && Contains("trace.request is damaged"));
}
