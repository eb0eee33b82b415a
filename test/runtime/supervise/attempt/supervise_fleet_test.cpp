// One attempt over several nodes whose agents are played by this program.
//
// Goal: an attempt passes between its nodes what belongs to all (fences, mpirun's remote shells), takes
// nothing that does not belong to it, notices a node that goes, and tells every node to kill what is left.
// Method: the real supervisor's side with real sockets; each agent is a thread that answers orders by a
// script.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <poll.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/base/json.h"
#include "runtime/observe/console.h"
#include "runtime/run/wire/protocol.h"
#include "runtime/supervise/attempt/attempt.h"
#include "test/runtime/run/agent/node_peer.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using wire::Kind;
using wire::Message;

namespace {

constexpr uint64_t kEpoch = 4;
constexpr int kRanksOfNode = 2;

/// An agent: greets, and then lets `script` answer each order.
class Agent {
 public:
  using Script = std::function<void(test::Peer&, const Message&)>;
  Agent(const std::string& run, const std::string& name, Script script)
      : peer_(run), name_(name), script_(std::move(script)), thread_([this] { serve(); }) {}
  ~Agent() {
    ending_ = true;
    thread_.join();
  }
  /// Orders of the attempt so far.
  int64_t count(Kind kind) const {
    const std::lock_guard lock(mutex_);
    return std::count_if(orders_.begin(), orders_.end(), [&](const Message& m) { return m.kind == kind; });
  }
  Message last(Kind kind) const {
    const std::lock_guard lock(mutex_);
    for (auto m = orders_.rbegin(); m != orders_.rend(); ++m)
      if (m->kind == kind) return *m;
    return {};
  }

 private:
  void serve() {
    peer_.send(peer_.hello_of(name_));
    while (!ending_ && peer_.stream.open()) {
      pollfd wait{.fd = peer_.stream.fd(), .events = POLLIN, .revents = 0};
      ::poll(&wait, 1, 20);
      peer_.read();
      for (const Message& order : std::exchange(peer_.got, {})) {
        if (order.epoch == 0) continue;
        {
          const std::lock_guard lock(mutex_);
          orders_.push_back(order);
        }
        script_(peer_, order);
      }
      peer_.send(Message{.kind = Kind::beat, .epoch = kEpoch});
    }
  }

  test::Peer peer_;
  const std::string name_;
  const Script script_;
  mutable std::mutex mutex_;
  std::vector<Message> orders_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

Message of_rank(int rank, const protocol::Up& up) {
  std::string line = protocol::encode(up);
  line.pop_back();
  return {.kind = Kind::rank, .epoch = kEpoch, .rank = rank, .payload = line};
}

/// What an agent does whose ranks start, finish a step and end well.
void ranks_come(test::Peer& peer, int first) {
  for (int rank = first; rank < first + kRanksOfNode; ++rank)
    peer.send(of_rank(rank, {.hello = protocol::Hello{"", "h", rank, 100 + rank}}));
}
void ranks_end(test::Peer& peer, int first) {
  for (int rank = first; rank < first + kRanksOfNode; ++rank) {
    peer.send(of_rank(rank, {.done = true}));
    peer.send(Message{.kind = Kind::exited, .epoch = kEpoch, .rank = rank, .number = 0});
  }
}
void answer_kill(test::Peer& peer, const Message& order) {
  if (order.kind == Kind::kill) peer.send(Message{.kind = Kind::gone, .epoch = order.epoch});
}

struct FleetStage {
  test::TemporaryFolder dir;
  std::string console_text;
  TerminalConsole console{{.write = [this](const std::string& text) { console_text += text; }}};
  std::unique_ptr<Fleet> fleet;
  double times_patience_s = 600;

  explicit FleetStage(std::vector<std::string> nodes) {
    for (const char* folder : {"logs", "failures", "ckpt"})
      real_file_system().make_directory(dir.path() + "/" + folder);
    fleet = std::make_unique<Fleet>(Fleet::Options{.run_directory = dir.path(),
                                                   .nodes = std::move(nodes),
                                                   .listen = "unix:" + dir.path() + "/supervisor",
                                                   .silence_s = 600},
                                    real_clock());
  }
  /// Over all nodes of the fleet, once their agents are connected.
  Verdict run(bool pmix = true) {
    CHECK(test::eventually([&] { return fleet->serve(), fleet->ready_count() == fleet->size(); }));
    const RunDirectory directory{dir.path()};
    RunLog log(real_file_system(), real_clock(), directory, console);
    StopSignals signals;
    AttemptPlan plan;
    for (int node = 0; node < fleet->size(); ++node)
      plan.nodes.push_back({.node = node,
                            .first = kRanksOfNode * node,
                            .count = kRanksOfNode,
                            .name = fleet->name(node),
                            .host = fleet->hello(node)->host});
    plan.limits = {.ranks = kRanksOfNode * fleet->size(),
                   .heartbeat_s = 120,
                   .start_timeout_s = 600,
                   .kill_limit_s = 600,
                   .finish_limit_s = 600};
    plan.times_patience_s = times_patience_s;
    plan.saves = {.directory = dir.path() + "/ckpt"};
    plan.file = {.epoch = kEpoch, .mark = random_token()};
    const Verdict verdict = run_attempt(with_start(std::move(plan), pmix, {{"program"}, {}}), {}, *fleet,
                                        directory, real_file_system(), real_clock(), log, signals)
                                .verdict;
    log.finish();
    return verdict;
  }
  std::vector<Json> events(const std::string& kind) const {
    std::vector<Json> found;
    for (const std::string& line : lines_of(real_file_system(), dir.path() + "/events.jsonl"))
      if (const auto event = Json::parse(line); event["kind"] == kind) found.push_back(event);
    return found;
  }
};

}  // namespace

TEST_CASE("an attempt gives each node its part, gathers the fence, and has everything killed at the end") {
  FleetStage stage({"a", "b"});
  const auto script = [](int node) {
    return [node](test::Peer& peer, const Message& order) {
      if (order.kind == Kind::start)
        peer.send(Message{.kind = Kind::fence, .epoch = kEpoch, .number = 1, .payload = fmt::format("share {};", node)});
      if (order.kind == Kind::fence)
        ranks_come(peer, kRanksOfNode * node), ranks_end(peer, kRanksOfNode * node);
      answer_kill(peer, order);
    };
  };
  const Agent a(stage.dir.path(), "a", script(0)), b(stage.dir.path(), "b", script(1));
  const Verdict verdict = stage.run();
  CHECK(verdict.outcome == Verdict::finished);
  for (const Agent* agent : {&a, &b}) {
    const auto start = wire::StartOrder::from_json(agent->last(Kind::start).payload);
    CHECK(start.pmix);
    CHECK(start.hosts == std::vector<std::string>{"a.host", "b.host"});
    CHECK(start.ranks[1].first == 2);
    CHECK(start.world_size == 4);
    CHECK(start.this_host == (agent == &b));
    CHECK(start.leads == (agent == &a));
    CHECK(agent->count(Kind::fence) == 1);
    CHECK(agent->last(Kind::fence).payload == "share 0;share 1;");
    CHECK(agent->count(Kind::kill) == 1);
  }
  const AttemptFile file =
      AttemptFile::from_json(real_file_system().read_text(stage.dir.path() + "/attempt.json"));
  REQUIRE(file.nodes.size() == 2);
  CHECK(file.nodes[1].name == "b");
  CHECK(file.mark == wire::StartOrder::from_json(a.last(Kind::start).payload).mark);
}

TEST_CASE("a step's line has the numbers of the ranks of all nodes, and no others") {
  FleetStage stage({"a", "b"});
  const auto times = [](std::vector<wire::RankStepTimes> all) {
    return Message{.kind = Kind::times, .epoch = kEpoch, .payload = wire::pack(all)};
  };
  const auto report = [](int64_t step) {
    return of_rank(0, {.step = StepReport{.line = {.attempt = kEpoch, .step = step},
                                          .log = true,
                                          .work = StepWork{.tokens = 100},
                                          .each_rank = true}});
  };
  const Agent a(stage.dir.path(), "a", [&](test::Peer& peer, const Message& order) {
    if (order.kind == Kind::start) {
      ranks_come(peer, 0);
      for (const int64_t step : {1, 2}) {
        peer.send(times({{.step = step, .rank = 0, .times = {.step_s = 1}},
                         {.step = step, .rank = 1, .times = {.step_s = 2}},
                         {.step = step, .rank = 3, .times = {.step_s = 99}},  // of another node
                         {.step = step, .rank = -1, .times = {.step_s = 99}}}));
        peer.send(report(step));
      }
      ranks_end(peer, 0);
    }
    answer_kill(peer, order);
  });
  const Agent b(stage.dir.path(), "b", [&](test::Peer& peer, const Message& order) {
    if (order.kind == Kind::start) {
      ranks_come(peer, 2);
      peer.send(times({{.step = 1, .rank = 2, .times = {.step_s = 3}},
                       {.step = 1, .rank = 3, .times = {.step_s = 4}}}));
      peer.send(times({{.step = 2, .rank = 2, .times = {.step_s = 3}}}));
      ranks_end(peer, 2);
    }
    answer_kill(peer, order);
  });
  const Verdict verdict = stage.run();
  INFO(verdict.cause);
  CHECK(verdict.outcome == Verdict::finished);
  const auto lines = lines_of(real_file_system(), stage.dir.path() + "/metrics.jsonl");
  const auto each = lines_of(real_file_system(), stage.dir.path() + "/metrics.ranks.jsonl");
  REQUIRE(lines.size() == 2);
  REQUIRE(each.size() == 2);
  const auto first = Json::parse(lines[0]), second = Json::parse(lines[1]);
  CHECK(first["step_s"] == 4);
  CHECK(first["tokens_per_s"] == 25);
  CHECK(first["ranks"]["count"] == 4);
  CHECK(first["ranks"]["compute_s"]["max_node"] == "b");
  CHECK(Json::parse(each[0])["compute_s"] == std::vector<double>{1, 2, 3, 4});
  CHECK(second["ranks"]["count"] == 3);  // the end of the attempt waits for nobody
  CHECK(Json::parse(each[1])["compute_s"][3].is_null());
}

TEST_CASE("what does not belong to the attempt is not taken, and harms nothing") {
  FleetStage stage({"a"});
  const Agent agent(stage.dir.path(), "a", [](test::Peer& peer, const Message& order) {
    if (order.kind == Kind::start) {
      ranks_come(peer, 0);
      for (const int rank : {-2, -1, 2, 99, 2147483647, -2147483647}) {
        peer.send(Message{.kind = Kind::rank_lost, .epoch = kEpoch, .rank = rank, .text = "nonsense"});
        if (rank >= 0) peer.send(Message{.kind = Kind::exited, .epoch = kEpoch, .rank = rank, .number = 9});
        peer.send(of_rank(rank, {.done = true}));
        peer.send(Message{
            .kind = Kind::beat, .epoch = kEpoch, .payload = wire::pack({{.rank = rank, .connected = 1}})});
      }
      for (const std::string& payload : {std::string("nonsense"), std::string("{}"), std::string(3, '\0')})
        for (const Kind kind : {Kind::rank, Kind::beat})
          peer.send(Message{.kind = kind, .epoch = kEpoch, .rank = 0, .payload = payload});
      // A save that nobody began, and a hello of a rank that has come already.
      peer.send(of_rank(1, {.shard = protocol::Shard{.step = 5}}));
      peer.send(of_rank(0, {.hello = protocol::Hello{"", "h", 99, 1}}));
      // Of other epochs; orders that no agent gives.
      for (const uint64_t epoch : {kEpoch - 1, kEpoch + 1, uint64_t(0)}) {
        peer.send(Message{.kind = Kind::exited, .epoch = epoch, .rank = 0, .number = 9});
        peer.send(Message{.kind = Kind::rank_lost, .epoch = epoch, .rank = 1});
        peer.send(Message{.kind = Kind::gone, .epoch = epoch});
      }
      for (const Kind kind : {Kind::kill, Kind::end, Kind::start, Kind::welcome, Kind::hello})
        peer.send(Message{.kind = kind, .epoch = kEpoch});
      peer.send(Message{.kind = Kind::remote_ended, .epoch = kEpoch, .number = 77, .text = "0"});
      peer.send(
          Message{.kind = Kind::remote, .epoch = kEpoch, .number = 5, .text = "nowhere", .payload = "orted"});
    }
    // The remote shell for an unknown node ends with 255; then the ranks end well.
    if (order.kind == Kind::remote_ended && order.number == 5 && order.text == fmt::format("{}", 255 << 8))
      ranks_end(peer, 0);
    answer_kill(peer, order);
  });
  const Verdict verdict = stage.run();
  INFO(verdict.cause);
  CHECK(verdict.outcome == Verdict::finished);
  CHECK(agent.last(Kind::remote_ended).number == 5);
  CHECK(agent.count(Kind::kill) == 1);
}

TEST_CASE("mpirun's daemon for another node is started there, and its end is told where it was asked for") {
  FleetStage stage({"a", "b"});
  const Agent a(stage.dir.path(), "a", [](test::Peer& peer, const Message& order) {
    if (order.kind == Kind::start)
      peer.send(Message{
          .kind = Kind::remote, .epoch = kEpoch, .number = 3, .text = "b.host", .payload = "orted -x"});
    if (order.kind == Kind::remote_ended) {
      ranks_end(peer, 0);
      peer.send(Message{.kind = Kind::exited, .epoch = kEpoch, .rank = -1, .number = 0});
    }
    answer_kill(peer, order);
  });
  const Agent b(stage.dir.path(), "b", [](test::Peer& peer, const Message& order) {
    if (order.kind == Kind::spawn) {
      for (const int first : {0, 2}) ranks_come(peer, first);
      for (const int rank : {2, 3}) peer.send(of_rank(rank, {.done = true}));
      peer.send(Message{.kind = Kind::remote_ended, .epoch = kEpoch, .number = order.number, .text = "1024"});
    }
    answer_kill(peer, order);
  });
  CHECK(stage.run(false).outcome == Verdict::finished);
  CHECK(b.last(Kind::spawn).payload == "orted -x");
  CHECK(a.last(Kind::remote_ended).number == 3);
  CHECK(a.last(Kind::remote_ended).text == "1024");
  CHECK(a.count(Kind::spawn) == 0);
}

TEST_CASE("a node that goes ends the attempt at once, with its name, and the others are told to kill") {
  FleetStage stage({"a", "b", "c"});
  const auto script = [](int node) {
    return [node](test::Peer& peer, const Message& order) {
      if (order.kind == Kind::start) {
        ranks_come(peer, kRanksOfNode * node);
        if (node == 1) peer.stream.close("crash");
      }
      answer_kill(peer, order);
    };
  };
  const Agent a(stage.dir.path(), "a", script(0)), b(stage.dir.path(), "b", script(1)),
      c(stage.dir.path(), "c", script(2));
  const Verdict verdict = stage.run();
  CHECK(verdict.outcome == Verdict::failed);
  CHECK(verdict.code == ErrorCode::kHardware);
  CHECK(verdict.cause == "b was lost with ranks 2-3: the connection was closed");
  CHECK(verdict.lost_nodes == std::vector<int>{1});
  CHECK(a.count(Kind::kill) == 1);
  CHECK(c.count(Kind::kill) == 1);
  const auto events = stage.events("node_lost");
  REQUIRE(events.size() == 1);
  CHECK(events[0]["node"] == "b");
  CHECK(events[0]["epoch"] == kEpoch);
  CHECK(events[0]["reason"] == "the connection was closed");
}
