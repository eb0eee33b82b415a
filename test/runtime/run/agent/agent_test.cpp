// The real agent of a node (`trainctl node`), under supervisors played by this program.
//
// Goal: an agent obeys its supervisor alone, survives whatever it is sent, keeps what happened for the next
// supervisor, and leaves nothing on its node however it ends. Method: the program that the build makes first,
// as a child; its orders come over real sockets, its processes are small shell commands.
#include <poll.h>

#include <fstream>

#include "runtime/run/wire/protocol.h"
#include "test/runtime/run/agent/agent_stage.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("an agent runs what it is told, reports it, and leaves when it is told") {
  Stage stage;
  const wire::NodeHello hello = stage.attach();
  CHECK(hello.name == "here");
  CHECK(hello.token == "token");
  CHECK(hello.facts.cores >= 1);
  CHECK(hello.facts.memory_bytes > 0);
  CHECK(hello.facts.gpus.empty());  // the run does not use any
  CHECK(hello.run_problem.empty());
  CHECK_FALSE(hello.epoch);
  stage.peer->send(stage.start(3, "echo hello $TRAINCTL_EPOCH; exit 5"));
  REQUIRE(stage.await(Kind::exited));
  CHECK(stage.output() == "hello 3\n");
  CHECK(stage.peer->last(Kind::exited)->number == 5 << 8);
  CHECK(stage.peer->last(Kind::exited)->rank == -1);
  CHECK(stage.look().epoch == 3);  // until it is told to kill what may be left
  stage.peer->send(Message{.kind = Kind::kill, .epoch = 3});
  REQUIRE(stage.await(Kind::gone));
  CHECK(stage.peer->last(Kind::gone)->epoch == 3);
  CHECK(stage.peer->last(Kind::gone)->number == 0);
  CHECK(stage.look().epoch == 0);
  stage.peer->send(Message{.kind = Kind::end});
  CHECK(stage.end() == 0);
  CHECK(stage.nothing_left());
}

TEST_CASE("an agent answers the question for its clock with the number of the question") {
  Stage stage;
  stage.attach();
  for (int64_t question = 1; question <= 3; ++question) {
    const double sent_s = real_clock().monotonic_s();
    stage.peer->send(Message{.kind = Kind::clock, .number = question});
    REQUIRE(stage.until([&] { return stage.peer->count(Kind::clock) == question; }));
    const double heard_s = real_clock().monotonic_s();
    const Message& answer = *stage.peer->last(Kind::clock);
    CHECK(answer.number == question);
    // The same clock: this is one machine.
    const double node_s = std::stod(answer.text);
    CHECK(node_s >= sent_s);
    CHECK(node_s <= heard_s);
  }
  stage.peer->send(Message{.kind = Kind::end});
  CHECK(stage.end() == 0);
}

TEST_CASE("an agent that leaves removes what a dead supervisor has left on its node") {
  Stage stage;
  stage.attach();
  const std::string left = fmt::format("/dev/shm/trainctl.left{}", ::getpid());
  real_file_system().make_directory(left);
  real_file_system().write_new_text(left + "/lock", "");
  stage.peer->send({.kind = Kind::end});
  REQUIRE(eventually([&] { return stage.agent->reap().has_value(); }));
  CHECK_FALSE(real_file_system().exists(left));
}

TEST_CASE("the end kills what runs, children that left their parents too") {
  Stage stage;
  stage.attach();
  stage.peer->send(stage.start(1, "setsid sleep 600 & (sleep 600 &) ; echo up; trap '' TERM; sleep 600"));
  REQUIRE(stage.until([&] { return stage.output() == "up\n"; }));
  CHECK(processes_marked(kRunVariable, stage.run).size() >= 4);
  stage.peer->send(Message{.kind = Kind::end});
  CHECK(stage.end() == 0);
  CHECK(stage.nothing_left());
}

TEST_CASE("a foreign process on the supervisor's address can neither start nor end anything") {
  Stage stage;
  const std::string trace = stage.dir.path() + "/trace";
  stage.attach([&] {
    stage.peer->send(stage.start(1, "touch " + trace));
    stage.peer->send(Message{.kind = Kind::look});
    stage.peer->send(Message{.kind = Kind::kill, .epoch = 1});
    stage.peer->send(Message{.kind = Kind::end});
  });
  CHECK(stage.look().epoch == 0);
  CHECK_FALSE(real_file_system().exists(trace));
  CHECK(stage.peer->count(Kind::exited) == 0);
  CHECK_FALSE(stage.agent->reap());
}

TEST_CASE("orders that are broken harm neither the agent nor its epoch") {
  Stage stage;
  stage.attach();
  stage.peer->send(stage.start(2, "echo up; sleep 600"));
  REQUIRE(stage.until([&] { return stage.output() == "up\n"; }));
  for (const std::string& payload : {std::string(), std::string("nonsense"), std::string("{}"),
                                     std::string("{\"k\":\"hello\"}\n"), std::string("\xff\0", 2)})
    for (const Kind kind :
         {Kind::rank, Kind::welcome, Kind::fence, Kind::remote_ended, Kind::hello, Kind::gone, Kind::exited})
      for (const int rank : {-1, 0, 99})
        stage.peer->send(Message{.kind = kind, .epoch = 2, .rank = rank, .payload = payload});
  CHECK(stage.look().epoch == 2);
  CHECK(stage.peer->count(Kind::gone) == 0);
  // A start that cannot be: said as the launcher's end, and the next one is obeyed.
  stage.peer->send(Message{.kind = Kind::start, .epoch = 3, .payload = "{}"});
  REQUIRE(stage.await(Kind::exited));
  CHECK(stage.peer->last(Kind::exited)->epoch == 3);
  CHECK(stage.peer->last(Kind::exited)->number != 0);
  CHECK(stage.output().find("what is no message") != std::string::npos);
  stage.peer->send(stage.start(4, "exec /no/such/program"));
  REQUIRE(stage.await(Kind::exited, 2));
  CHECK(stage.peer->last(Kind::exited)->number == 127 << 8);
  // Bytes that are no message at all end the connection alone.
  stage.peer->send_bytes("nonsense\n");
  REQUIRE(stage.until([&] { return !stage.peer->stream.open(); }));
  CHECK(stage.accept().epoch == 4);
}

TEST_CASE("orders of an epoch that is over are refused") {
  Stage stage;
  stage.attach();
  const std::string trace = stage.dir.path() + "/trace";
  stage.peer->send(stage.start(7, "echo up; sleep 600"));
  REQUIRE(stage.until([&] { return stage.output() == "up\n"; }));
  stage.peer->send(stage.start(6, "touch " + trace));
  stage.peer->send(Message{.kind = Kind::kill, .epoch = 6});
  CHECK(stage.look().epoch == 7);
  CHECK(stage.peer->count(Kind::gone) == 0);
  CHECK_FALSE(real_file_system().exists(trace));
  // Another supervisor is told what was seen, and refused all the same.
  stage.peer.reset();
  const wire::NodeHello hello = stage.accept();
  CHECK(hello.epoch == 7);
  CHECK(hello.newest_epoch == 7);
  stage.welcome();
  stage.peer->send(stage.start(6, "touch " + trace));
  CHECK(stage.look().epoch == 7);
  CHECK_FALSE(real_file_system().exists(trace));
}

TEST_CASE("what happened while no supervisor was there is told to the next, if it goes on with the epoch") {
  for (const bool keep : {false, true}) {
    Stage stage;
    stage.attach();
    const std::string go = stage.dir.path() + "/go";
    const std::string await_go = "while [ ! -e " + go + " ]; do sleep 0.01; done; ";
    stage.peer->send(stage.start(5, "echo up; " + await_go + "echo late; exit 4"));
    REQUIRE(stage.until([&] { return stage.output() == "up\n"; }));
    // What a supervisor says it has taken is not told again.
    stage.peer->send({.kind = Kind::beat, .sequence = stage.peer->last(Kind::output)->sequence});
    stage.peer.reset();
    CHECK(stage.accept().epoch == 5);
    // It ends while nobody answers the agent's hello.
    real_file_system().write_new_text(go, "");
    REQUIRE(eventually([&] { return stage.processes_of(5).empty(); }));
    wire::Welcome limits = kLimits;
    limits.keep = keep;
    stage.welcome(limits);
    if (keep) {
      REQUIRE(stage.await(Kind::exited));
      CHECK(stage.output() == "late\n");
      CHECK(stage.peer->last(Kind::exited)->number == 4 << 8);
    } else {
      REQUIRE(stage.await(Kind::gone));
      CHECK(stage.look().epoch == 0);
      CHECK(stage.peer->count(Kind::exited) == 0);
      CHECK(stage.output().empty());
    }
  }
}

TEST_CASE(
    "a supervisor that stood still gets what it has not handled, in order, and no order is obeyed twice") {
  Stage stage;
  stage.attach();
  Message start = stage.start(5, "echo up; sleep 1000");
  start.sequence = 7;
  stage.peer->send(start);
  REQUIRE(stage.until([&] { return stage.output() == "up\n"; }));
  const uint64_t handled = stage.peer->last(Kind::output)->sequence;
  stage.peer->send({.kind = Kind::look, .epoch = 5, .sequence = 8});
  REQUIRE(
      stage.until([&] { return stage.peer->last(Kind::beat) && stage.peer->last(Kind::beat)->number == 8; }));
  stage.peer.reset();
  const wire::NodeHello hello = stage.accept();
  CHECK(hello.epoch == 5);
  CHECK(hello.obeyed == 8);
  wire::Welcome limits = kLimits;
  limits.keep = true;
  limits.handled = handled;
  stage.welcome(limits);
  // An old order that the connection before has brought, and a new one.
  stage.peer->send({.kind = Kind::kill, .epoch = 5, .sequence = 8});
  stage.peer->send({.kind = Kind::look, .epoch = 5, .sequence = 9});
  REQUIRE(
      stage.until([&] { return stage.peer->last(Kind::beat) && stage.peer->last(Kind::beat)->number == 9; }));
  CHECK(stage.output().empty());
  CHECK(stage.peer->count(Kind::gone) == 0);
  CHECK(stage.peer->count(Kind::answered) == 0);
  stage.peer->send({.kind = Kind::kill, .epoch = 5, .sequence = 10});
  REQUIRE(stage.await(Kind::gone));
}

TEST_CASE("answers to saves that the ranks here have are told to the next supervisor") {
  Stage stage;
  stage.attach();
  stage.peer->send(stage.start(5, "echo up; sleep 1000"));
  REQUIRE(stage.until([&] { return stage.output() == "up\n"; }));
  const std::string line = protocol::encode(
      protocol::Down{.kind = protocol::Down::saved, .ok = false, .number = 3, .message = "disk full"});
  stage.peer->send({.kind = Kind::rank, .epoch = 5, .payload = line});
  stage.look();
  CHECK(stage.peer->count(Kind::answered) == 0);  // this one knows it
  stage.peer.reset();
  CHECK(stage.accept().epoch == 5);
  wire::Welcome limits = kLimits;
  limits.keep = true;
  stage.welcome(limits);
  REQUIRE(stage.await(Kind::answered));
  CHECK((stage.peer->last(Kind::answered)->epoch == 5 && stage.peer->last(Kind::answered)->payload == line));
  CHECK(stage.peer->count(Kind::answered) == 1);
}

TEST_CASE(
    "what has ended is told to every supervisor of the epoch: the one before may have died of hearing it") {
  Stage stage;
  stage.attach();
  stage.peer->send(stage.start(5, "exit 4"));
  REQUIRE(stage.await(Kind::exited));
  for (int supervisor = 0; supervisor < 3; ++supervisor) {
    stage.peer.reset();
    stage.accept();
    stage.welcome();
    REQUIRE(stage.await(Kind::exited));
    CHECK(stage.peer->last(Kind::exited)->number == 4 << 8);
    stage.look();
    CHECK(stage.peer->count(Kind::exited) == 1);
  }
  stage.peer->send(stage.start(6, "exit 0"));
  REQUIRE(stage.await(Kind::exited, 2));
  stage.peer.reset();
  stage.accept();
  stage.welcome();
  stage.look();
  CHECK(stage.peer->count(Kind::exited) == 1);  // of the epoch before nothing is told
  CHECK(stage.peer->last(Kind::exited)->epoch == 6);
}

namespace {

/// A process of epoch 1 that writes as fast as it can.
struct Chatter {
  Stage stage;
  int64_t beats = 0;

  Chatter() {
    stage.attach();
    stage.peer->send(stage.start(1, "exec yes 'a line of output that says nothing at all'"));
    REQUIRE(eventually([&] { return written() > 0; }));
  }
  /// Bytes that it has got rid of.
  uint64_t written() const {
    const auto pids = stage.processes_of(1);
    std::ifstream io(pids.empty() ? "" : fmt::format("/proc/{}/io", pids[0]));
    std::string name;
    for (uint64_t value = 0; io >> name >> value;)
      if (name == "wchar:") return value;
    return 0;
  }
  /// Reads what has come and forgets it.
  void read() {
    stage.peer->read();
    beats += stage.peer->count(Kind::beat);
    stage.peer->got.clear();
  }
  uint64_t agent_bytes() const {
    std::ifstream status(fmt::format("/proc/{}/status", stage.agent->pid()));
    uint64_t resident_kb = 0;
    for (std::string word; status >> word;)
      if (word == "VmRSS:") status >> resident_kb;
    REQUIRE(resident_kb > 0);
    return resident_kb << 10;
  }
  void kill() {
    const int64_t before = stage.peer->count(Kind::gone);
    stage.peer->send(Message{.kind = Kind::kill, .epoch = 1});
    CHECK(stage.await(Kind::gone, before + 1));
  }
};

}  // namespace

TEST_CASE("a process that writes without end keeps its agent from nothing, and waits for a slow supervisor") {
  Chatter chatter;
  const auto goes_on = [&] {
    return chatter.read(), chatter.beats >= 20 && chatter.written() > (100u << 20);
  };
  const bool went_on = eventually(goes_on);
  INFO(chatter.beats << " heartbeats, " << chatter.written() << " bytes");
  CHECK(went_on);
  CHECK(chatter.agent_bytes() < 200u << 20);
  // Who does not read at all holds the process up, and no memory fills.
  uint64_t before = 0;
  CHECK(eventually([&] {
    real_clock().sleep_s(0.05);
    return std::exchange(before, chatter.written()) == chatter.written();
  }));
  CHECK(chatter.agent_bytes() < 200u << 20);
  CHECK(eventually([&] { return chatter.read(), chatter.written() > before + (50u << 20); }));
  chatter.kill();
}

TEST_CASE("without a supervisor a process that writes goes on, and the newest of its output is kept") {
  Chatter chatter;
  chatter.stage.peer.reset();
  chatter.stage.accept();
  const uint64_t before = chatter.written();
  CHECK(eventually([&] { return chatter.written() > before + (300u << 20); }));
  CHECK(chatter.agent_bytes() < 200u << 20);
  chatter.stage.welcome();
  chatter.kill();
  CHECK(chatter.stage.output().size() > 20u << 20);
  CHECK(chatter.stage.output().size() < 200u << 20);
}

TEST_CASE("without a supervisor everything ends after the grace") {
  enum { silent, gone, swallowed };
  for (const int how : {silent, gone, swallowed}) {
    INFO(how);
    Stage stage;
    if (how == swallowed) stage.listen("127.0.0.1:0");
    stage.attach();
    stage.peer->send(stage.start(1, "echo up; trap '' TERM; sleep 600"));
    REQUIRE(stage.until([&] { return stage.output() == "up\n"; }));
    stage.limit({.silence_s = 0.5, .grace_s = 2, .beat_s = 0.1});
    std::vector<int> calls;
    if (how == swallowed) {
      // A listener that takes no call any more: what connects to it hangs, as behind a firewall.
      const int full = listen_on("127.0.0.1:0");
      ::listen(full, 0);
      stage.publish(address_of(full));
      calls.push_back(full);
      try {
        while (calls.size() < 100) calls.push_back(connect_to(address_of(full), 0.2));
      } catch (const Error&) {
      }
      REQUIRE(calls.size() < 100);
      stage.peer.reset();
    }
    if (how == gone) {
      ::close(std::exchange(stage.listener, -1));
      stage.peer.reset();
    }
    CHECK(stage.end() == 0);
    CHECK(stage.nothing_left());
    for (const int fd : calls) ::close(fd);
    const std::string log = real_file_system().read_text(stage.run + "/logs/node-here.log");
    const std::string words = "no word from a supervisor for ";
    const size_t at = log.find(words);
    REQUIRE(at != std::string::npos);
    CHECK(std::atof(log.c_str() + at + words.size()) >= 2);
  }
}

TEST_CASE("a scheduler's SIGTERM is passed on to the supervisor, and ends an agent that has none") {
  Stage stage;
  stage.attach();
  stage.peer->send(stage.start(1, "echo up; sleep 600"));
  REQUIRE(stage.until([&] { return stage.output() == "up\n"; }));
  REQUIRE(::kill(stage.agent->pid(), SIGTERM) == 0);
  REQUIRE(stage.await(Kind::warned));
  CHECK(stage.look().epoch == 1);
  ::close(std::exchange(stage.listener, -1));
  stage.peer.reset();
  const std::string log = stage.run + "/logs/node-here.log";
  REQUIRE(eventually(
      [&] { return real_file_system().read_text(log).find("lost the supervisor") != std::string::npos; }));
  REQUIRE(::kill(stage.agent->pid(), SIGTERM) == 0);
  CHECK(stage.end() == 0);
  CHECK(stage.nothing_left());
}

TEST_CASE("an agent ends what one before it left on the node, and that one") {
  Stage stage;
  stage.attach();
  stage.peer->send(stage.start(1, "setsid sleep 600 & echo up; sleep 600"));
  REQUIRE(stage.until([&] { return stage.output() == "up\n"; }));
  for (const bool killed : {true, false}) {
    // Killed, or stopped for good.
    auto before = std::exchange(stage.agent, nullptr);
    REQUIRE(::kill(before->pid(), killed ? SIGKILL : SIGSTOP) == 0);
    REQUIRE(eventually([&] { return killed ? before->reap().has_value() : process_stopped(before->pid()); }));
    stage.peer.reset();
    stage.attach();
    CHECK(stage.look().epoch == 0);
    CHECK(eventually([&] { return before->reap().has_value(); }));
    CHECK(eventually([&] { return processes_marked(kRunVariable, stage.run).size() == 1; }));
    stage.peer->send(stage.start(2, "echo up; sleep 600"));
    REQUIRE(stage.until([&] { return stage.output() == "up\n"; }));
  }
}

TEST_CASE("mpirun's remote shell asks the supervisor and lives as long as what was started elsewhere") {
  Stage stage;
  stage.attach();
  stage.peer->send(stage.start(1, kProgram + " remote node1 orted -mca ess '\"env\"'"));
  REQUIRE(stage.await(Kind::remote));
  const Message asked = *stage.peer->last(Kind::remote);
  CHECK(asked.text == "node1");
  CHECK(asked.payload == "orted -mca ess \"env\"");
  // On the node that is asked for, the supervisor has its agent start it.
  stage.peer->send(Message{.kind = Kind::spawn, .epoch = 1, .number = 9, .payload = "A=4; exit $A"});
  REQUIRE(stage.await(Kind::remote_ended));
  CHECK(stage.peer->last(Kind::remote_ended)->number == 9);
  CHECK(stage.peer->last(Kind::remote_ended)->text == fmt::format("{}", 4 << 8));
  CHECK(stage.peer->count(Kind::exited) == 0);
  stage.peer->send(Message{
      .kind = Kind::remote_ended, .epoch = 1, .number = asked.number, .text = fmt::format("{}", 3 << 8)});
  REQUIRE(stage.await(Kind::exited));
  CHECK(stage.peer->last(Kind::exited)->number == 3 << 8);
}
