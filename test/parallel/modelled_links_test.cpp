// Goal: messages over modelled links come when latency, speed, the earlier messages of both ends and the
//       sender's own time say, whatever order the threads really run in; the data are those of the real
//       transport.
// Method: ranks whose work is a number that the test sets; times that are exact in binary. What needs no second
//         thread runs on one.
#include <catch2/catch.hpp>
#include <thread>

#include "parallel/communicator.h"
#include "runtime/base/error.h"
#include "test/support/modelled_links.h"

using namespace trainctl;
using namespace trainctl::parallel;
using namespace trainctl::test;

namespace {

/// Rank threads' ends of one group over links; each rank's work is set by hand.
struct Links {
  Links(int ranks, LinkSpeed speed) : network(ranks, speed), worked_s(size_t(ranks)) {
    for (std::unique_ptr<Communicator>& end : make_thread_world(ranks, 600)) {
      const size_t rank = clocks.size();
      real.push_back(end.get());
      clocks.push_back(std::make_unique<RankClock>([this, rank] { return worked_s[rank]; }));
      ends.push_back(make_linked_communicator(std::move(end), network, *clocks.back(),
                                              [](const std::string& group) { return group == "world"; }));
    }
  }
  double now(int rank) { return clocks[size_t(rank)]->monotonic_s(); }

  ModelledNetwork network;
  std::vector<double> worked_s;
  std::vector<std::unique_ptr<RankClock>> clocks;
  std::vector<Communicator*> real;
  std::vector<std::unique_ptr<Communicator>> ends;
};

struct Message {
  explicit Message(size_t bytes, char value = 0) : bytes(bytes, value) {}
  Transfer to(int peer, int tag = 0) { return {Transfer::send, peer, bytes.data(), bytes.size(), tag}; }
  Transfer from(int peer, int tag = 0) { return {Transfer::receive, peer, bytes.data(), bytes.size(), tag}; }
  std::vector<char> bytes;
};

Ticket begin(Communicator& end, std::vector<Transfer> transfers) { return end.exchange(transfers); }

}  // namespace

TEST_CASE("messages leave one after another and arrive after the latency") {
  Links links(2, {.latency_s = 1, .bytes_per_s = 128});
  Message a(256, 'a'), b(128, 'b'), got_a(256), got_b(128);
  Ticket sent = begin(*links.ends[0], {a.to(1, 0)}), sent_b = begin(*links.ends[0], {b.to(1, 1)});
  Ticket first = begin(*links.ends[1], {got_a.from(0, 0)}),
         second = begin(*links.ends[1], {got_b.from(0, 1)});
  CHECK_FALSE(links.ends[0]->test(sent));
  links.worked_s[0] = 2;
  CHECK(links.ends[0]->test(sent));  // it has left
  CHECK_FALSE(links.ends[0]->test(sent_b));
  links.worked_s[1] = 2.875;
  CHECK_FALSE(links.ends[1]->test(first));
  links.worked_s[1] = 3;
  CHECK(links.ends[1]->test(first));
  CHECK_FALSE(first);
  CHECK_FALSE(links.ends[1]->test(second));
  links.ends[1]->wait(second, "wait");
  CHECK(links.now(1) == 4);
  CHECK(got_a.bytes == a.bytes);
  CHECK(got_b.bytes == b.bytes);
  CHECK(links.network.use(1).waited_s == 1);
  CHECK(links.network.use(1).transfer_s == 5);
  CHECK(links.network.use(1).bytes == 384);
  links.worked_s[1] += 2;  // goes on from there
  CHECK(links.now(1) == 6);
}

TEST_CASE("a link carries both directions at one time, and what several ranks send one after another") {
  Links links(3, {.latency_s = 0, .bytes_per_s = 128});
  Message to_0(128, 'x'), to_1(128, 'y'), from_2(128, 'z'), got_1(128), got_0(128), got_2(128);
  Ticket at_1 = begin(*links.ends[1], {to_0.to(0), got_0.from(0)});
  Ticket at_2 = begin(*links.ends[2], {from_2.to(0)});
  Ticket at_0 = begin(*links.ends[0], {to_1.to(1), got_1.from(1), got_2.from(2)});
  links.ends[1]->wait(at_1, "wait");
  CHECK(links.now(1) == 1);
  links.ends[0]->wait(at_0, "wait");
  CHECK(links.now(0) == 2);
  CHECK(got_2.bytes == from_2.bytes);
}

TEST_CASE("a message comes by its sender's time, in whatever order the threads run") {
  for (int repetition = 0; repetition < 100; ++repetition) {
    Links links(2, {.latency_s = 1, .bytes_per_s = 128});
    Message sent(128, 's'), got(128);
    bool before = true, after = false;
    std::thread receiver([&] {
      links.worked_s[0] = 3;
      Ticket ticket = begin(*links.ends[0], {got.from(1)});
      before = links.ends[0]->test(ticket);  // it is sent at 5
      links.worked_s[0] = 7;
      after = links.ends[0]->test(ticket);
    });
    std::thread sender([&] {
      for (int i = 0; i < repetition % 4; ++i) std::this_thread::yield();
      links.worked_s[1] = 5;
      Ticket ticket = begin(*links.ends[1], {sent.to(0)});
      links.ends[1]->wait(ticket, "send");
    });
    receiver.join();
    sender.join();
    REQUIRE_FALSE(before);
    REQUIRE(after);
    REQUIRE(links.now(1) == 6);
    REQUIRE(got.bytes == sent.bytes);
  }
}

TEST_CASE("a rank that waits for another holds up no third one") {
  Links links(3, {.latency_s = 1, .bytes_per_s = 0});
  Message sent(8, 's'), got_1(8), got_2(8);
  bool polled = true;
  std::thread waits([&] {
    Ticket ticket = begin(*links.ends[1], {got_1.from(0)});
    links.ends[1]->wait(ticket, "wait");
  });
  std::thread polls([&] {
    links.worked_s[2] = 5;
    Ticket ticket = begin(*links.ends[2], {got_2.from(0)});
    polled = links.ends[2]->test(ticket);
    links.ends[2]->wait(ticket, "wait");
  });
  links.worked_s[0] = 6;
  Ticket ticket = begin(*links.ends[0], {sent.to(1), sent.to(2)});
  waits.join();
  polls.join();
  CHECK_FALSE(polled);
  CHECK(links.now(1) == 7);
  CHECK(links.now(2) == 7);
}

TEST_CASE("other groups take no time, and the end of a rank ends the waits for it") {
  Links links(2, {.latency_s = 1, .bytes_per_s = 1});
  Message sent(64, 's'), got(64);
  const auto a = links.ends[0]->subgroup({.members = {0, 1}, .number = 1, .name = "other"});
  const auto b = links.ends[1]->subgroup({.members = {0, 1}, .number = 1, .name = "other"});
  Ticket at_a = begin(*a, {sent.to(1)}), at_b = begin(*b, {got.from(0)});
  b->wait(at_b, "wait");
  CHECK(links.now(1) == 0);
  CHECK(got.bytes == sent.bytes);
  Ticket never = begin(*links.ends[1], {got.from(0)});
  abort_thread_world(*links.real[0], "it was broken");
  links.ends[0].reset();
  CHECK_FALSE(links.ends[1]->test(never));
  try {
    links.ends[1]->wait(never, "wait");
    FAIL("it ended");
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kPeerLost);
  }
}
