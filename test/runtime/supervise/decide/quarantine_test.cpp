// Goal: a place goes out exactly when the rules say so and comes back by cool-down or by hand; what is on the
// list survives the process, damage is refused, and two writers lose no entry. Method: all short histories of
// events on the list (exhaustive) held to the rules one by one; the file with writers side by side, with a
// held lock on a hand-wound clock, and cut at every byte.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <optional>
#include <set>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/supervise/decide/quarantine.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using test::TemporaryFolder;

namespace {

constexpr QuarantineRules kRules = {.failures = 3, .window_s = 100, .cool_down_s = 1000};

NodeEvidence evidence(NodeEvidence::Kind kind, double now_s) {
  return {.kind = kind, .run = "run-1", .epoch = 4, .cause = "rank 3 was killed", .unix_s = now_s};
}

class HandClock final : public Clock {
 public:
  double monotonic_s() override { return now_s; }
  double unix_s() override { return now_s; }
  void sleep_s(double seconds) override { now_s += seconds; }
  double now_s = 0;
};

/// Its time does not pass: who waits for a slow disk never gives up.
class StillClock final : public Clock {
 public:
  double monotonic_s() override { return 0; }
  double unix_s() override { return 0; }
  void sleep_s(double seconds) override { real_clock().sleep_s(seconds); }
};

}  // namespace

TEST_CASE("failures count within the window alone, and zero never suffices") {
  const std::vector<double> times = {1, 50, 99};
  CHECK(enough_failures(times, 100, kRules));
  CHECK(!enough_failures(times, 101, kRules));  // the first is 100 s old
  CHECK(!enough_failures(std::vector<double>{98, 99}, 100, kRules));
  CHECK(!enough_failures(times, 100, {.failures = 0}));
}

TEST_CASE("a running supervisor takes a node back after its time, or when a person has lifted it") {
  QuarantineList list;
  const QuarantineRules once = {.failures = 1, .cool_down_s = 1000};
  NodesOut out;
  for (const char* name : {"a", "b", "c"}) {
    list.add(name, -1, evidence(NodeEvidence::failure, 10), once, 10);
    out.add(name, list.out_until_s(name, 10));
  }
  CHECK(list.out_until_s("a", 10) == 1010);
  CHECK(list.out_until_s("x", 10) == 0);
  CHECK(out.take_back(list, 20).empty());
  list.lift("b", "eva", 30);
  CHECK(out.take_back(list, 30) == std::vector<std::string>{"b"});
  CHECK(out.take_back(list, 40).empty());
  // Another run has found it broken, too: it stays for longer than was known.
  list.lift("c", "eva", 50);
  list.add("c", 1, evidence(NodeEvidence::failed_probe, 50), once, 50);
  CHECK(out.take_back(list, 1010) == std::vector<std::string>{"a"});
  CHECK_FALSE(out.none());
  // A list that cannot be read: the times that are known count.
  CHECK(out.take_back(std::nullopt, 1049).empty());
  CHECK(out.take_back(std::nullopt, 1050) == std::vector<std::string>{"c"});
  CHECK(out.none());
  // A node that could not be put on the list: that the list lacks it says nothing.
  out.add("d", 2000, false);
  CHECK(out.take_back(list, 1999).empty());
  CHECK(out.take_back(list, 2000) == std::vector<std::string>{"d"});
}

TEST_CASE("all histories of six events put a node out exactly by the rules") {
  enum Event { failure, probe, slow, lift, moment, long_time, kEvents };
  int histories = 1, outs = 0;
  for (int i = 0; i < 6; ++i) histories *= kEvents;
  for (int code = 0; code < histories; ++code) {
    QuarantineList list;
    double now_s = 10, until_s = 0;
    int times_out = 0;
    std::vector<double> open;  // failures that count
    bool as_expected = true;
    for (int i = 0, rest = code; i < 6; ++i, rest /= kEvents) {
      const Event event = Event(rest % kEvents);
      const bool out = now_s < until_s;
      now_s += event == moment ? 60 : event == long_time ? 1500 : 1;
      if (event <= slow) {
        const bool was_out = now_s < until_s;
        if (out && !was_out) open.clear();
        if (event == failure && !was_out) open.push_back(now_s);
        std::erase_if(open, [&](double t) { return t <= now_s - kRules.window_s; });
        const bool goes = !was_out && (event != failure || open.size() >= 3);
        const auto kind = event == failure ? NodeEvidence::failure
                          : event == probe ? NodeEvidence::failed_probe
                                           : NodeEvidence::slow;
        as_expected = as_expected && list.add("n1", -1, evidence(kind, now_s), kRules, now_s) == goes;
        if (goes) {
          until_s = now_s + 1000 * (1 << times_out++);
          open.clear();
          ++outs;
        }
      } else if (event == lift) {
        as_expected = as_expected && list.lift("n1", "me", now_s) == now_s < until_s;
        until_s = std::min(until_s, now_s);
        open.clear();
      }
      as_expected = as_expected && list.nodes_out(now_s).size() == size_t(now_s < until_s);
    }
    INFO("history " << code);
    CHECK(as_expected);
  }
  CHECK(outs > 10000);
}

TEST_CASE("the cool-down doubles each time, up to sixteen times the first") {
  QuarantineList list;
  double now_s = 0;
  for (const int factor : {1, 2, 4, 8, 16, 16}) {
    REQUIRE(list.add("n1", -1, evidence(NodeEvidence::slow, now_s), kRules, now_s));
    CHECK(list.entries()[0].out_until_s - now_s == 1000 * factor);
    now_s = list.entries()[0].out_until_s;
    CHECK(list.nodes_out(now_s).empty());
  }
}

TEST_CASE("a GPU out takes its node out; lifting the node lifts its GPUs, lifting a GPU leaves the rest") {
  QuarantineList list;
  for (const int gpu : {0, 1})
    REQUIRE(list.add("n1", gpu, evidence(NodeEvidence::failed_probe, 5), kRules, 5));
  REQUIRE(list.add("n2", -1, evidence(NodeEvidence::failed_probe, 5), kRules, 5));
  CHECK(list.nodes_out(6) == std::vector<std::string>{"n1", "n2"});
  CHECK(list.lift("n1:gpu0", "me", 6));
  CHECK(list.nodes_out(6) == std::vector<std::string>{"n1", "n2"});
  CHECK(list.lift("n1", "me", 7));
  CHECK(list.nodes_out(7) == std::vector<std::string>{"n2"});
  CHECK(!list.lift("n3", "me", 7));
}

TEST_CASE("the list is read back as it was written, and nothing else is accepted") {
  QuarantineList list;
  for (int i = 0; i < 20; ++i) list.add("n1", 2, evidence(NodeEvidence::failure, i), kRules, i);
  list.add("näher \"1\"", -1, evidence(NodeEvidence::slow, 3.25), kRules, 3.25);
  list.lift("n1", "a person", 30);
  const std::string text = list.to_json();
  CHECK(QuarantineList::from_json(text).to_json() == text);
  CHECK(list.entries()[0].evidence.size() == 16);
  CHECK(list.entries()[0].count == 20);
  for (size_t size = 0; size + 2 < text.size(); ++size)
    CHECK_THROWS_AS(QuarantineList::from_json(text.substr(0, size)), Error);
  CHECK_THROWS_AS(QuarantineList::from_json(R"({"v":2,"entries":[]})"), Error);
  CHECK_THROWS_AS(QuarantineList::from_json(R"({"v":1,"entries":[{"node":7}]})"), Error);
  CHECK(list.describe(31).find("n1:gpu2              lifted by a person            20 x   12s ago, run run-1 "
                               "attempt 4: rank 3 was "
                               "killed\n") == 0);
}

TEST_CASE("writers beside each other lose no entry") {
  const TemporaryFolder dir;
  const std::string path = dir.path() + "/below/quarantine.json";
  constexpr int kWriters = 4, kEach = 10;
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w)
    writers.emplace_back([&, w] {
      StillClock clock;
      QuarantineFile file(real_file_system(), clock, path, "here");
      for (int i = 0; i < kEach; ++i)
        file.update([&](QuarantineList& list) {
          list.add(fmt::format("n{}-{}", w, i), -1, evidence(NodeEvidence::slow, 1), kRules, 1);
        });
    });
  for (std::thread& writer : writers) writer.join();
  const QuarantineList list = QuarantineFile(real_file_system(), real_clock(), path, "here").read();
  CHECK(list.entries().size() == kWriters * kEach);
  CHECK(list.nodes_out(2).size() == kWriters * kEach);
}

TEST_CASE("a lock that is held is an error after five seconds, and a change that throws changes nothing") {
  const TemporaryFolder dir;
  const std::string path = dir.path() + "/quarantine.json";
  HandClock clock;
  QuarantineFile file(real_file_system(), clock, path, "here");
  file.update([](QuarantineList& list) { list.add("n1", -1, evidence(NodeEvidence::slow, 1), kRules, 1); });
  const int fd = ::open((path + ".lock").c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(::flock(fd, LOCK_EX | LOCK_NB) == 0);
  CHECK_THROWS_WITH(file.update([](QuarantineList&) {}), Catch::Contains("for more than 5 s"));
  CHECK(clock.now_s == Approx(5).margin(0.1));
  ::close(fd);
  CHECK_THROWS_AS(file.update([](QuarantineList& list) {
    list.lift("n1", "", 2);
    throw Error(ErrorCode::kInternal, "broken");
  }),
                  Error);
  CHECK(file.read().nodes_out(2).size() == 1);
  real_file_system().replace_text(path, "{}");
  CHECK_THROWS_WITH(file.read(), Catch::Contains(path + " cannot be used: it is no list"));
}

TEST_CASE("the path of the list is that of the spec, of the environment, or below the home") {
  const auto saved = [](const char* name) {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
  const std::vector<const char*> names = {"TRAINCTL_QUARANTINE", "XDG_CONFIG_HOME", "HOME"};
  std::vector<std::optional<std::string>> before;
  for (const char* name : names) before.push_back(saved(name));
  for (const char* name : names) ::unsetenv(name);
  CHECK(quarantine_path("").empty());
  CHECK_THROWS_WITH(quarantine_of_user(real_file_system(), real_clock(), "", "c"),
                    Catch::Contains("--list FILE"));
  ::setenv("HOME", "/home/a", 1);
  CHECK(quarantine_path("") == "/home/a/.config/trainctl/quarantine.json");
  ::setenv("XDG_CONFIG_HOME", "/config", 1);
  CHECK(quarantine_path("") == "/config/trainctl/quarantine.json");
  ::setenv("TRAINCTL_QUARANTINE", "/shared/list.json", 1);
  CHECK(quarantine_path("") == "/shared/list.json");
  CHECK(quarantine_path("/spec.json") == "/spec.json");
  for (size_t i = 0; i < names.size(); ++i)
    before[i] ? ::setenv(names[i], before[i]->c_str(), 1) : ::unsetenv(names[i]);
}

TEST_CASE("a node is out by one run alone where all evidence against it is of that run") {
  QuarantineList list;
  const auto failure = [](const std::string& run, double t) {
    return NodeEvidence{
        .kind = NodeEvidence::failure, .run = run, .epoch = 1, .cause = "it broke", .unix_s = t};
  };
  list.add("n1", -1, failure("r", 5), {.failures = 1}, 5);
  list.add("n2", -1, failure("s", 5), {.failures = 2}, 5);
  list.add("n2", -1, failure("r", 6), {.failures = 2}, 6);
  list.add("n3", -1, failure("r", 5), {.failures = 1}, 5);
  list.add("n3", 0, {.kind = NodeEvidence::failed_probe, .run = "r", .unix_s = 5}, {.failures = 1}, 5);
  REQUIRE(list.nodes_out(6) == std::vector<std::string>{"n1", "n2", "n3"});
  CHECK(list.only_by("n1", "r", 6));
  CHECK_FALSE(list.only_by("n1", "s", 6));
  CHECK_FALSE(list.only_by("n2", "r", 6));
  CHECK_FALSE(list.only_by("n3", "r", 6));
  CHECK_FALSE(list.only_by("n4", "r", 6));
}

TEST_CASE("a node is out in its own cluster alone, and can be lifted from another") {
  const TemporaryFolder dir;
  const std::string path = dir.path() + "/quarantine.json";
  const auto of = [&](const char* cluster) {
    return QuarantineFile(real_file_system(), real_clock(), path, cluster);
  };
  of("north").update(
      [](QuarantineList& list) { list.add("node1", 2, evidence(NodeEvidence::slow, 1), kRules, 1); });
  CHECK(of("north").read().nodes_out(2) == std::vector<std::string>{"node1"});
  CHECK(of("south").read().nodes_out(2).empty());
  CHECK(of("south").read().why_out("node1", 2).empty());
  CHECK_FALSE(of("south").read().only_by("node1", "run", 2));
  CHECK(of("north").read().describe(2).find("node1:gpu2 ") == 0);
  CHECK(of("south").read().describe(2).find("north/node1:gpu2 ") == 0);
  // Evidence of the other cluster is about another machine.
  of("south").update(
      [](QuarantineList& list) { list.add("node1", 2, evidence(NodeEvidence::slow, 1), kRules, 1); });
  of("south").update([](QuarantineList& list) { CHECK(list.lift("node1", "a person", 2)); });
  CHECK(of("north").read().nodes_out(3) == std::vector<std::string>{"node1"});
  of("south").update([](QuarantineList& list) { CHECK(list.lift("north/node1", "a person", 3)); });
  CHECK(of("north").read().nodes_out(4).empty());
}

TEST_CASE("an entry of a list from before clusters were named counts everywhere") {
  QuarantineList list = QuarantineList::from_json(
      R"({"v":1,"entries":[{"node":"n1","gpu":-1,"count":1,"times_out":1,"out_since_s":1,"out_until_s":9,
          "lifted_s":0,"lifted_by":"","evidence":[]}]})");
  list.set_cluster("north");
  CHECK(list.nodes_out(2) == std::vector<std::string>{"n1"});
}
