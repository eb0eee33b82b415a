// Goal: events.jsonl has each checkpoint of an attempt once, however many supervisors saw it; a note that
//       several ranks cause comes once.
// Method: the records of one supervisor after another in the same run directory, also of one that died
//         between the rename and its record.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <sstream>

#include "runtime/base/json.h"
#include "runtime/observe/console.h"
#include "runtime/supervise/attempt/run_log.h"
#include "test/support/hand_clock.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;

namespace {

/// A run directory, and what the console says of it.
struct Logged {
  Logged() { real_file_system().make_directory(run.file("logs")); }
  RunLog open() { return RunLog(real_file_system(), real_clock(), run, console); }
  const test::TemporaryFolder dir;
  const RunDirectory run{dir.path()};
  std::string text;
  TerminalConsole console{{.write = [this](const std::string& part) { text += part; }}};
};

}  // namespace

TEST_CASE("a checkpoint that a supervisor before has recorded is not recorded again") {
  Logged logged;
  const auto saved_before = [&](int64_t step) {
    RunLog log = logged.open();
    log.saved_before({.ok = true, .step = step, .message = "hash"});
    CHECK(log.status().saved_step == step);
  };
  const auto recorded = [&] {
    std::string steps;
    for (const std::string& line : lines_of(real_file_system(), logged.run.events())) {
      const Json event = try_parse_json(line);
      if (event.at("kind") == "checkpoint") steps += dump_json(event.at("step")) + " ";
    }
    return steps;
  };
  {
    RunLog log = logged.open();
    log.event(EventKind::start, R"({"epoch":1})");
    log.saved({.ok = true, .step = 10, .message = "hash"}, 0.1);
  }
  saved_before(10);
  CHECK(recorded() == "10 ");
  saved_before(20);  // published, and not recorded
  saved_before(20);
  CHECK(recorded() == "10 20 ");
  // An attempt that went back saves the step anew.
  logged.open().event(EventKind::start, R"({"epoch":2})");
  saved_before(20);
  CHECK(recorded() == "10 20 20 ");
}

TEST_CASE("that there are no copies in memory is said once, whichever ranks report it") {
  Logged logged;
  std::string& text = logged.text;
  RunLog log = logged.open();
  for (const char* event : {R"({"rank":3,"reason":"/dev/shm is full"})", R"({"rank":1,"reason":"the same"})"})
    log.rank_event(EventKind::memory_off, event);
  CHECK(text.find("no copies of the state in memory: /dev/shm is full") != std::string::npos);
  CHECK(text.find("the same") == std::string::npos);
}

TEST_CASE("an older save that is published later does not set the saved step back") {
  Logged logged;
  RunLog log = logged.open();
  log.saved({.ok = true, .step = 20, .message = "hash"}, 1);
  log.saved({.ok = true, .step = 10, .message = "hash"}, 9);
  CHECK(log.status().saved_step == 20);
  log.saved_before({.ok = true, .step = 10, .message = "hash"});
  log.saved_before({.ok = true, .step = 15, .message = "hash"});
  CHECK(log.status().saved_step == 20);
  // An attempt that goes back says what is saved of its line.
  log.status().saved_step = 10;
  log.saved({.ok = true, .step = 15, .message = "hash"}, 1);
  CHECK(log.status().saved_step == 15);
}

TEST_CASE("that copies fail is said once for each kind, and again after they were made") {
  Logged logged;
  std::string& text = logged.text;
  RunLog log = logged.open();
  const auto said_of = [&](const char* tier, int64_t step, int rank) {
    text.clear();
    log.rank_event(
        EventKind::save_failed,
        fmt::format(R"({{"tier":"{}","step":{},"rank":{},"reason":"no route"}})", tier, step, rank));
    return text;
  };
  const auto step = [&](const std::string& line) { log.step({.line = step_view(line), .log = false}); };
  CHECK(said_of("partner", 8, 3) ==
        " ! rank 3: the second copy, on another node, of step 8 failed, training goes on and it is tried "
        "again: "
        "no route\n");
  CHECK(said_of("partner", 8, 4).empty());
  CHECK(said_of("partner", 12, 3).empty());
  CHECK(said_of("memory", 12, 1).find(" ! rank 1: the copy in memory of step 12 failed") == 0);
  CHECK(said_of("memory", 13, 1).empty());
  text.clear();
  step(R"({"step":13,"staged_step":14,"partner_step":11})");  // an older one that was whole before
  CHECK(text.empty());
  step(R"({"step":14,"staged_step":14,"partner_step":14})");
  CHECK(text == "   second copies are made again (step 14)\n");
  CHECK_FALSE(said_of("partner", 16, 3).empty());
  CHECK_FALSE(said_of("memory", 16, 3).empty());
  log.reopen_metrics();  // partners are chosen anew
  CHECK_FALSE(said_of("partner", 2, 3).empty());
}

TEST_CASE("the status has the newest step that is whole in memory, as the ranks report it") {
  Logged logged;
  RunLog log = logged.open();
  log.reopen_metrics();
  const auto staged_after = [&](const std::string& line) {
    log.step({.line = step_view(line)});
    return log.status().staged_step;
  };
  CHECK(staged_after(R"({"step":1})") == -1);
  CHECK(staged_after(R"({"step":2,"staged_step":1})") == 1);
  CHECK(staged_after(R"({"step":3})") == 1);  // an attempt that has begun no copy
  CHECK(staged_after(R"({"step":4,"staged_step":-1})") == -1);
  const auto second_copies_after = [&](const std::string& line) {
    log.step({.line = step_view(line)});
    return std::pair(log.status().partner_step, log.status().partner_nodes);
  };
  CHECK(second_copies_after(R"({"step":4})") == std::pair<int64_t, int>(-1, 0));
  CHECK(second_copies_after(R"({"step":5,"partner_step":4,"partner_nodes":3})").first == 4);
  CHECK(second_copies_after(R"({"step":6})") == std::pair<int64_t, int>(4, 3));
  CHECK(second_copies_after(R"({"step":7,"partner_step":-1})").first == -1);
}

TEST_CASE("records wait in memory for a file system that does not answer, and none is lost") {
  Logged logged;
  // A pipe that is full is a file that does not take what is written until somebody reads.
  REQUIRE(::mkfifo(logged.run.events().c_str(), 0600) == 0);
  const int disk = ::open(logged.run.events().c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  const std::string page(4096, '\n');
  while (::write(disk, page.data(), page.size()) > 0) {
  }
  std::string text;
  {
    RunLog log = logged.open();
    for (int step = 1; step <= 500; ++step)
      log.event(EventKind::checkpoint, fmt::format(R"({{"step":{}}})", step));
    CHECK_FALSE(log.is_written());
    char bytes[4096];
    while (!log.is_written())
      if (const ssize_t n = ::read(disk, bytes, sizeof bytes); n > 0) text.append(bytes, size_t(n));
    for (ssize_t n; (n = ::read(disk, bytes, sizeof bytes)) > 0;) text.append(bytes, size_t(n));
  }
  ::close(disk);
  int64_t last = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (const Json event = try_parse_json(line); event.is_object())
      CHECK(event.at("step").get<int64_t>() == ++last);
  CHECK(last == 500);
}

TEST_CASE("a node whose ranks compute longer is an event, from the records of the steps") {
  for (const bool looks : {true, false}) {
    Logged logged;
    test::HandClock clock;
    RunLog log(real_file_system(), clock, logged.run, logged.console);
    log.look_for_slow_ranks(looks);
    log.set_nodes([] {
      std::vector<NodeStatus> nodes;
      for (int i = 0; i < 4; ++i)
        nodes.push_back({.name = "n" + std::to_string(i), .first = 4 * i, .count = 4});
      nodes.push_back({.name = "spare"});
      return nodes;
    });
    for (int64_t step = 1; step <= 40; ++step) {
      std::vector<RankTimes> times(16);
      for (size_t r = 0; r < times.size(); ++r) {
        times[r].step_s = 2;
        times[r].communication_s = 2 - (r == 9 ? 1.4 : 1) * (1 + 0.001 * double((r * 5 + size_t(step)) % 7));
      }
      clock.now_s += 2;
      log.step(record_of({.line = {.step = step}, .work = StepWork{.tokens = 1}}, times, {}));
    }
    log.await_files();
    std::vector<Json> events;
    for (const std::string& line : lines_of(real_file_system(), logged.run.events()))
      if (Json event = try_parse_json(line); event.at("kind") == "slow_ranks") events.push_back(event);
    REQUIRE(events.size() == (looks ? 1 : 0));
    CHECK((logged.text.find("n2, rank 9: computing takes 40 % longer") != std::string::npos) == looks);
    if (!looks) continue;
    CHECK(events[0].at("node") == "n2");
    CHECK(events[0].at("cause") == "compute");
    CHECK(events[0].at("ranks") == Json{9});
  }
}
