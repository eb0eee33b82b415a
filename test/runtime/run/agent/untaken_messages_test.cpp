// Goal: a supervisor that comes after another one gets all that the one before may not have taken, and
//       nothing twice that it has; what is kept for an absent supervisor is limited.
// Method: messages of each kind by hand; what is kept is listed after each step.
#include "runtime/run/agent/untaken_messages.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "runtime/run/wire/protocol.h"

using namespace trainctl;
using wire::Kind;
using wire::Message;

namespace {

/// A line as it arrives from a rank, without its newline.
std::string up_line(const protocol::Up& up) {
  std::string line = protocol::encode(up);
  line.pop_back();
  return line;
}
Message done_of(int rank) { return {.kind = Kind::rank, .rank = rank, .payload = up_line({.done = true})}; }
Message event_of(int rank) {
  return {.kind = Kind::rank, .rank = rank, .payload = up_line({.event = protocol::Event{}})};
}
Message shard_of(int rank, int64_t save) {
  protocol::Shard shard;
  shard.number = save;
  return {.kind = Kind::rank, .rank = rank, .payload = up_line({.shard = shard})};
}
Message output_of(const std::string& text) { return {.kind = Kind::output, .payload = text}; }

/// "ends: 1 4; saves: 2; others: 3": the numbers of what is kept.
std::string kept(const UntakenMessages& untaken) {
  std::string text = "ends:";
  for (const Message& message : untaken.ends()) text += fmt::format(" {}", message.sequence);
  text += "; saves:";
  for (const UntakenMessages::Save& save : untaken.saves()) text += fmt::format(" {}", save.message.sequence);
  text += "; others:";
  for (const Message& message : untaken.others()) text += fmt::format(" {}", message.sequence);
  return text;
}
uint64_t keep(UntakenMessages& untaken, Message message) {
  untaken.keep(message);
  return message.sequence;
}
std::string answer_to(int64_t save, bool ok) {
  return protocol::encode(protocol::Down{.kind = protocol::Down::saved, .ok = ok, .number = save});
}

}  // namespace

TEST_CASE("messages are numbered from 1 and kept by what they wait for", "[untaken]") {
  UntakenMessages untaken;
  CHECK(keep(untaken, output_of("text")) == 1);
  CHECK(keep(untaken, done_of(0)) == 2);
  CHECK(keep(untaken, shard_of(1, 7)) == 3);
  CHECK(keep(untaken, event_of(1)) == 4);
  CHECK(keep(untaken, {.kind = Kind::exited, .rank = 1}) == 5);
  CHECK(keep(untaken, {.kind = Kind::rank_lost, .rank = 1}) == 6);
  CHECK(keep(untaken, {.kind = Kind::gone}) == 7);
  CHECK(kept(untaken) == "ends: 2 5 6; saves: 3; others: 1 4 7");
  CHECK(untaken.others()[0].payload == "text");
  std::vector<uint64_t> numbers;
  for (const Message& message : untaken.after(2)) numbers.push_back(message.sequence);
  CHECK(numbers == std::vector<uint64_t>{3, 4, 5, 6, 7});
  CHECK(untaken.after(7).empty());
}

TEST_CASE("a supervisor that follows another one hears answers before what waits for one", "[untaken]") {
  UntakenMessages untaken;
  keep(untaken, output_of("text"));
  keep(untaken, shard_of(1, 8));
  keep(untaken, done_of(0));
  untaken.answered(answer_to(7, true));
  std::string heard;
  for (const Message& message : untaken.again(3))
    heard += message.kind == Kind::answered
                 ? fmt::format("{} of epoch {} ", message.payload == answer_to(7, true), message.epoch)
                 : fmt::format("{} ", message.sequence);
  CHECK(heard == "true of epoch 3 1 2 3 ");  // it asks for what comes after the last number that it has
}

TEST_CASE("what the supervisor has handled goes, but ends and saves stay", "[untaken]") {
  UntakenMessages untaken;
  keep(untaken, done_of(0));
  keep(untaken, shard_of(0, 7));
  keep(untaken, output_of("a"));
  keep(untaken, output_of("b"));
  untaken.taken(0);
  CHECK(kept(untaken) == "ends: 1; saves: 2; others: 3 4");
  untaken.taken(3);
  CHECK(kept(untaken) == "ends: 1; saves: 2; others: 4");
  untaken.taken(100);
  CHECK(kept(untaken) == "ends: 1; saves: 2; others:");
}

TEST_CASE("the answer to a save, published or refused, ends its parts alone", "[untaken]") {
  for (const bool ok : {true, false}) {
    UntakenMessages untaken;
    for (const int64_t save : {7, 8})
      for (const int rank : {0, 1}) keep(untaken, shard_of(rank, save));
    untaken.answered(protocol::encode(protocol::Down{.kind = protocol::Down::alive, .number = 7}));
    untaken.answered(answer_to(9, ok));
    CHECK(kept(untaken) == "ends:; saves: 1 2 3 4; others:");
    untaken.answered(answer_to(7, ok));
    CHECK(kept(untaken) == "ends:; saves: 3 4; others:");
    untaken.answered(answer_to(7, ok));  // the same answer may come twice
    untaken.answered(answer_to(8, ok));
    CHECK(kept(untaken) == "ends:; saves:; others:");
  }
}

TEST_CASE("another epoch begins with nothing, and numbers go on", "[untaken]") {
  UntakenMessages untaken;
  keep(untaken, done_of(0));
  keep(untaken, shard_of(0, 7));
  keep(untaken, output_of("a"));
  untaken.clear();
  CHECK(kept(untaken) == "ends:; saves:; others:");
  CHECK(keep(untaken, output_of("b")) == 4);
}

TEST_CASE("beyond the limits the oldest output goes, then the oldest message", "[untaken]") {
  UntakenMessages by_count({.messages = 3, .payload_bytes = 1000000});
  keep(by_count, event_of(0));
  keep(by_count, output_of("a"));
  keep(by_count, event_of(1));
  keep(by_count, output_of("b"));
  CHECK(kept(by_count) == "ends:; saves:; others: 1 3 4");
  keep(by_count, event_of(2));
  CHECK(kept(by_count) == "ends:; saves:; others: 1 3 5");
  keep(by_count, event_of(3));
  CHECK(kept(by_count) == "ends:; saves:; others: 3 5 6");

  UntakenMessages by_bytes({.messages = 100, .payload_bytes = 10});
  keep(by_bytes, output_of("1234"));
  keep(by_bytes, output_of("5678"));
  keep(by_bytes, output_of("90"));
  CHECK(kept(by_bytes) == "ends:; saves:; others: 1 2 3");
  keep(by_bytes, output_of("x"));
  CHECK(kept(by_bytes) == "ends:; saves:; others: 2 3 4");
  // The bytes of what was taken and of what was cleared do not count any more.
  by_bytes.taken(2);
  keep(by_bytes, output_of("1234567"));
  CHECK(kept(by_bytes) == "ends:; saves:; others: 3 4 5");
  by_bytes.clear();
  keep(by_bytes, output_of("1234567890"));
  CHECK(kept(by_bytes) == "ends:; saves:; others: 6");
}

TEST_CASE("neither ends nor saves are dropped for their size", "[untaken]") {
  UntakenMessages untaken({.messages = 1, .payload_bytes = 1});
  for (int rank = 0; rank < 4; ++rank) {
    keep(untaken, done_of(rank));
    keep(untaken, shard_of(rank, 7));
  }
  CHECK(kept(untaken) == "ends: 1 3 5 7; saves: 2 4 6 8; others:");
}

TEST_CASE("of more saves than are kept the oldest goes, with the parts of all ranks", "[untaken]") {
  UntakenMessages untaken;
  constexpr auto kMost = int64_t(protocol::kMostUnpublishedSaves);
  for (int64_t save = 0; save < kMost; ++save)
    for (const int rank : {0, 1}) keep(untaken, shard_of(rank, save));
  CHECK(untaken.saves().size() == size_t(2 * kMost));
  keep(untaken, shard_of(0, kMost));
  CHECK(untaken.saves().size() == size_t(2 * kMost - 1));
  for (const UntakenMessages::Save& save : untaken.saves()) CHECK(save.number >= 1);
  for (int64_t save = kMost; save < 100; ++save) keep(untaken, shard_of(1, save));
  CHECK(untaken.saves().size() == size_t(kMost));
  CHECK(untaken.saves().front().number == 100 - kMost);
}

TEST_CASE("the newest answers are kept for a supervisor that does not know them", "[untaken]") {
  UntakenMessages untaken;
  untaken.answered(protocol::encode(protocol::Down{.kind = protocol::Down::alive}));
  CHECK(untaken.answers().newest().empty());
  for (int64_t save = 0; save < 100; ++save) untaken.answered(answer_to(save, save % 2 == 0));
  REQUIRE(untaken.answers().newest().size() == SaveAnswers::kMost);
  CHECK(untaken.again(1).front().payload == answer_to(100 - int64_t(SaveAnswers::kMost), true));
  CHECK(untaken.again(1).back().payload == answer_to(99, false));
  untaken.clear();
  CHECK(untaken.answers().newest().empty());
}

TEST_CASE("an answer to one rank leaves what the others have handed in", "[untaken]") {
  UntakenMessages untaken;
  for (const int rank : {0, 1}) keep(untaken, shard_of(rank, 7));
  untaken.answered(answer_to(7, false), 1);
  CHECK(kept(untaken) == "ends:; saves: 1; others:");
  untaken.answered(answer_to(7, false), 0);
  CHECK(kept(untaken) == "ends:; saves:; others:");
}
