// Goal: the waits of a trace are attributed to the peers they were for, as means over ranks and steps; gathers of
// experts and of context are named. Method: spans by hand on groups with the names that ranks give them.
#include <catch2/catch.hpp>

#include "parallel/step_program.h"
#include "runtime/observe/trace/peer_times.h"
#include "runtime/observe/trace/span_text.h"

using namespace trainctl;
using namespace trainctl::trace;
using Catch::Contains;

namespace {

RankTrace traced_rank() {
  Recording r{.texts = {"all-gather", "send rows to their experts"},
              .groups = {{.name = "expert group 0 of stage 0, dp 0, tp 0"},
                         {.name = "cp group of stage 0, dp 0, tp 0"},
                         {.name = "pp group of dp 0, tp 0, activations between stages 0 and 1"}}};
  const auto span = [](SpanKind kind, uint16_t group, uint16_t text, int64_t from_ms, int64_t to_ms) {
    Span s{.begin_ns = from_ms * 1'000'000, .end_ns = to_ms * 1'000'000, .step = 1, .kind = kind};
    s.group = group, s.text = text;
    if (kind == SpanKind::exchange) s.sent = 1000;
    return s;
  };
  r.spans = {span(SpanKind::waited, 0, 0, 1, 2),
             span(SpanKind::waited, 0, 1, 3, 8),
             span(SpanKind::exchange, 0, 1, 2, 8),
             span(SpanKind::waited, 1, 0, 10, 12),
             span(SpanKind::exchange, 1, 0, 9, 12),
             span(SpanKind::exchange, 2, Span::kNone, 0, 20),
             span(SpanKind::step, Span::kNone, Span::kNone, 0, 20)};
  return place(std::move(r), "", ClockAlignment());
}

}  // namespace

TEST_CASE("waits and exchanges of a trace by the peers they are with", "[experts]") {
  const std::vector<PeerTime> times = peer_times({traced_rank(), traced_rank()}, 2);
  REQUIRE(times.size() == 3);
  CHECK(times[0].peers == "experts");
  CHECK(times[0].wait_s == Approx(0.003));  // 6 ms on each rank, in two steps
  CHECK(times[0].exchange_s == Approx(0.003));
  CHECK(times[0].sent_bytes == 500);
  CHECK(times[1].peers == "context");
  CHECK(times[1].wait_s == Approx(0.001));
  CHECK(times[2].peers == "pipeline");
  CHECK(times[2].wait_s == 0);
  CHECK(peer_times({}, 0).empty());
  CHECK(peers_of_group("expert data group 0 of stage 0") == "gradients of experts");
  CHECK(peers_of_group("dp group of stage 1, tp 0") == "data");
  CHECK(peers_of_group("tied embedding of dp 0") == "tied embedding");
  CHECK(peers_of_group("world") == "other");
}

TEST_CASE("what ranks computed in each action, without the waits within", "[trace]") {
  Recording r{.texts = {"all-gather"}, .groups = {{.name = "tp group of stage 0, dp 0"}}};
  const auto add = [&](SpanKind kind, parallel::Act act, int64_t from_ms, int64_t to_ms) {
    Span s{.begin_ns = from_ms * 1'000'000, .end_ns = to_ms * 1'000'000, .step = 1, .kind = kind};
    if (kind == SpanKind::action) s.detail = uint8_t(act);
    if (kind == SpanKind::waited) s.group = 0, s.text = 0;
    r.spans.push_back(s);
  };
  using parallel::Act;
  add(SpanKind::waited, Act::forward, 1, 3);
  add(SpanKind::waited, Act::forward, 5, 6);
  add(SpanKind::action, Act::forward, 0, 10);
  add(SpanKind::waited, Act::forward, 11, 15);  // between two actions
  add(SpanKind::action, Act::backward_weight, 16, 20);
  add(SpanKind::action, Act::forward, 20, 24);
  add(SpanKind::step, Act::forward, 0, 25);
  const std::vector<ActionTime> times =
      action_times({place(r, "", ClockAlignment()), place(r, "", ClockAlignment())}, 1);
  REQUIRE(times.size() == 2);
  CHECK(times[0].action == "forward");
  CHECK(times[0].compute_s == Approx(0.011));
  CHECK(times[1].action == "backward_weight");
  CHECK(times[1].compute_s == Approx(0.004));
  r.on_device = true;
  CHECK(action_times({place(r, "", ClockAlignment())}, 1).empty());
}

TEST_CASE("a gather is named by what it is for", "[experts]") {
  const RankTrace rank = traced_rank();
  const std::vector<Span>& spans = rank.recording.spans;
  CHECK(name_of_span(spans[0], rank.recording) == "wait: count the rows of experts");
  CHECK(name_of_span(spans[1], rank.recording) == "wait: send rows to their experts");
  CHECK(name_of_span(spans[4], rank.recording) == "gather keys and values");
  CHECK_THAT(arguments_of(spans[2], rank.recording), Contains(R"("of":"experts")"));
}
