// Goal: a ring holds the last things that a rank did, in order and with their times, also after SIGKILL in
// the middle of a write; progress and the peers of one wait take no entries; what it costs is printed.
// Method: activities as the trainer reports them; a child that writes as fast as it can and is killed, many
// times; text and back.
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>

#include "runtime/run/wire/flight_ring.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using trainctl::test::TemporaryFolder;

namespace {

Activity forward_of(int64_t step, int micro_batch) {
  return {.phase = RunPhase::forward, .step = step, .micro_batch = micro_batch, .virtual_stage = 0};
}

Activity waiting_in(Activity activity, const char* operation, std::initializer_list<int> peers) {
  activity.kind = Activity::waiting;
  activity.communicator = "tp group of stage 0, dp 0";
  activity.operation = operation;
  for (const int peer : peers) activity.add_peer(peer);
  return activity;
}

}  // namespace

TEST_CASE("a ring holds instructions and waits, and not the progress within them", "[flight]") {
  const TemporaryFolder folder;
  const std::string path = folder / "ring";
  const auto ring = FlightRing::create(path, 3);
  REQUIRE(ring);
  CHECK_FALSE(FlightRing::create(path, 3));  // one writer
  CHECK_FALSE(FlightRing::read(folder / "none"));
  CHECK(FlightRing::read(path)->entries.empty());

  Activity loading{.phase = RunPhase::loading};
  ring->note(loading, 10);
  for (int done = 1; done < 1000; ++done) loading.done = uint64_t(done), ring->note(loading, 11);
  ring->note(forward_of(1, 0), 20);
  ring->note(waiting_in(forward_of(1, 0), "all-reduce", {1, 2}), 30);
  ring->note(waiting_in(forward_of(1, 0), "all-reduce", {2}), 40);  // one has come
  ring->note(forward_of(1, 0), 50);
  ring->note(forward_of(1, 1), 60);
  ring->note(forward_of(2, 0), 70);
  ring->note(forward_of(2, 0), 80);  // another one of the same kind
  const FlightLog log = *FlightRing::read(path);
  CHECK(log.rank == 3);
  CHECK(log.pid == ::getpid());
  CHECK(log.written == 7);
  REQUIRE(log.entries.size() == 7);
  std::string shown;
  for (const FlightEntry& e : log.entries)
    shown += fmt::format("{}:{}/{}{}{} ", e.unix_ns, e.instruction, e.index,
                         e.activity.is_waiting() ? "w" : "", e.goes_on ? "g" : "");
  CHECK(shown == "10:1/0 20:2/0 30:2/0w 50:2/0g 60:3/1 70:4/0 80:5/1 ");
  CHECK(log.entries[2].activity.peer_count == 1);
  CHECK(log.entries[2].activity.waits_for(2));

  for (int i = 0; i < 1000; ++i) ring->note(forward_of(3, i), 100 + i);
  const FlightLog full = *FlightRing::read(path);
  CHECK(full.written == 1007);
  REQUIRE(full.entries.size() == FlightRing::kEntries);
  CHECK(full.entries.front().unix_ns == 1100 - FlightRing::kEntries);
  CHECK(full.entries.back().activity.micro_batch == 999);
}

TEST_CASE("the text of rings has them all again, and is bounded", "[flight]") {
  FlightLog log{.rank = 7,
                .pid = 12,
                .epoch = 3,
                .ranks = 9,
                .host = "node\"1",
                .stopped = true,
                .lost_unix_s = 1.75e9,
                .written = 90};
  for (int i = 0; i < 90; ++i)
    log.entries.push_back({.unix_ns = 1'750'000'000'123'457'000 + i,
                           .instruction = uint64_t(i),
                           .index = uint32_t(i),
                           .goes_on = i % 2 == 1,
                           .activity = i % 3 ? forward_of(5, i) : waiting_in(forward_of(5, i), "send", {1})});
  const std::string text = flight_text({log});
  const auto back = flight_log_of(text.substr(0, text.size() - 1));
  REQUIRE(back);
  CHECK(back->rank == 7);
  CHECK(back->epoch == 3);
  CHECK(back->ranks == 9);
  CHECK(back->host == log.host);
  CHECK(back->stopped);
  CHECK(back->lost_unix_s == log.lost_unix_s);
  REQUIRE(back->entries.size() == kMostFlightEntries);
  CHECK(back->entries.back().unix_ns / 1000 == log.entries.back().unix_ns / 1000);
  CHECK(back->entries.back().instruction == 89);
  CHECK(to_json(back->entries.back().activity) == to_json(log.entries.back().activity));
  CHECK_FALSE(flight_log_of("{}"));
  CHECK_FALSE(flight_log_of("half a li"));
  const std::vector<FlightLog> many(4096, log);
  CHECK(flight_text(many).size() < 2 * kMostFlightBytes);
}

TEST_CASE("a ring can be read after its rank was killed while it wrote", "[flight]") {
  const TemporaryFolder folder;
  for (int round = 0; round < 50; ++round) {
    const std::string path = folder / fmt::format("ring{}", round);
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto ring = FlightRing::create(path, 1);
      for (int64_t i = 1;; ++i) {
        if (ring) ring->note(forward_of(i, int(i % 1000)), i);
        if (i == 300 && ::write(ready[1], "r", 1) != 1) ::_exit(1);
      }
    }
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (const int fd : ready) ::close(fd);
    const auto log = FlightRing::read(path);
    REQUIRE(log);
    CHECK(log->entries.size() >= FlightRing::kEntries - 1);  // one may have been under way
    for (const FlightEntry& e : log->entries) {
      CHECK(e.activity.step == e.unix_ns);  // no mixture of two
      CHECK(e.activity.micro_batch == e.unix_ns % 1000);
    }
    for (size_t i = 1; i < log->entries.size(); ++i)
      CHECK(log->entries[i].unix_ns == log->entries[i - 1].unix_ns + 1);
  }
}

TEST_CASE("what an entry of a ring costs", "[flight]") {
  const TemporaryFolder folder;
  const auto ring = FlightRing::create("/dev/shm/trainctl.test-ring-" + std::to_string(::getpid()), 0);
  REQUIRE(ring);
  ::unlink(("/dev/shm/trainctl.test-ring-" + std::to_string(::getpid())).c_str());
  constexpr int kCount = 1'000'000;
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < kCount; ++i) ring->note(forward_of(i / 100, i % 100));
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
  fmt::print("an entry of a ring costs {:.0f} ns, a ring has {} bytes\n", took.count() / kCount,
             FlightRing::bytes());
  CHECK(FlightRing::bytes() < 128 << 10);
}
