// Goal: an agent obeys an order once, and none of an older epoch or of a stranger; a supervisor that greets
//       it again hears what it has not handled, another one what it must know, and one that keeps nothing
//       hears nothing.
// Method: AgentDialogue with effects that write down what they are asked for; orders by hand.
#include "runtime/run/agent/agent_dialogue.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/run/wire/protocol.h"
#include "test/support/thread_clock.h"

using namespace trainctl;
using wire::Kind;
using wire::Message;

namespace {

struct DialogueRig final : AgentDialogue::Effects {
  void send(const Message& message) override {
    did += fmt::format("{}{} ", wire::name_of(message.kind), message.sequence);
  }
  void send_state() override { did += "state "; }
  void order(const Message& order) override {
    did += fmt::format("do:{} ", wire::name_of(order.kind));
    if (order.kind == broken) throw Error(ErrorCode::kLauncher, "no such program");
  }
  std::optional<uint64_t> epoch() const override { return state.epoch(); }
  void kill_all() override { did += "kill "; }
  void welcomed(const wire::Welcome&) override {}
  void say(const std::string&) override {}
  void complain(const std::string& problem) override { did += problem; }

  void greet(const std::string& token) {
    state.disconnected(0);
    state.connected(0);
    obeyed = dialogue.greet(token);
  }
  void welcome(bool keep, std::optional<uint64_t> handled = std::nullopt) {
    dialogue.hear(
        {.kind = Kind::welcome, .payload = wire::Welcome{.keep = keep, .handled = handled}.to_json()});
  }
  void hear(Kind kind, uint64_t sequence, uint64_t epoch = 1, const std::string& payload = "") {
    dialogue.hear({.kind = kind, .epoch = epoch, .sequence = sequence, .payload = payload});
  }
  std::string take() { return std::exchange(did, ""); }

  test::ThreadClock clock;
  std::string did;
  std::optional<Kind> broken;
  uint64_t obeyed = 0;
  AgentState state{{}, 0};
  AgentDialogue dialogue{"n0", state, clock, *this};
};

}  // namespace

TEST_CASE("an agent obeys an order once, by its number, and another supervisor numbers anew", "[dialogue]") {
  DialogueRig rig;
  rig.hear(Kind::kill, 1);
  CHECK(rig.take().empty());  // it may be anyone
  rig.greet("one");
  rig.hear(Kind::kill, 1);
  CHECK(rig.take().empty());
  rig.welcome(false);
  CHECK(rig.take() == "kill ");
  rig.hear(Kind::look, 1);
  rig.hear(Kind::start, 2);
  CHECK(rig.take() == "do:look do:start ");
  rig.greet("one");
  CHECK((rig.obeyed == 2 && rig.dialogue.obeyed() == 2));
  rig.welcome(true, 0);
  rig.hear(Kind::start, 2);
  rig.hear(Kind::kill, 3);
  CHECK(rig.take() == "state do:kill ");
  rig.greet("another");
  CHECK(rig.obeyed == 0);
  rig.welcome(true);
  rig.hear(Kind::kill, 1);
  rig.hear(Kind::kill, 2, 0);  // of an older epoch
  CHECK(rig.take() == "state do:kill ");
}

TEST_CASE("what an agent says again depends on the supervisor", "[dialogue]") {
  DialogueRig rig;
  rig.greet("one");
  rig.welcome(false);
  rig.hear(Kind::start, 1);
  rig.take();
  rig.dialogue.tell({.kind = Kind::exited, .epoch = 1, .rank = 0});
  rig.dialogue.tell({.kind = Kind::output, .epoch = 1});
  rig.dialogue.tell({.kind = Kind::fence, .epoch = 1});  // the machine keeps it
  const protocol::Down answer{.kind = protocol::Down::saved, .number = 7};
  rig.hear(Kind::rank, 2, 1, protocol::encode(answer));
  CHECK(rig.take() == "exited1 output2 fence0 do:rank ");
  rig.greet("one");
  rig.dialogue.tell({.kind = Kind::output, .epoch = 1});
  CHECK(rig.take().empty());
  rig.welcome(true, 1);
  CHECK(rig.take() == "state answered0 output2 output3 ");
  rig.dialogue.hear({.kind = Kind::beat, .sequence = 2});
  rig.greet("another");
  rig.welcome(true);
  CHECK(rig.take() == "state answered0 exited1 output3 ");
  rig.greet("a third");
  rig.welcome(false);
  rig.greet("a fourth");
  rig.welcome(true);
  CHECK(rig.take() == "kill state ");
}

TEST_CASE("processes that cannot be started have ended, and another order that breaks is the caller's",
          "[dialogue]") {
  DialogueRig rig;
  rig.greet("one");
  rig.welcome(true);
  rig.take();
  rig.broken = Kind::start;
  rig.hear(Kind::start, 1);
  CHECK(rig.take() == "do:start output1 exited2 ");
  rig.broken = Kind::keep_only;
  CHECK_THROWS_AS(rig.hear(Kind::keep_only, 2), Error);
  CHECK(rig.take() == "do:keep_only ");
}

TEST_CASE("an agent that is ordered to end obeys first, and leaves when no process is left", "[dialogue]") {
  DialogueRig rig;
  rig.greet("one");
  rig.welcome(false);
  rig.hear(Kind::start, 1);
  rig.take();
  rig.hear(Kind::end, 2);
  CHECK(rig.take() == "do:end ");
  CHECK(rig.state.phase() == AgentState::Phase::ending);
  rig.dialogue.tell({.kind = Kind::gone, .epoch = 1});
  CHECK(rig.state.phase() == AgentState::Phase::over);
}
