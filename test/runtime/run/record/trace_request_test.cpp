// Goal: a request to trace reaches the supervisor once, its answers reach the command, and nothing of it is
// left behind; a killed command's request is dropped; two commands do not trace at once.
// Method: both sides on one folder, with a clock that the test moves; the lock across a process that is
// killed.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/run/record/trace_request.h"
#include "test/support/child.h"
#include "test/support/hand_clock.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

const TraceRequest kRequest{.number = 12, .steps = 3, .ranks = {0, 2, 5}};

}  // namespace

TEST_CASE("a request and its answers") {
  const TemporaryFolder dir;
  const RunDirectory run{dir.path()};
  FileSystem& fs = real_file_system();
  HandClock clock;
  TraceRequests requests(fs, clock, run);
  CHECK_FALSE(requests.take());
  {
    const auto lock = TraceLock::try_take(run);
    REQUIRE(lock);
    write_file(dir / "trace-not", "");
    std::filesystem::create_directories(dir / "trace/11/x");  // of a command that was killed
    write_file(dir / "trace/steps-1-3.json.gz", "kept");
    const TraceInquiry inquiry(fs, run, kRequest);
    CHECK_FALSE(std::filesystem::exists(dir / "trace/11"));
    CHECK(inquiry.folder() == dir / "trace/12");
    CHECK_FALSE(inquiry.answer());
    CHECK_FALSE(requests.take());  // it has just looked
    clock.now_s += 0.6;
    const auto taken = requests.take();
    REQUIRE(taken);
    CHECK(taken->number == 12);
    CHECK(taken->steps == 3);
    CHECK(taken->ranks == kRequest.ranks);
    clock.now_s += 0.6;
    CHECK_FALSE(requests.take());  // once
    TraceAnswer answer{.number = 12, .epoch = 4, .first_step = 8};
    answer.nodes = {{.name = "a", .first = 0, .count = 2, .before = ClockOffset{1, 2, 3}}, {.name = "b"}};
    CHECK(requests.answer(answer));
    REQUIRE(inquiry.answer());
    CHECK(inquiry.answer()->state == TraceState::recording);
    answer.state = TraceState::failed;
    answer.reason = "rank 1 has no recording";
    CHECK(requests.answer(answer));
    const auto last = inquiry.answer();
    REQUIRE(last);
    CHECK(last->reason == answer.reason);
    CHECK(last->epoch == 4);
    REQUIRE(last->nodes.size() == 2);
    CHECK(last->nodes[0].before->error_s == 3);
    CHECK_FALSE(last->nodes[0].after);
    CHECK_FALSE(last->nodes[1].before);
  }
  // The command has left: nothing but its result and its lock file is there.
  CHECK_FALSE(requests.answer({.number = 12}));
  CHECK_FALSE(std::filesystem::exists(dir / "trace/12"));
  CHECK(std::filesystem::exists(dir / "trace/steps-1-3.json.gz"));
  CHECK_FALSE(std::filesystem::exists(dir / "trace.request"));
}

TEST_CASE("a request whose command has ended is dropped, and a folder without a result is removed") {
  const TemporaryFolder dir;
  const RunDirectory run{dir.path()};
  FileSystem& fs = real_file_system();
  HandClock clock;
  TraceRequests requests(fs, clock, run);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = TraceLock::try_take(run);
    const TraceInquiry inquiry(fs, run, kRequest);
    ::raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(std::filesystem::exists(dir / "trace.request"));
  CHECK_FALSE(TraceLock::is_held(run));
  CHECK_FALSE(requests.take());
  CHECK_FALSE(std::filesystem::exists(dir / "trace.request"));
  const auto lock = TraceLock::try_take(run);
  CHECK(lock);
  { const TraceInquiry next(fs, run, {.number = 13, .steps = 1, .ranks = {0}}); }
  CHECK_FALSE(std::filesystem::exists(dir / "trace"));
}

TEST_CASE("one command at a time") {
  const TemporaryFolder dir;
  const RunDirectory run{dir.path()};
  CHECK_FALSE(TraceLock::is_held(run));
  {
    const auto first = TraceLock::try_take(run);
    REQUIRE(first);
    CHECK(TraceLock::is_held(run));
    CHECK_FALSE(TraceLock::try_take(run));
  }
  CHECK_FALSE(TraceLock::is_held(run));
  CHECK(TraceLock::try_take(run));
}

TEST_CASE("a request that is no request is refused with a sentence") {
  const TemporaryFolder dir;
  const RunDirectory run{dir.path()};
  HandClock clock;
  TraceRequests requests(real_file_system(), clock, run);
  const auto lock = TraceLock::try_take(run);
  for (const char* text : {"", "{}", "{\"number\":1,\"steps\":\"x\",\"ranks\":[]}"}) {
    write_file(dir / "trace.request", text);
    clock.now_s += 1;
    CHECK_THROWS_WITH(requests.take(), Catch::Contains("trace.request is damaged"));
    clock.now_s += 1;
    CHECK_FALSE(requests.take());  // it is gone
  }
}
