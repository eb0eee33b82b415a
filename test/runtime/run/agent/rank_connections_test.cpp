// Goal: what a rank reports goes on to the supervisor as it is, the times of all ranks of a step together,
//       heartbeats stay here, and the loss of a rank comes after what it did last and before what the others
//       do now.
// Method: connections of this program as ranks; a hand-wound clock; the order of the messages is compared.
#include "runtime/run/agent/rank_connections.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>

#include "test/runtime/run/agent/node_peer.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using wire::Kind;

namespace {

/// A rank, as far as it speaks to its agent.
struct PlayedRank {
  PlayedRank(const std::string& address, int rank) : fd(connect_to(address, 5)) {
    send({.hello = protocol::Hello{.token = "token", .host = "here", .rank = rank, .pid = ::getpid()}});
  }
  ~PlayedRank() { ::close(fd); }
  void send(const protocol::Up& message) const {
    const std::string line = protocol::encode(message);
    REQUIRE(::send(fd, line.data(), line.size(), MSG_NOSIGNAL) == ssize_t(line.size()));
  }
  const int fd;
};

struct RankStage {
  bool until(size_t count) {
    return test::eventually([&] { return connections.serve(), events.size() >= count; });
  }
  /// The ranks of a message with digests, with a sign for each that is not connected: "0 1-".
  static std::string digests_of(const std::vector<wire::RankDigest>& digests) {
    std::string text;
    for (const wire::RankDigest& digest : digests)
      text += (text.empty() ? "" : " ") + std::to_string(digest.rank) + (digest.connected ? "" : "-");
    return text;
  }

  const test::TemporaryFolder folder;
  test::HandClock clock;
  std::vector<wire::Message> events;
  RankConnections connections{{.folder = folder.path(), .token = "token", .world_size = 2},
                              clock,
                              [this](wire::Message&& event) { events.push_back(std::move(event)); }};
};

}  // namespace

TEST_CASE("a rank's lines go on, its heartbeats count here", "[rank_connections]") {
  RankStage stage;
  const PlayedRank rank(stage.connections.address(), 1);
  REQUIRE(stage.until(1));
  CHECK(stage.events[0].kind == Kind::rank);
  CHECK(stage.events[0].rank == 1);
  CHECK(protocol::decode_up(stage.events[0].payload).hello->pid == ::getpid());

  stage.clock.now_s += 3;
  CHECK(stage.connections.digests().at(0).silent_s == 3);
  rank.send({.beat = protocol::Beat{}});
  CHECK(test::eventually([&] {
    stage.connections.serve();
    return stage.connections.digests().at(0).silent_s == 0;
  }));
  CHECK(stage.events.size() == 1);
  stage.clock.now_s += 2;
  rank.send({.event = protocol::Event{}});
  REQUIRE(stage.until(2));
  CHECK(protocol::decode_up(stage.events[1].payload).event);
  CHECK(stage.connections.digests().at(0).silent_s == 0);
  CHECK(stage.connections.digests().at(0).pid == ::getpid());
}

TEST_CASE("a rank's loss comes after its last state and before the state of all", "[rank_connections]") {
  RankStage stage;
  const PlayedRank other(stage.connections.address(), 0);
  REQUIRE(stage.until(1));
  {
    const PlayedRank rank(stage.connections.address(), 1);
    REQUIRE(stage.until(2));
  }
  REQUIRE(stage.until(5));
  CHECK(stage.events[2].kind == Kind::beat);
  CHECK(RankStage::digests_of(wire::unpack(stage.events[2].payload)) == "1-");
  CHECK(stage.events[3].kind == Kind::rank_lost);
  CHECK(stage.events[3].rank == 1);
  CHECK_FALSE(stage.events[3].text.empty());
  CHECK(stage.events[4].kind == Kind::beat);
  CHECK(RankStage::digests_of(wire::unpack(stage.events[4].payload)) == "0 1-");
}

TEST_CASE("the board shows what a rank does, also after its loss", "[rank_connections]") {
  RankStage stage;
  {
    const PlayedRank rank(stage.connections.address(), 1);
    REQUIRE(stage.until(1));
    CHECK_FALSE(stage.connections.digests().at(0).has_activity);
    Activity activity;
    activity.step = 7;
    ActivityBoard::open(stage.connections.board_path())->write(1, activity);
  }
  REQUIRE(stage.until(4));
  const wire::RankDigest digest = stage.connections.digests().at(0);
  REQUIRE(digest.has_activity);
  CHECK(digest.activity.step == 7);
}

TEST_CASE("the times of a step go on together, those of a rank that ends or is lost before its end",
          "[rank_connections]") {
  RankStage stage;
  const auto times = [](int64_t step, double step_s) {
    return protocol::Up{.times = protocol::Times{step, {.step_s = step_s}}};
  };
  const auto sent = [&](size_t event) {
    std::string text;
    for (const wire::RankStepTimes& t : wire::unpack_times(stage.events[event].payload))
      text += fmt::format("{}:{}:{} ", t.rank, t.step, t.times.step_s);
    return text;
  };
  const auto one = std::make_unique<PlayedRank>(stage.connections.address(), 0);
  REQUIRE(stage.until(1));
  auto two = std::make_unique<PlayedRank>(stage.connections.address(), 1);
  REQUIRE(stage.until(2));
  one->send(times(5, 0.5));
  one->send({.event = protocol::Event{}});
  REQUIRE(stage.until(3));
  CHECK(stage.events[2].kind == Kind::rank);  // the times wait for those of the other rank
  two->send(times(5, 0.25));
  REQUIRE(stage.until(4));
  CHECK(stage.events[3].kind == Kind::times);
  CHECK(sent(3) == "0:5:0.5 1:5:0.25 ");
  // Not for long.
  one->send(times(6, 1));
  one->send({.event = protocol::Event{}});
  REQUIRE(stage.until(5));
  stage.clock.now_s += 0.2;
  stage.connections.serve();
  REQUIRE(stage.events.size() == 6);
  CHECK(sent(5) == "0:6:1 ");
  // Before the rank's last line; and before the loss of any.
  one->send(times(7, 1));
  one->send({.done = true});
  REQUIRE(stage.until(8));
  CHECK(sent(6) == "0:7:1 ");
  CHECK(protocol::is_done(stage.events[7].payload));
  two->send(times(7, 2));
  two.reset();
  REQUIRE(stage.until(11));
  CHECK(sent(8) == "1:7:2 ");
  CHECK(stage.events[10].kind == Kind::rank_lost);
}
