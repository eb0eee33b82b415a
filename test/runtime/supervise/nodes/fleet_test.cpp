// The nodes of a run as its supervisor has them, with real sockets.
//
// Goal: only agents of this run are let in; whatever strangers, broken or silent agents do, the fleet stays
// usable for the others and its memory bounded; a node that goes silent is noticed and may come back. Method:
// agents played by this program, which does to the fleet what the test is named after; a hand-wound clock, so
// that nothing is waited for; at last 2,000 agents at once, of whom the processor time is printed.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <malloc.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/supervise/nodes/fleet.h"
#include "test/runtime/supervise/nodes/fleet_stage.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using test::Peer;
using Stage = test::FleetStage;
using wire::Kind;
using wire::Message;

namespace {

/// What this process has taken from the heap and not given back.
uint64_t heap_bytes() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace

TEST_CASE("an agent that shows the token is welcomed, and both ends hear each other") {
  for (const std::string& listen : {std::string(), std::string("127.0.0.1:0")}) {
    Stage stage({"a", "b"}, listen);
    struct stat file;
    REQUIRE(::stat(supervisor_file(stage.dir.path()).c_str(), &file) == 0);
    CHECK((file.st_mode & 0777) == 0600);
    CHECK(stage.fleet->ready_count() == 0);
    CHECK_FALSE(stage.fleet->hello(1));
    auto agent = stage.agent("b");
    CHECK(stage.events == std::vector<std::string>{"up 1 b.host"});
    CHECK(stage.fleet->ready_count() == 1);
    REQUIRE(stage.fleet->hello(1));
    CHECK(stage.fleet->hello(1)->pid == 1);
    CHECK(stage.fleet->find_host("b.host") == 1);
    CHECK(stage.fleet->find_host("b") == 1);
    CHECK(stage.fleet->find_host("c") == -1);
    const auto welcome = wire::Welcome::from_json(agent->last(Kind::welcome)->payload);
    CHECK(welcome.grace_s == 30);
    CHECK_FALSE(welcome.keep);

    stage.fleet->machine(1).order({.kind = Kind::start, .epoch = 4, .payload = std::string(1 << 20, 'x')});
    stage.fleet->machine(0).order({.kind = Kind::start, .epoch = 4});  // absent: lost, and no harm
    agent->send({.kind = Kind::gone, .epoch = 4, .number = 2, .payload = std::string(1 << 20, 'y')});
    REQUIRE(stage.until([&] { return agent->count(Kind::start) && !stage.messages.empty(); }, *agent));
    CHECK(agent->last(Kind::start)->payload.size() == 1 << 20);
    CHECK(stage.messages[0].first == 1);
    CHECK(stage.messages[0].second.number == 2);
    CHECK(stage.messages[0].second.payload == std::string(1 << 20, 'y'));
  }
}

TEST_CASE("a node with fewer GPUs than its slots need is refused with both numbers, until it has them") {
  Stage stage(Fleet::Options{.nodes = {"a", "b"}, .gpus_needed = {8, 4}});
  const auto hello = [](Peer& peer, int gpus) {
    wire::NodeHello h = peer.hello_of("b");
    if (gpus > 0) h.facts.gpus = {{"NVIDIA H200", gpus, 1}};
    h.unix_s = 1e9 + 1000 + 12.5;   // the stage's clock, and an offset
    peer.send(h);
  };
  for (const int gpus : {0, 3}) {
    auto poor = stage.peer();
    hello(*poor, gpus);
    REQUIRE(stage.until([&] { return poor->count(Kind::refused) == 1; }, *poor));
    CHECK(stage.fleet->problem(1) ==
          fmt::format("b has {} usable GPUs and its slots need 4 (launcher.slots, launcher.ranks_per_gpu); "
                      "repair it, give it fewer slots, or leave it out",
                      gpus));
  }
  auto repaired = stage.peer();
  hello(*repaired, 4);
  REQUIRE(stage.until([&] { return repaired->count(Kind::welcome) == 1; }, *repaired));
  CHECK(stage.fleet->clock_offset_s(1) == Approx(12.5));
  const NodeUsage usage{.memory_used_bytes = 77, .hottest_c = 61.5};
  repaired->send(Message{.kind = Kind::beat, .text = usage.to_json()});
  CHECK(stage.until([&] { return stage.fleet->usage(1).memory_used_bytes == 77; }, *repaired));
  CHECK(stage.fleet->usage(1).hottest_c == 61.5);
}

TEST_CASE("who is no agent of this run is refused with a reason, and harms nobody") {
  Stage stage;
  auto member = stage.agent("a");
  stage.events.clear();
  struct Case {
    const char* refusal;
    std::function<void(Peer&)> say;
    bool told;  ///< the reason is sent: it speaks the protocol
  };
  const auto hello_with = [](const std::function<void(wire::NodeHello&)>& change) {
    return [change](Peer& peer) {
      wire::NodeHello hello = peer.hello_of("b");
      change(hello);
      peer.send(hello);
    };
  };
  const std::vector<Case> cases = {
      {"wrong token", hello_with([](wire::NodeHello& h) { h.token.back() ^= 1; }), true},
      {"wrong token", hello_with([](wire::NodeHello& h) { h.token = ""; }), true},
      {"wrong token", hello_with([](wire::NodeHello& h) { h.token += "0"; }), true},
      {"wrong token", hello_with([](wire::NodeHello& h) { h.token = "", h.name = "a"; }), true},
      {"install the same version", hello_with([](wire::NodeHello& h) { h.version = "0.0.0"; }), true},
      {"not one of the nodes", hello_with([](wire::NodeHello& h) { h.name = "c"; }), true},
      {"sees no run", hello_with([](wire::NodeHello& h) { h.run_problem = "it sees no run"; }), true},
      {"no hello", [](Peer& p) { p.send({.kind = Kind::beat}); }, false},
      {"no hello", [](Peer& p) { p.send({.kind = Kind::exited, .epoch = 1, .rank = 0, .number = 9}); },
       false},
      {"what is no message", [](Peer& p) { p.send({.kind = Kind::hello, .payload = "{}"}); }, false},
      {"what is no message", [](Peer& p) { p.send_bytes("GET / HTTP/1.1\r\n\r\n"); }, false},
      {"what is no message", [](Peer& p) { p.send_bytes(std::string("\0\xff\n", 3)); }, false},
      {"what is no message", [](Peer& p) { p.send_bytes(std::string(20000, 'x')); }, false},
      {"bytes in one message", [](Peer& p) { p.send_bytes("{\"k\":\"hello\",\"b\":100000000}\n"); }, false},
      {"closed", [](Peer& p) { ::shutdown(p.stream.fd(), SHUT_WR); }, false},
  };
  for (const Case& c : cases) {
    auto stranger = stage.peer();
    c.say(*stranger);
    INFO(c.refusal);
    CHECK(stage.until([&] { return !stranger->stream.open(); }, *stranger, *member));
    CHECK(stage.fleet->last_refusal().find(c.refusal) != std::string::npos);
    CHECK(stranger->count(Kind::welcome) == 0);
    REQUIRE((stranger->count(Kind::refused) == 1) == c.told);
    if (c.told) CHECK(stranger->last(Kind::refused)->text == stage.fleet->last_refusal());
  }
  CHECK(stage.events.empty());
  CHECK(stage.messages.empty());
  CHECK(stage.fleet->ready_count() == 1);
  // A node that belongs here and cannot run is named with its reason, until it can.
  CHECK(stage.fleet->problem(1) == "it sees no run");
  auto repaired = stage.agent("b");
  CHECK(stage.fleet->problem(1).empty());
  member->send({.kind = Kind::beat, .epoch = 3});
  CHECK(stage.until([&] { return stage.messages.size() == 1; }, *member));
}

TEST_CASE("a hello that comes byte by byte is as good as any; one that never ends is not waited for") {
  Stage stage;
  auto slow = stage.peer();
  const std::string hello = wire::encode({.kind = Kind::hello, .payload = slow->hello_of("a").to_json()});
  for (const char byte : hello) {
    REQUIRE(slow->send_bytes(std::string(1, byte)) == 1);
    stage.clock.now_s += 4.0 / double(hello.size());
    stage.fleet->serve();
  }
  CHECK(stage.until([&] { return slow->count(Kind::welcome) == 1; }, *slow));

  auto silent = stage.peer(), slower = stage.peer();
  stage.fleet->serve();
  size_t sent = 0;
  stage.pass(4.8, *slow);
  CHECK(silent->stream.open());
  for (int i = 0; i < 10 && slower->stream.open(); ++i) {
    sent += slower->send_bytes("{");
    stage.pass(0.1, *slow);
    slower->read();
  }
  silent->read();
  CHECK_FALSE(silent->stream.open());
  CHECK_FALSE(slower->stream.open());
  CHECK(sent >= 1);
  CHECK(stage.fleet->last_refusal() == "no hello");
  CHECK(stage.fleet->ready_count() == 1);
}

TEST_CASE("floods of strangers cost bounded memory, and the agents that are here are heard") {
  Stage stage;
  auto member = stage.agent("a");
  constexpr int kStrangers = 200;
  const std::string beat = wire::encode({.kind = Kind::beat});
  std::string beats;
  while (beats.size() < 65536) beats += beat;
  const std::string floods[] = {std::string(65536, 'x'), beats, std::string(65536, '\n'),
                                "{\"k\":\"hello\",\"b\":16000}\n" + std::string(65536, '[')};
  const uint64_t before = heap_bytes();
  uint64_t most = before;
  size_t sent = 0;
  for (const std::string& flood : floods) {
    std::vector<std::unique_ptr<Peer>> strangers;
    for (int i = 0; i < kStrangers; ++i) strangers.push_back(stage.peer());
    for (int round = 0; round < 4; ++round) {
      for (auto& stranger : strangers)
        if (stranger->stream.open()) sent += stranger->send_bytes(flood);
      stage.fleet->serve();
      most = std::max(most, heap_bytes());
      for (auto& stranger : strangers) stranger->read();
    }
    CHECK(stage.until(
        [&] {
          return std::none_of(strangers.begin(), strangers.end(),
                              [](auto& s) { return s->read(), s->stream.open(); });
        },
        *member));
  }
  CHECK(sent > 20u << 20);
  CHECK(most - before < 4u << 20);  // of which the peers of this test themselves are the most
  CHECK(stage.fleet->ready_count() == 1);
  member->send({.kind = Kind::beat, .epoch = 3});
  CHECK(stage.until([&] { return stage.messages.size() == 1; }, *member));
}

TEST_CASE(
    "more strangers than are waited for: the rest are turned away, and agents get in once those are gone") {
  Stage stage;
  auto member = stage.agent("a");
  std::vector<std::unique_ptr<Peer>> strangers;
  for (int i = 0; i < 1200; ++i) {
    strangers.push_back(stage.peer());
    if (i % 100 == 99) stage.fleet->serve();
  }
  const auto open = [&] {
    return std::count_if(strangers.begin(), strangers.end(),
                         [](auto& s) { return s->read(), s->stream.open(); });
  };
  CHECK(stage.until([&] { return open() == 1024; }, *member));
  auto agent = stage.peer();
  agent->send(agent->hello_of("b"));
  CHECK(stage.until([&] { return !agent->stream.open(); }, *agent, *member));
  stage.pass(5.2, *member);
  CHECK(open() == 0);
  CHECK(stage.fleet->ready_count() == 1);
  agent = stage.agent("b");  // it dials again
  CHECK(stage.fleet->ready_count() == 2);
}

TEST_CASE("a flood from an agent that belongs here arrives in order, and the others are not forgotten") {
  Stage stage;
  auto loud = stage.agent("a"), quiet = stage.agent("b");
  const std::string line(1000, 'x');
  const uint64_t before = heap_bytes();
  uint64_t most = before;
  int64_t sent = 0, got = 0, quiet_beats = 0;
  bool ordered = true;
  for (int round = 0; round < 400; ++round) {
    while (!loud->stream.wants_write())
      loud->send({.kind = Kind::output, .epoch = 1, .number = ++sent, .payload = line});
    if (round % 10 == 0) quiet->send({.kind = Kind::beat});
    stage.clock.now_s += 0.1;
    stage.fleet->serve();
    loud->read();
    quiet->read();
    for (const auto& [node, message] : stage.messages) {
      if (node == 1) ++quiet_beats;
      if (node == 0) ordered = ordered && message.number == ++got;
    }
    stage.messages.clear();
    most = std::max(most, heap_bytes());
  }
  CHECK(sent > 10000);
  CHECK(got > sent / 2);
  CHECK(ordered);
  CHECK(quiet_beats == 40);
  CHECK(stage.fleet->ready_count() == 2);
  CHECK(most - before < 32u << 20);
}

TEST_CASE("an agent that talks nonsense after its hello is lost alone") {
  Stage stage;
  auto broken = stage.agent("a"), other = stage.agent("b");
  broken->send_bytes("{\"k\":\"beat\"}\n{\"k\":\"nonsense\"}\n");
  CHECK(stage.until([&] { return stage.fleet->ready_count() == 1; }, *broken, *other));
  REQUIRE(stage.events.size() == 3);
  CHECK(stage.events[2].find("lost 0 the connection of a node carried what is no message") == 0);
  CHECK(stage.messages.size() == 1);  // what came before counts
  CHECK_FALSE(stage.fleet->hello(0));
  auto again = stage.agent("a");
  CHECK(stage.events.back() == "up 0 a.host");
}

TEST_CASE("a second agent of a node takes the place of the first, whose words count no more") {
  Stage stage;
  auto first = stage.agent("a");
  first->send({.kind = Kind::beat, .epoch = 1});
  CHECK(stage.until([&] { return stage.messages.size() == 1; }, *first));
  auto second = stage.agent("a", 2);
  CHECK(stage.events == std::vector<std::string>{
                            "up 0 a.host", "lost 0 another agent of this node has connected", "up 0 a.host"});
  first->send({.kind = Kind::exited, .epoch = 1, .rank = 0, .number = 9});
  second->send({.kind = Kind::beat, .epoch = 2});
  CHECK(stage.until([&] { return stage.messages.size() == 2; }, *first, *second));
  CHECK(stage.messages[1].second.epoch == 2);
  CHECK_FALSE(first->stream.open());
  CHECK(stage.fleet->ready_count() == 1);
  stage.fleet->machine(0).order({.kind = Kind::look});
  CHECK(stage.until([&] { return second->count(Kind::look) == 1; }, *second));
}

TEST_CASE("a silent node is lost after its limit and no sooner, and comes back") {
  Stage stage;
  auto silent = stage.agent("a"), alive = stage.agent("b");
  stage.events.clear();
  const int64_t before = silent->count(Kind::beat);
  stage.pass(1.9, *alive);
  CHECK(stage.fleet->ready_count() == 2);
  silent->read();
  CHECK(silent->count(Kind::beat) - before >= 6);  // the supervisor's own heartbeats go on
  stage.pass(0.3, *alive);
  REQUIRE(stage.events.size() == 1);
  CHECK(stage.events[0].find("lost 0 silent for 2.") == 0);
  CHECK(stage.fleet->problem(0).find("silent for 2.") == 0);
  silent->read();
  CHECK_FALSE(silent->stream.open());
  auto back = stage.agent("a");
  CHECK(stage.events.back() == "up 0 a.host");
  CHECK(stage.fleet->ready_count() == 2);
  CHECK(stage.fleet->problem(0).empty());
  // A connection that ends is noticed without waiting.
  back.reset();
  CHECK(stage.until([&] { return stage.fleet->ready_count() == 1; }, *alive));
  CHECK(stage.events.back() == "lost 0 the connection was closed");
}

TEST_CASE("a message that takes longer than the silence to arrive is no silence") {
  Stage stage;
  auto slow = stage.agent("a");
  const std::string large =
      wire::encode({.kind = Kind::rank, .epoch = 1, .payload = std::string(60000, 'r')});
  for (size_t at = 0; at < large.size(); at += 1000) {
    REQUIRE(slow->send_bytes(large.substr(at, 1000)) > 0);
    stage.pass(0.2);  // 12 s in all
  }
  REQUIRE(stage.until([&] { return !stage.messages.empty(); }, *slow));
  CHECK(stage.messages[0].second.payload.size() == 60000);
  CHECK(stage.fleet->ready_count() == 1);
}

TEST_CASE("a supervisor that did not run itself takes no silence for a loss, and gains no time by that") {
  Stage stage;
  auto agent = stage.agent("a");
  stage.pass(0.5, *agent);
  agent->send({.kind = Kind::beat});
  stage.clock.now_s += 3600;
  stage.fleet->serve();
  CHECK(stage.fleet->ready_count() == 1);
  CHECK(stage.fleet->heard_s(0) <= stage.clock.now_s);
  stage.pass(1.8);
  CHECK(stage.fleet->ready_count() == 1);
  stage.pass(0.4);
  CHECK(stage.fleet->ready_count() == 0);
}

TEST_CASE("only the epoch that is to go on is kept by a supervisor that attaches") {
  for (const auto& [runs, keep] :
       std::vector<std::pair<std::optional<uint64_t>, bool>>{{7, true}, {6, false}, {{}, false}}) {
    Stage stage(Fleet::Options{.nodes = {"a"}, .attach_to = 7});
    auto agent = stage.peer();
    wire::NodeHello hello = agent->hello_of("a");
    hello.epoch = runs;
    agent->send(hello);
    REQUIRE(stage.until([&] { return agent->count(Kind::welcome) == 1; }, *agent));
    CHECK(wire::Welcome::from_json(agent->last(Kind::welcome)->payload).keep == keep);
  }
}

TEST_CASE("the end is told to every agent; who does not leave is not waited for beyond the limit") {
  Stage stage(Fleet::Options{.nodes = {"a", "b"}, .silence_s = 10});
  auto good = stage.agent("a"), deaf = stage.agent("b");
  std::atomic<bool> over = false;
  std::thread leaves([&] {
    // It leaves when it is told to.
    const double limit_s = real_clock().monotonic_s() + 180;
    while (good->count(Kind::end) == 0 && real_clock().monotonic_s() < limit_s) {
      pollfd wait{.fd = good->stream.fd(), .events = POLLIN, .revents = 0};
      ::poll(&wait, 1, 100);
      good->read();
    }
    good->stream.close("leaving");
    over = true;
  });
  const double begin_s = stage.clock.now_s;
  stage.fleet->end(3);
  leaves.join();
  CHECK(over);
  CHECK(stage.clock.now_s - begin_s == Approx(3).margin(0.01));
  deaf->read();
  CHECK(deaf->count(Kind::end) == 1);
  CHECK_FALSE(real_file_system().exists(supervisor_file(stage.dir.path())));
}

TEST_CASE(
    "an agent that cannot be started is named with its last words, and tried again at growing intervals") {
  test::TemporaryFolder tools;
  const std::string program = tools.path() + "/program", log = tools.path() + "/starts";
  real_file_system().write_new_text(
      program, "#!/bin/sh\necho start >>" + log + "\necho first line\necho 'no such library' >&2\nexit 3\n");
  REQUIRE(::chmod(program.c_str(), 0755) == 0);
  Stage stage(Fleet::Options{.program = program, .mpirun = "mpirun", .nodes = {"a"}});
  stage.fleet->start_agents();
  // The fleet's clock stands still while a child runs in real time.
  const auto child_ended = [] {
    siginfo_t info{};
    return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
  };
  const auto starts = [&] {
    const std::string text = real_file_system().exists(log) ? real_file_system().read_text(log) : "";
    return size_t(std::count(text.begin(), text.end(), '\n'));
  };
  std::vector<double> at;
  for (const double begin_s = stage.clock.now_s; at.size() < 8 && stage.clock.now_s < begin_s + 300;) {
    REQUIRE(test::eventually(child_ended));
    if (starts() > at.size()) at.push_back(stage.clock.now_s - begin_s);
    REQUIRE(starts() == at.size());
    stage.clock.now_s += 0.3;
    stage.fleet->serve();
  }
  REQUIRE(at.size() == 8);
  CHECK(stage.fleet->problem(0) == "its agent could not be started (status 3): no such library");
  for (size_t i = 2; i < at.size(); ++i) CHECK(at[i] - at[i - 1] >= at[i - 1] - at[i - 2] - 0.7);
  CHECK(at[1] - at[0] < 5);
  CHECK(at[7] - at[6] > 20);
  CHECK(at[7] - at[6] < 32);
}
