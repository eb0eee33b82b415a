// Goal: the text of a trace is the one that viewers read: names of processes and threads, slices with
// arguments, arrows, counters and instants, in a fixed order; its metadata say how well the clocks agree.
// Method: two ranks by hand on two nodes whose clocks differ, against a text that was checked by hand
// (test/golden/trace); the same recordings in parts (missing clocks, too few steps, no room).
#include <catch2/catch.hpp>

#include "parallel/step_program.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/observe/trace/merge.h"
#include "runtime/observe/trace/span_text.h"
#include "test/support/child.h"
#include "test/support/json_schema.h"

using namespace trainctl;
using namespace trainctl::trace;
using Catch::Contains;
using parallel::Act;
using trainctl::test::read_file;

namespace {

constexpr int64_t kUs = 1000;

Recording rank_at(int rank, int pp) {
  Recording r{.rank = rank, .ranks = 2, .pp = pp, .pp_size = 2};
  r.epoch = 3;
  r.first_step = 101;
  r.last_step = 101;
  r.texts = {"receive an activation", "write and sync"};
  r.groups = {{.name = "edge", .size = 2, .own = pp, .members = {0, 1}}};
  return r;
}

Span of(SpanKind kind, int detail, int64_t begin_us, int64_t end_us) {
  return {.begin_ns = begin_us * kUs,
          .end_ns = end_us * kUs,
          .step = 101,
          .kind = kind,
          .detail = uint8_t(detail)};
}

/// A stage that sends and one, whose clock is a second ahead, that receives.
MergeInput example() {
  MergeInput input{.run_id = "demo", .requested_steps = 1};
  input.answer.state = TraceState::complete;
  input.answer.epoch = 3;
  input.answer.first_step = input.answer.last_step = 101;
  input.answer.nodes = {{.name = "node0", .first = 0, .count = 1, .before = ClockOffset{0, 0, 20e-6}},
                        {.name = "node1", .first = 1, .count = 1, .before = ClockOffset{0, 1, 30e-6}}};
  input.answer.monotonic_s = 100;
  input.answer.unix_s = 1000100;
  Recording first = rank_at(0, 0), second = rank_at(1, 1);
  Span forward = of(SpanKind::action, int(Act::forward), 1100, 1400),
       send = of(SpanKind::action, int(Act::send_activation), 1400, 1500);
  forward.micro_batch = send.micro_batch = 0;
  forward.virtual_stage = send.virtual_stage = 0;
  Span memory = of(SpanKind::memory, 0, 1000, 1000);
  memory.sent = 3 << 20;
  first.spans = {memory, of(SpanKind::phase, int(RunPhase::reading_data), 1000, 1100), forward, send,
                 of(SpanKind::step, 0, 1000, 2000)};
  const int64_t ahead = 1'000'000;
  Span wait = of(SpanKind::action, int(Act::wait_activation), ahead + 1050, ahead + 1600);
  wait.micro_batch = 0;
  wait.virtual_stage = 1;
  Span blocked = of(SpanKind::waited, 0, ahead + 1060, ahead + 1590);
  blocked.group = 0, blocked.text = 0, blocked.peers = 1;
  Span receive = of(SpanKind::exchange, 0, ahead + 1010, ahead + 1595),
       other = of(SpanKind::exchange, 0, ahead + 1020, ahead + 1030);
  receive.group = other.group = 0, receive.text = 0, receive.peers = other.peers = 1, receive.received = 4096,
  receive.tag = 2;
  Span save = of(SpanKind::save, Span::kOpen, ahead + 900, ahead + 2000);
  save.text = 1, save.step = 100, save.sent = 77;
  second.spans = {other, blocked, receive, wait, of(SpanKind::step, 0, ahead + 1000, ahead + 2100), save};
  input.recordings = {first, second};
  input.events = {R"({"v":1,"t":1000000.0015,"kind":"checkpoint","step":100})",
                  R"({"v":1,"t":999999,"kind":"start","epoch":3})", "no json", R"({"t":"x","kind":"start"})"};
  return input;
}

std::string text_of(const Trace& trace) {
  std::string text;
  write_chrome_trace(trace, [&](std::string_view piece) { text += piece; });
  return text;
}

}  // namespace

TEST_CASE("two ranks on two nodes, as text") {
  const Merged merged = merge(example());
  const std::string text = text_of(merged.trace);
  std::string expected = read_file(TRAINCTL_SOURCE_DIR "/test/golden/trace/two_ranks.json");
  expected.replace(expected.find("@VERSION@"), 9, TRAINCTL_VERSION);
  CHECK(text == expected);
  CHECK_FALSE(try_parse_json(text).is_discarded());
  CHECK(text_of(merge(example()).trace) == text);
  CHECK(merged.summary.spans == 10);
  CHECK(merged.summary.flows == 1);
  CHECK(merged.summary.notes.empty());
  auto json = parse_json(merged.summary.to_json("runs/demo/t.json", 12));
  CHECK_FALSE(json.contains("v"));
  json["v"] = 1, json["kind"] = "trace";  // the command adds them
  CHECK(test::schema_errors(test::result_schema("trace"), json).empty());
  CHECK(json["file"] == "runs/demo/t.json");
  CHECK(json["alignment_error_us"] == 50.0);
  CHECK(json["ranks"] == Json{0, 1});
}

TEST_CASE("a node without a clock is refused, unless it is the only one") {
  MergeInput input = example();
  input.answer.nodes[1].before.reset();
  CHECK_THROWS_WITH(merge(input),
                    Contains("node1 did not answer the question for its clock") && Contains("--ranks"));
  input.recordings.erase(input.recordings.begin());
  const Merged alone = merge(input);
  CHECK(alone.summary.alignment_error_s == 0);
  CHECK(alone.trace.flows.unpaired == 1);
}

TEST_CASE("what is missing is said") {
  MergeInput input = example();
  input.requested_steps = 3;
  CHECK(merge(input).summary.notes ==
        std::vector<std::string>{"the run ended with step 101: 1 of 3 steps were recorded"});
  input = example();
  input.recordings[0].overwritten = 4;
  const Merged full = merge(input);
  REQUIRE(full.summary.notes.size() == 1);
  CHECK_THAT(full.summary.notes[0], Contains("no step is whole"));
  CHECK(full.summary.overwritten == 4);
  // A clock that is behind by more than the message took.
  input = example();
  input.answer.nodes[1].before->offset_s += 1e-3;
  const Merged backwards = merge(input);
  REQUIRE(backwards.summary.notes.size() == 1);
  CHECK_THAT(backwards.summary.notes[0], Contains("1 message without an arrow"));
  CHECK(backwards.summary.flows == 0);
}

TEST_CASE("names of actions") {
  Recording r = rank_at(0, 0);
  Span span = of(SpanKind::action, int(Act::backward_input), 0, 1);
  span.micro_batch = 3;
  span.virtual_stage = 2;
  CHECK(name_of_span(span, r) == "backward input mb 3");
  r.virtual_stages = 2;
  span.part = 5;
  CHECK(name_of_span(span, r) == "backward input mb 3 vs 2 part 5");
  CHECK(std::string(category_of(span)) == "compute");
  CHECK(std::string(category_of(of(SpanKind::action, int(Act::release_gradient), 0, 1))) == "pipeline");
  for (const Act act : {Act::wait_weights, Act::reduce, Act::sum, Act::step, Act::gather})
    CHECK(std::string(category_of(of(SpanKind::action, int(act), 0, 1))) == "state");
  CHECK(name_of_rank(r, "") == "rank 0 · stage 0 · dp 0 · tp 0");
}
