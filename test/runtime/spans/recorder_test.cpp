// Goal: a recorder keeps the newest spans that end while it records, from several threads, in the order in
// which they ended; numbers of texts and groups fit the tables that go with them, also in the next trace; a
// save that is longer than the trace is in it.
// Method: a clock that the test moves; a ring of four spans; threads that record at once.
#include <catch2/catch.hpp>
#include <thread>

#include "runtime/spans/recorder.h"
#include "test/support/hand_clock.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

Recording taken(SpanRecorder& recorder) {
  Recording recording;
  recorder.take(recording);
  return recording;
}

Span at(double begin_s, double end_s, SpanKind kind = SpanKind::phase) {
  return {.begin_ns = SpanRecorder::ns_of(begin_s), .end_ns = SpanRecorder::ns_of(end_s), .kind = kind};
}

}  // namespace

TEST_CASE("a recorder without room, or that is off, keeps nothing") {
  SpanRecorder empty;
  empty.begin();
  CHECK_FALSE(empty.on());
  { const RecordSpan span(&empty, {}); }
  { const RecordSpan span(nullptr, {}); }
  { const RecordSave save(&empty, "write", 3); }
  CHECK(taken(empty).spans.empty());
  SpanRecorder recorder;
  recorder.reserve(4);
  recorder.record(at(1, 2));
  { const RecordSpan span(&recorder, {}); }
  CHECK(taken(recorder).spans.empty());
  recorder.begin();
  recorder.end();
  recorder.record(at(1, 2));
  CHECK(taken(recorder).spans.empty());
}

TEST_CASE("the ring keeps the newest spans and counts those that it overwrote") {
  HandClock clock;
  clock.now_s = 1;
  SpanRecorder recorder(clock);
  recorder.reserve(4);
  recorder.begin();
  for (int i = 0; i < 7; ++i) {
    RecordSpan span(&recorder, {.step = i});
    clock.now_s += 1;
  }
  const Recording recording = taken(recorder);
  CHECK(recording.overwritten == 3);
  REQUIRE(recording.spans.size() == 4);
  for (int i = 0; i < 4; ++i) {
    CHECK(recording.spans[size_t(i)].step == i + 3);
    CHECK(recording.spans[size_t(i)].begin_ns == int64_t(i + 4) * 1'000'000'000);
    CHECK(recording.spans[size_t(i)].end_ns == int64_t(i + 5) * 1'000'000'000);
  }
  recorder.begin();
  recorder.record(at(clock.now_s, clock.now_s + 1));
  CHECK(taken(recorder).spans.size() == 1);
  CHECK(taken(recorder).overwritten == 0);
}

TEST_CASE("a span of the main thread that began before the trace is not in it") {
  HandClock clock;
  clock.now_s = 1;
  SpanRecorder recorder(clock);
  recorder.reserve(8);
  clock.now_s = 10;
  recorder.begin();
  for (const SpanKind kind : {SpanKind::step, SpanKind::action, SpanKind::waited, SpanKind::exchange})
    recorder.record(at(9, 11, kind));
  CHECK(taken(recorder).spans.empty());
  recorder.record(at(9, 11, SpanKind::data));
  recorder.record(at(10, 11, SpanKind::exchange));
  CHECK(taken(recorder).spans.size() == 2);
}

TEST_CASE("texts and groups have numbers in the tables of their trace") {
  HandClock clock;
  clock.now_s = 1;
  SpanRecorder recorder(clock);
  recorder.reserve(8);
  recorder.begin();
  const uint16_t wait = recorder.text("receive an activation");
  CHECK(recorder.text("reduce gradients") != wait);
  CHECK(recorder.text("receive an activation") == wait);
  const std::string longer(300, 'x');
  CHECK(recorder.text(longer) == recorder.text(longer));
  const uint16_t named = recorder.group("dp group");
  const uint16_t known = recorder.group("dp group", 3, 1, [](int r) { return 10 * r; });
  CHECK(named == known);
  const int32_t world[] = {20, 5};
  CHECK(recorder.peers(known, world) == 0b100);
  CHECK(recorder.peers(Span::kNone, world) == 0);
  const uint16_t wide = recorder.group("world", 100, 70, [](int r) { return r; });
  const int32_t far[] = {0, 63, 64, 99};
  CHECK(recorder.peers(wide, far) == ((uint64_t(1) << 63) | 1));
  const Recording recording = taken(recorder);
  REQUIRE(recording.groups.size() == 2);
  CHECK(recording.groups[known].name == "dp group");
  CHECK(recording.groups[known].members == std::vector<int>{0, 10, 20});
  CHECK(recording.groups[known].own == 1);
  CHECK(recording.groups[wide].members.size() == 64);
  CHECK(recording.groups[wide].size == 100);
  CHECK(recording.texts[wait] == "receive an activation");
  CHECK(recording.texts[2] == longer.substr(0, 78));
  // A full table gives no number, and forgets nothing.
  for (int i = 0; i < 200; ++i) recorder.text(std::to_string(i)), recorder.group(std::to_string(i));
  CHECK(recorder.text("one too many") == Span::kNone);
  CHECK(recorder.group("one too many") == Span::kNone);
  CHECK(recorder.text("receive an activation") == wait);
  // The next trace begins with empty tables.
  recorder.begin();
  CHECK(recorder.text("new") == 0);
  CHECK(taken(recorder).groups.empty());
}

TEST_CASE("a save that began before the trace, or goes on behind it, is in it") {
  HandClock clock;
  clock.now_s = 1;
  SpanRecorder recorder(clock);
  recorder.reserve(8);
  clock.now_s = 5;
  const int before = recorder.open("write and sync", 40);
  clock.now_s = 10;
  recorder.begin();
  clock.now_s = 12;
  recorder.close(before, 100);
  const int open = recorder.open("copy and hash", 41), closed_late = recorder.open("read back", 41);
  clock.now_s = 15;
  recorder.end();
  clock.now_s = 20;
  recorder.close(closed_late, 7);
  const int after = recorder.open("write and sync", 42);
  const Recording recording = taken(recorder);
  REQUIRE(recording.spans.size() == 3);
  const auto text = [&](size_t i) { return recording.texts[recording.spans[i].text]; };
  CHECK(text(0) == "write and sync");
  CHECK(recording.spans[0].begin_ns == 5'000'000'000);
  CHECK(recording.spans[0].end_ns == 12'000'000'000);
  CHECK(recording.spans[0].sent == 100);
  CHECK(recording.spans[0].detail == 0);
  CHECK(recording.spans[0].step == 40);
  CHECK(text(1) == "read back");
  CHECK(text(2) == "copy and hash");
  for (const size_t i : {1, 2}) {
    CHECK(recording.spans[i].end_ns == 15'000'000'000);
    CHECK(recording.spans[i].detail == Span::kOpen);
  }
  recorder.close(open, 0);
  recorder.close(after, 0);
  CHECK(taken(recorder).spans.size() == 2);  // once taken, a late end adds nothing
}

TEST_CASE("several threads record at once, and nothing is lost or torn") {
  SpanRecorder recorder;
  constexpr int kThreads = 4, kEach = 2000;
  recorder.reserve(kThreads * kEach);
  recorder.begin();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&recorder, t] {
      const std::string name = "thread " + std::to_string(t);
      for (int i = 0; i < kEach; ++i) {
        const RecordSave save(&recorder, "copy", i);
        Span span{.step = i, .micro_batch = t, .kind = SpanKind::data, .text = recorder.text(name)};
        span.begin_ns = span.end_ns = recorder.now_ns();
        if (i % 2 == 0) recorder.record(span);
      }
    });
  for (std::thread& thread : threads) thread.join();
  recorder.end();
  const Recording recording = taken(recorder);
  CHECK(recording.overwritten == kThreads * kEach / 2);
  int data = 0;
  for (const Span& span : recording.spans) {
    if (span.kind != SpanKind::data) continue;
    ++data;
    CHECK(recording.texts[span.text] == "thread " + std::to_string(span.micro_batch));
  }
  CHECK(data > 0);
}
