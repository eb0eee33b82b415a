// The messages between the supervisor and the agents of its nodes, as they lie on a connection.
//
// Goal: what is sent is read back the same however the bytes arrive, and whatever else arrives is refused
// with a sentence: no other exception, no memory beyond the limits. Method: round trips of every kind; the
// limits at their edges; a fuzzer (seeded) that spoils sound streams and bodies or makes up bytes of its own.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "runtime/base/error.h"
#include "runtime/run/wire/node_wire.h"
#include "test/support/seed.h"

using namespace trainctl;
using wire::Kind;
using wire::Message;
using wire::MessageReader;

namespace {

constexpr Kind kLastKind = Kind::times;
constexpr int kKinds = int(kLastKind) + 1;

bool same(const Message& a, const Message& b) {
  return a.kind == b.kind && a.epoch == b.epoch && a.rank == b.rank && a.number == b.number &&
         a.text == b.text && a.payload == b.payload;
}

/// Everything in `bytes`, appended in pieces of the size that `piece` gives.
std::vector<Message> read_all(MessageReader& reader, const std::string& bytes,
                              const std::function<size_t()>& piece) {
  std::vector<Message> messages;
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = std::min(piece(), bytes.size() - at);
    reader.append(bytes.data() + at, n);
    at += n;
    while (auto message = reader.next()) messages.push_back(std::move(*message));
  }
  return messages;
}

std::string launcher_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kLauncher);
    return error.what();
  }
  return "";
}

/// What a reader that has been greeted, or has not, says of these bytes; "" if it takes them.
std::string refusal_of(const std::string& bytes, bool greeted) {
  MessageReader reader;
  if (greeted) reader.greeted();
  return launcher_error([&] { read_all(reader, bytes, [] { return size_t(4096); }); });
}

wire::NodeHello some_hello() {
  return {.token = "0123",
          .name = "node-1",
          .host = "höst \"1\"",
          .version = "1.2.3",
          .address = "10.77.0.11",
          .network = "10.77.0.0/24",
          .interface = "eth0",
          .topology = "spine.leaf0.node-1",
          .pmix_problem = "no libpmix",
          .mpirun_problem = "no mpirun",
          .run_problem = "not shared",
          .numerics = "cpu v4",
          .pid = 4711,
          .facts = {.cores = 96,
                    .memory_bytes = ~0ull,
                    .shared_memory_bytes = 1,
                    .scratch_free_bytes = 2,
                    .gpus = {{"NVIDIA H200", 8, 3}}},
          .unix_s = 1.7e9,
          .epoch = 0,
          .newest_epoch = ~0ull};
}

wire::StartOrder some_start() {
  return {.mark = "m",
          .pmix = true,
          .leads = true,
          .argv = {"/bin/trainctl", "rank", "a b", ""},
          .environment = {{"A", "1"}, {"B", "with \"quotes\"\nand lines"}, {"A", "2"}},
          .hosts = {"n0", "n1"},
          .ranks = {{0, 3}, {3, 1}},
          .this_host = 1,
          .world_size = 4,
          .session_folder = "/tmp/s",
          .shared_memory_folder = "/dev/shm/s"};
}

std::vector<wire::RankDigest> some_digests() {
  std::vector<wire::RankDigest> digests(3);
  for (int i = 0; i < 3; ++i)
    digests[size_t(i)] = {.rank = i, .pid = 100 + i, .silent_s = 0.5f * float(i), .connected = 1};
  Activity wait{.kind = Activity::waiting, .phase = RunPhase::saving, .step = 7, .communicator = "dp group"};
  wait.add_peer(2);
  digests[1].has_activity = 1;
  digests[1].stopped = 1;
  digests[1].activity = wait;
  return digests;
}

}  // namespace

TEST_CASE("the times of ranks come back as they were sent, and nothing else is taken for them") {
  const std::vector<wire::RankStepTimes> times = {{.step = 1ll << 40, .rank = 7, .times = {.step_s = 0.25}},
                                                  {.step = 3, .rank = 8, .times = RankTimes::none()}};
  const auto again = wire::unpack_times(wire::pack(times));
  REQUIRE(again.size() == 2);
  CHECK((again[0].step == 1ll << 40 && again[0].rank == 7 && again[0].times.step_s == 0.25));
  CHECK_FALSE(again[1].times.came());
  CHECK(wire::unpack_times("").empty());
  CHECK(launcher_error([&] { wire::unpack_times(wire::pack(times).substr(1)); }) ==
        fmt::format("the connection of a node carried what is no message: {} bytes of ranks' times",
                    2 * sizeof(wire::RankStepTimes) - 1));
}

TEST_CASE("every message of a node comes back as it was sent, however the bytes arrive") {
  const uint64_t seed = test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  const std::vector<std::string> texts = {"", "node0", "a \"quoted\"\nline", "ü€\U0001f600",
                                          std::string(3000, 'x')};
  const std::vector<std::string> payloads = {"", "\n", "{\"k\":\"end\"}\n", std::string("\0\xff\x80", 3),
                                             std::string(200000, '\n')};
  std::vector<Message> sent;
  std::string bytes;
  for (int kind = 0; kind < kKinds; ++kind)
    for (size_t i = 0; i < 5; ++i) {
      sent.push_back({.kind = Kind(kind),
                      .epoch = i % 2 ? ~0ull : i,
                      .rank = int(i) - 1,
                      .number = i % 2 ? std::numeric_limits<int64_t>::min() : int64_t(i),
                      .text = texts[(i + size_t(kind)) % texts.size()],
                      .payload = payloads[(i * 2 + size_t(kind)) % payloads.size()]});
      bytes += wire::encode(sent.back());
    }
  for (const size_t most : {1u, 7u, 1000u, 1000000u, 100000000u}) {
    if (most == 1 && bytes.size() > (8u << 20)) continue;
    MessageReader reader;
    reader.greeted();
    const auto got = read_all(reader, bytes, [&] { return 1 + random() % most; });
    REQUIRE(got.size() == sent.size());
    for (size_t i = 0; i < sent.size(); ++i) {
      INFO(i << " " << wire::name_of(sent[i].kind));
      CHECK(same(got[i], sent[i]));
    }
    CHECK(reader.waiting_bytes() == 0);
  }
}

TEST_CASE("the bodies of hello, welcome, start and beat come back as they were sent") {
  const wire::NodeHello hello = some_hello();
  const auto hello_again = wire::NodeHello::from_json(hello.to_json());
  CHECK(hello_again.to_json() == hello.to_json());
  CHECK(hello_again.host == hello.host);
  CHECK(hello_again.epoch == 0);
  CHECK(hello_again.newest_epoch == ~0ull);
  wire::NodeHello idle = hello;
  idle.epoch.reset();
  CHECK_FALSE(wire::NodeHello::from_json(idle.to_json()).epoch);

  const wire::Welcome welcome{.silence_s = 0.5, .grace_s = 7, .beat_s = 0.125, .keep = true};
  CHECK(wire::Welcome::from_json(welcome.to_json()).to_json() == welcome.to_json());

  const wire::StartOrder start = some_start();
  const auto start_again = wire::StartOrder::from_json(start.to_json());
  CHECK(start_again.to_json() == start.to_json());
  CHECK(start_again.argv == start.argv);
  CHECK(start_again.environment == start.environment);  // in this order: the last of a name wins
  CHECK(start_again.ranks[1].first == 3);

  const auto digests = some_digests();
  const auto digests_again = wire::unpack(wire::pack(digests));
  REQUIRE(digests_again.size() == 3);
  CHECK(wire::pack(digests_again) == wire::pack(digests));
  CHECK(render(digests_again[1].activity) == render(digests[1].activity));
  CHECK(wire::unpack("").empty());
}

TEST_CASE("what is no message of a node is refused with a sentence") {
  const std::string deep(8000, '['), nul("\0\n", 2);
  const std::vector<std::string> lines = {"\n",
                                          "x\n",
                                          "[]\n",
                                          "{}\n",
                                          "GET / HTTP/1.1\r\n",
                                          deep + "\n",
                                          nul,
                                          "{\"k\":1}\n",
                                          "{\"k\":\"what\"}\n",
                                          "{\"k\":\"hello\",\"e\":\"1\"}\n",
                                          "{\"k\":\"hello\",\"e\":-1}\n",
                                          "{\"k\":\"hello\",\"r\":[]}\n",
                                          "{\"k\":\"hello\",\"r\":4294967296}\n",
                                          "{\"k\":\"hello\",\"n\":18446744073709551615}\n",
                                          "{\"k\":\"hello\",\"t\":7}\n",
                                          "{\"k\":\"hello\",\"t\":\"\xff\"}\n",
                                          "{\"k\":\"hello\",\"b\":\"7\"}\n",
                                          "{\"k\":\"hello\",\"b\":-1}\n",
                                          "{\"k\":\"hello\",\"b\":18446744073709551615}\n",
                                          "{\"k\":\"hello\",\"b\":1e300}\n"};
  for (const std::string& line : lines) {
    INFO(line.substr(0, 80));
    const std::string refusal = refusal_of(line, true);
    CHECK(refusal.find("the connection of a node carried what is no message: ") == 0);
    CHECK(refusal.size() < 500);  // it goes into a log line, whatever was sent
  }
  const std::string hello = some_hello().to_json();
  for (const char* text : {"", "x", "[]", "{}", "7", "{\"token\":1}"}) {
    INFO(text);
    CHECK_FALSE(launcher_error([&] { wire::NodeHello::from_json(text); }).empty());
    CHECK_FALSE(launcher_error([&] { wire::Welcome::from_json(text); }).empty());
    CHECK_FALSE(launcher_error([&] { wire::StartOrder::from_json(text); }).empty());
  }
}

TEST_CASE("a start order that makes no sense is refused") {
  const auto refused = [](const std::function<void(wire::StartOrder&)>& spoil) {
    wire::StartOrder order = some_start();
    spoil(order);
    return !launcher_error([&] { wire::StartOrder::from_json(order.to_json()); }).empty();
  };
  CHECK_FALSE(refused([](wire::StartOrder&) {}));
  CHECK(refused([](wire::StartOrder& o) { o.argv.clear(); }));
  CHECK(refused([](wire::StartOrder& o) { o.world_size = 0; }));
  CHECK(refused([](wire::StartOrder& o) { o.this_host = 2; }));
  CHECK(refused([](wire::StartOrder& o) { o.this_host = -1; }));
  CHECK(refused([](wire::StartOrder& o) { o.hosts.pop_back(); }));
  CHECK(refused([](wire::StartOrder& o) { o.ranks[0].first = -1; }));
  CHECK(refused([](wire::StartOrder& o) { o.ranks[1].count = 2; }));
  CHECK(refused([](wire::StartOrder& o) { o.ranks[1] = {3, -1}; }));
  CHECK(refused([](wire::StartOrder& o) { o.ranks[1] = {2147483647, 2147483647}; }));
}

TEST_CASE("states of ranks outside their range are refused") {
  const auto spoiled = [](const std::function<void(wire::RankDigest&)>& spoil) {
    auto digests = some_digests();
    spoil(digests[1]);
    return !launcher_error([&] { wire::unpack(wire::pack(digests)); }).empty();
  };
  const auto byte = [](auto& member, uint8_t value) { std::memcpy(&member, &value, 1); };
  CHECK_FALSE(spoiled([](wire::RankDigest&) {}));
  CHECK(spoiled([&](wire::RankDigest& d) { byte(d.activity.kind, 2); }));
  CHECK(spoiled([&](wire::RankDigest& d) { byte(d.activity.phase, uint8_t(RunPhase::leaving) + 1); }));
  CHECK(spoiled([&](wire::RankDigest& d) { byte(d.activity.in_bytes, 2); }));
  CHECK(spoiled([&](wire::RankDigest& d) { byte(d.activity.more_peers, 255); }));
  CHECK(spoiled([](wire::RankDigest& d) { d.activity.peer_count = 9; }));
  CHECK(spoiled([](wire::RankDigest& d) { d.activity.peer_count = -1; }));
  CHECK(spoiled([](wire::RankDigest& d) { d.silent_s = NAN; }));
  CHECK(spoiled([](wire::RankDigest& d) { d.silent_s = INFINITY; }));
  CHECK(spoiled([](wire::RankDigest& d) { d.silent_s = -1; }));
  CHECK_FALSE(launcher_error([] { wire::unpack("x"); }).empty());
  // Without an activity its bytes do not matter.
  CHECK_FALSE(spoiled([](wire::RankDigest& d) { d.has_activity = 0, d.activity.peer_count = 9; }));
}

TEST_CASE("before the greeting a stranger can make nobody keep more than a header") {
  const auto of_size = [](size_t payload) {
    return wire::encode({.kind = Kind::hello, .payload = std::string(payload, 'x')});
  };
  const size_t header = of_size(10000).size() - 10000;
  CHECK(refusal_of(of_size(wire::kMaxHeaderBytes - header), false).empty());
  CHECK_FALSE(refusal_of(of_size(wire::kMaxHeaderBytes - header + 1), false).empty());
  CHECK_FALSE(refusal_of(of_size(wire::kMaxHeaderBytes + 1), false).empty());
  CHECK(refusal_of(of_size(wire::kMaxHeaderBytes + 1), true).empty());
  // The announcement alone is enough to refuse, and so is a line that does not end.
  CHECK_FALSE(refusal_of("{\"k\":\"hello\",\"b\":16385}\n", false).empty());
  for (const bool greeted : {false, true}) {
    CHECK(refusal_of(std::string(wire::kMaxHeaderBytes, 'x'), greeted).empty());
    CHECK_FALSE(refusal_of(std::string(wire::kMaxHeaderBytes + 1, 'x'), greeted).empty());
  }
  // Nor do many small messages help it.
  std::string many;
  while (many.size() <= wire::kMaxHeaderBytes) many += wire::encode({.kind = Kind::beat});
  CHECK_FALSE(refusal_of(many, false).empty());
  CHECK(refusal_of(many, true).empty());
  // After the greeting the largest payload is taken and one more byte is not.
  CHECK(refusal_of(fmt::format("{{\"k\":\"rank\",\"b\":{}}}\n", wire::kMaxPayloadBytes), true).empty());
  CHECK_FALSE(
      refusal_of(fmt::format("{{\"k\":\"rank\",\"b\":{}}}\n", wire::kMaxPayloadBytes + 1), true).empty());
}

TEST_CASE("a reader keeps no more than the message that is under way") {
  MessageReader reader;
  reader.greeted();
  const std::string small = wire::encode({.kind = Kind::output, .payload = std::string(100, 'x')});
  // Messages and a piece of the next, again and again: what was read goes.
  std::string stream;
  for (int i = 0; i < 5000; ++i) stream += small;
  size_t most = 0, got = 0;
  for (size_t at = 0; at < stream.size(); at += 777) {
    reader.append(stream.data() + at, std::min<size_t>(777, stream.size() - at));
    while (reader.next()) ++got;
    most = std::max(most, reader.waiting_bytes());
  }
  CHECK(got == 5000);
  CHECK(most < small.size());
  // Always in the middle of a payload, never at its end.
  const std::string large = wire::encode({.kind = Kind::output, .payload = std::string(10000, 'x')});
  stream.assign(large.begin(), large.begin() + 5000);
  for (int i = 0; i < 1000; ++i) {
    reader.append(stream.data(), stream.size());
    while (reader.next()) ++got;
    REQUIRE(reader.waiting_bytes() < large.size());
    stream = large.substr(5000) + large.substr(0, 5000);
  }
  CHECK(got == 5999);
}

// ---- the fuzzer

namespace {

/// Spoils text in one of the ways that break parsers.
void spoil(std::string& text, std::mt19937& random) {
  static const char* const kNasty[] = {"-1",   "1e308", "null", "true", "\"\"", "{}", "[]",
                                       "\\u0", "\xff",  "\n",   "}",    "[[[[", "0.5", "1e",
                                       "\"",   "18446744073709551616"};
  const auto at = [&] { return random() % (text.size() + 1); };
  switch (random() % 6) {
    case 0: text.resize(at()); break;
    case 1: text.erase(0, at()); break;
    case 2: text.insert(at(), kNasty[random() % std::size(kNasty)]); break;
    case 3:
      for (size_t i = 1 + random() % 8; i > 0 && !text.empty(); --i)
        text[random() % text.size()] ^= char(1 << random() % 8);
      break;
    case 4: {
      // A number becomes another: of a length, a rank, an epoch.
      const size_t digit = text.find_first_of("0123456789", at());
      if (digit == std::string::npos) break;
      const size_t end = std::min(text.find_first_not_of("0123456789", digit), text.size());
      text.replace(digit, end - digit, kNasty[random() % std::size(kNasty)]);
      break;
    }
    case 5:
      for (size_t i = random() % 40; i > 0; --i) text.insert(at(), 1, char(random() % 256));
      break;
  }
}

struct Counts {
  int messages = 0, refused = 0;
};

/// Anything but a message or an Error fails the test, or ends it.
void feed(const std::string& bytes, bool greeted, std::mt19937& random, Counts& counts) {
  MessageReader reader;
  if (greeted) reader.greeted();
  try {
    const auto messages = read_all(reader, bytes, [&] { return 1 + random() % 300; });
    counts.messages += int(messages.size());
    for (const Message& message : messages) {
      CHECK(int(message.kind) < kKinds);
      CHECK(message.payload.size() <= bytes.size());
      wire::encode({.kind = message.kind, .epoch = message.epoch, .payload = message.payload});
    }
    CHECK(reader.waiting_bytes() <= bytes.size());
  } catch (const Error&) {
    ++counts.refused;
  }
}

void feed_body(const std::string& text, Counts& counts) {
  const auto attempt = [&](auto read) {
    try {
      read();
      ++counts.messages;
    } catch (const Error&) {
      ++counts.refused;
    }
  };
  attempt([&] { wire::NodeHello::from_json(wire::NodeHello::from_json(text).to_json()); });
  attempt([&] { wire::Welcome::from_json(wire::Welcome::from_json(text).to_json()); });
  attempt([&] { wire::StartOrder::from_json(wire::StartOrder::from_json(text).to_json()); });
  attempt([&] {
    for (const wire::RankDigest& digest : wire::unpack(text)) {
      CHECK(digest.silent_s >= 0);
      render(digest.activity);
      to_json(digest.activity);
    }
  });
}

}  // namespace

TEST_CASE("whatever arrives becomes messages or one Error") {
  const uint64_t seed = test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  const std::vector<Message> sound = {
      {.kind = Kind::hello, .payload = some_hello().to_json()},
      {.kind = Kind::welcome, .payload = wire::Welcome{}.to_json()},
      {.kind = Kind::start, .epoch = 3, .payload = some_start().to_json()},
      {.kind = Kind::beat, .epoch = 3, .payload = wire::pack(some_digests())},
      {.kind = Kind::rank, .epoch = 3, .rank = 2, .payload = "{\"k\":\"done\"}"},
      {.kind = Kind::exited, .epoch = 3, .rank = 2, .number = 9},
      {.kind = Kind::remote, .epoch = 3, .number = 1, .text = "node1", .payload = "orted"}};
  Counts spoiled, made_up, bodies;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    for (size_t i = 1 + random() % 4; i > 0; --i) bytes += wire::encode(sound[random() % sound.size()]);
    for (size_t i = 1 + random() % 3; i > 0; --i) spoil(bytes, random);
    feed(bytes, random() % 2, random, spoiled);

    std::string noise(random() % 200, ' ');
    for (char& c : noise) c = char(random() % 256);
    feed((random() % 2 ? "{\"k\":\"rank\",\"b\":9}\n" : "") + noise, random() % 2, random, made_up);

    std::string body = sound[random() % 4].payload;
    spoil(body, random);
    feed_body(body, bodies);
  }
  // Both happened, or the fuzzer has lost its way.
  for (const Counts& counts : {spoiled, made_up, bodies}) {
    CHECK(counts.messages > 1000);
    CHECK(counts.refused > 1000);
  }
}
