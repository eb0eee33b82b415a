// The messages of the control channel between ranks and the agent of their node.
//
// Goal: what is sent is read back the same, and what is no message is refused with a sentence. Method: round
// trips of every kind; nonsense; lines cut at random places (seeded).
#include <catch2/catch.hpp>

#include <cmath>
#include <random>

#include "runtime/base/error.h"
#include "runtime/run/wire/protocol.h"
#include "test/support/seed.h"

using namespace trainctl;

TEST_CASE("every message comes back as it was sent") {
  using namespace protocol;
  const auto round = [](const Up& up) {
    std::string line = encode(up);
    REQUIRE(line.back() == '\n');
    line.pop_back();
    REQUIRE(line.find('\n') == std::string::npos);
    const Up back = decode_up(line);
    CHECK(encode(back) == line + "\n");
    // An agent sorts lines without parsing them.
    CHECK(is_beat(line) == up.beat.has_value());
    CHECK(shard_number(line) == (up.shard ? std::optional(up.shard->number) : std::nullopt));
    CHECK(is_done(line) == up.done);
    CHECK(is_times(line) == up.times.has_value());
    return back;
  };
  CHECK(round({.hello = Hello{"token", "host", 3, 99}}).hello->pid == 99);
  const Activity loading{.phase = RunPhase::loading, .done = 7, .total = 9, .in_bytes = true, .detail = "\"quoted\", µ"};
  CHECK(to_json(round({.beat = Beat{loading}}).beat->activity) == to_json(loading));
  const StepLine line{.step = 7, .loss = 1.0 / 3};
  CHECK(step_line_text(round({.step = StepReport{line, false}}).step->line) == step_line_text(line));
  const StepWork work{.tokens = 9, .stages = 4};
  const auto timed = round({.step = StepReport{line, true, work, true, R"({"v":1,"load":[[1]]})"}}).step;
  CHECK(timed->experts == R"({"v":1,"load":[[1]]})");
  REQUIRE(timed->work);
  CHECK((timed->work->tokens == 9 && timed->work->stages == 4 && timed->each_rank));
  // To the bit, and what is not known stays so.
  const RankTimes of_rank{.forward_s = 0.1, .step_s = 1.0 / 3, .peak_bytes = 123456789012};
  const auto times = round({.times = Times{8, of_rank}}).times;
  CHECK(times->step == 8);
  CHECK(times->times.step_s == 1.0 / 3);
  CHECK(times->times.peak_bytes == 123456789012);
  CHECK(std::isnan(times->times.power_w));
  CHECK_THROWS_AS(decode_up(R"({"k":"times","step":8,"times":[1,2]})"), Error);
  CHECK(round({.event = Event{EventKind::step_skipped, "{}"}}).event->kind == EventKind::step_skipped);
  for (const char* mimic : {R"({"k":"beat"})", R"(,"k":"shard","number":7,)"}) {
    CHECK(round({.event = Event{EventKind::failure, mimic}}).event->json == mimic);
    CHECK(round({.shard = Shard{.step = 5, .failure = mimic}}).shard->failure == mimic);
  }
  CHECK(round({.done = true}).done);
  const auto traced =
      round({.trace = TraceResult{.number = 5, .first_step = 2, .last_step = 4, .problem = R"("k":"beat"})"}}).trace;
  REQUIRE(traced);
  CHECK(traced->last_step == 4);
  CHECK(traced->problem == R"("k":"beat"})");
  const ckpt::StateInfo state{.run_id = "r",
                              .epoch = 2,
                              .step = 5,
                              .tokens = 10,
                              .seed = ~0ull,
                              .spec_hash = "h",
                              .program_version = "v",
                              .numerics = "cpu v4",
                              .extra_json = "{}",
                              .resolved_spec_json = "{\n}"};
  Shard shard{.epoch = 2,
              .step = 5,
              .number = 4,
              .tensors = {{"w", ckpt::Role::second_moment, DType::bf16, {3, 4}},
                          {"w", ckpt::Role::first_moment, DType::i8, {3, 4}},
                          {"v", ckpt::Role::second_moment, DType::u8, {3, 4}},
                          {"v", ckpt::Role::second_scales, DType::f32, {1}},
                          {"v", ckpt::Role::ema, DType::f32, {3, 4}}}};
  shard.receipt.file = "shard";
  shard.receipt.file_bytes = 24;
  shard.receipt.entries = {{.tensor = "w",
                            .shape = {3, 4},
                            .box = {0, 1, 0, 4},
                            .offset = 8,
                            .bytes = 16,
                            .hash = ~0ull,
                            .content_hash = 1}};
  const auto back = round({.shard = shard}).shard;
  CHECK(back->tensors == shard.tensors);
  CHECK((back->number == 4 && back->epoch == 2 && !back->state));
  shard.state = state;
  const auto first = round({.shard = shard}).shard;
  REQUIRE(first->state);
  CHECK(first->state->seed == ~0ull);
  CHECK(first->state->resolved_spec_json == "{\n}");
  CHECK(first->state->numerics == "cpu v4");
  CHECK(back->receipt.entries.at(0).hash == ~0ull);
  for (const Down& down :
       {Down{Down::welcome}, Down{Down::stop, StopLevel::now},
        Down{.kind = Down::saved, .ok = false, .number = 3, .message = "full"},
        Down{.kind = Down::saved, .number = 3, .message = "root"},
        Down{.kind = Down::trace,
             .order = {.number = 9, .first_step = 100, .steps = 4, .ranks = {0, 8}, .folder = "/a/trace/9"}}}) {
    const Down again = decode_down(encode(down).substr(0, encode(down).size() - 1));
    CHECK(encode(again) == encode(down));
    CHECK(encode(again) == encode(down));
  }
}

TEST_CASE("nonsense on the channel is refused with a sentence") {
  for (const char* line : {"", "x", "[]", "{}", "{\"k\":1}", "{\"k\":\"hello\"}", "{\"k\":\"what\"}", "{\"k\":\"beat\",\"activity\":{}}",
                           "{\"k\":\"shard\",\"step\":1}"}) {
    INFO(line);
    CHECK_THROWS_AS(protocol::decode_up(line), Error);
    CHECK_THROWS_AS(protocol::decode_down(line), Error);
  }
}

TEST_CASE("lines are cut right however the bytes arrive") {
  const uint64_t seed = test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::string stream;
    std::vector<std::string> expected, got;
    for (int i = 0; i < 20; ++i) {
      expected.push_back(std::string(random() % 30, char('a' + i)));
      stream += expected.back() + "\n";
    }
    protocol::LineBuffer buffer;
    for (size_t at = 0; at < stream.size();) {
      const size_t n = std::min<size_t>(1 + random() % 40, stream.size() - at);
      buffer.append(stream.data() + at, n);
      at += n;
      while (const auto line = buffer.next()) got.push_back(*line);
    }
    CHECK(got == expected);
  }
}
