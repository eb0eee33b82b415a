// Goal: from the rings of all ranks the one that is missing is found, whether it is stopped, has ended,
// computes for too long, left no ring or waits in a circle; with the exchange, those that wait, since when,
// and how far it is behind.
// Method: rings made by hand and of made-up meshes, in which one rank of a pipeline with tensor and data
// groups stops at a step; 64 and 4,096 ranks, whose time is printed.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>

#include "parallel/mesh.h"
#include "runtime/base/json.h"
#include "runtime/observe/trace/flight_trace.h"
#include "runtime/run/record/flight_verdict.h"
#include "test/support/seed.h"

using namespace trainctl;
using Catch::Matchers::Contains;
using Why = FlightVerdict::Why;

namespace {

constexpr int64_t kSecond = 1'000'000'000, kBegin = 1'790'000'000 * kSecond;

Activity compute(RunPhase phase, int64_t step, int micro_batch = -1) {
  return {
      .phase = phase, .step = step, .micro_batch = micro_batch, .virtual_stage = micro_batch < 0 ? -1 : 0};
}
Activity wait_for(Activity activity, const char* operation, const std::string& communicator,
                  std::vector<int> peers) {
  activity.kind = Activity::waiting;
  activity.operation = operation;
  activity.communicator = communicator;
  for (const int peer : peers) activity.add_peer(peer);
  return activity;
}

/// Writes a ring by hand.
struct Hand {
  FlightLog log;
  uint32_t index = 0;
  uint64_t instruction = 0;
  explicit Hand(int rank) : log{.rank = rank, .pid = 1000 + rank, .epoch = 1} {}
  Hand& does(int64_t at, const Activity& activity) {
    const bool is_wait = activity.is_waiting();
    if (!is_wait) {
      index = log.entries.empty() || log.entries.back().activity.step != activity.step ? 0 : index + 1;
      ++instruction;
    }
    log.entries.push_back(
        {.unix_ns = kBegin + at, .instruction = instruction, .index = index, .activity = activity});
    ++log.written;
    return *this;
  }
};

/// Each rank computes 8 micro-batches in each step and then reduces with the ranks of its stage; `missing`
/// stops in micro-batch 3 of `step`. Its neighbours in the pipeline wait for it, theirs for them, its data
/// group in the reduction.
std::vector<FlightLog> made_up(const parallel::MeshShape& mesh, int missing, int64_t step, Why why) {
  constexpr int kMicroBatches = 8;
  std::vector<FlightLog> logs;
  const parallel::MeshPosition hole = parallel::position_of(mesh, missing);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    Hand hand(rank);
    const parallel::MeshPosition at = parallel::position_of(mesh, rank);
    int64_t t = rank;
    for (int64_t s = step - 3; s < step; ++s) {
      for (int m = 0; m < kMicroBatches; ++m) hand.does(t += 1000, compute(RunPhase::forward, s, m));
      hand.does(t += 1000, compute(RunPhase::reducing_gradients, s));
    }
    t = 40'000 + rank;
    const bool is_missing = rank == missing, same_pipe = at.dp == hole.dp && at.tp == hole.tp;
    // A stage far from the hole runs dry later.
    const int done = is_missing ? 4 : same_pipe ? 4 + std::min(3, std::abs(at.pp - hole.pp)) : kMicroBatches;
    for (int m = 0; m < done; ++m) hand.does(t += 1000, compute(RunPhase::forward, step, m));
    if (!is_missing && same_pipe) {
      const parallel::MeshPosition next{.tp = at.tp, .dp = at.dp, .pp = at.pp + (at.pp < hole.pp ? 1 : -1)};
      hand.does(t += 1000, wait_for(compute(RunPhase::receiving_activation, step, done), "receive",
                                    fmt::format("pipeline of dp {}, tp {}", at.dp, at.tp),
                                    {parallel::rank_of(mesh, next)}));
    } else if (!is_missing) {
      std::vector<int> peers;
      if (at.pp == hole.pp && at.tp == hole.tp) peers = {missing};
      for (int dp = 0; peers.empty() && dp < 1; ++dp)
        peers = {parallel::rank_of(mesh, {.tp = at.tp, .dp = hole.dp, .pp = at.pp})};
      const Activity reduce = compute(RunPhase::reducing_gradients, step);
      hand.does(t += 1000, reduce);
      if (at.dp != hole.dp)
        hand.does(t += 1000,
                  wait_for(reduce, "reduce gradients", fmt::format("dp group of stage {}", at.pp), peers));
      else  // another tensor rank of the same pipeline
        hand.does(t += 1000,
                  wait_for(reduce, "all-reduce", fmt::format("tp group of stage {}", at.pp),
                           {parallel::rank_of(mesh, {.tp = hole.tp, .dp = hole.dp, .pp = at.pp})}));
    }
    if (is_missing && why == Why::stopped) hand.log.stopped = true;
    if (is_missing && why == Why::ended) hand.log.lost_unix_s = double(kBegin + 50'000'000) * 1e-9;
    if (is_missing && why == Why::no_ring) continue;
    logs.push_back(std::move(hand.log));
  }
  return logs;
}

}  // namespace

TEST_CASE("one rank is missing: it is named with the exchange, whatever became of it", "[flight]") {
  const parallel::MeshShape mesh{.tp = 2, .cp = 1, .dp = 4, .pp = 4};
  for (const uint64_t seed : test::test_seeds(40)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    const int missing = int(seed * 7 % 32);
    for (const Why why : {Why::stopped, Why::ended, Why::no_ring, Why::computing}) {
      const FlightVerdict v = merge_flights(made_up(mesh, missing, 100, why), 32, 4);
      CAPTURE(v.summary());
      REQUIRE(v.missing.size() >= 1);
      const FlightVerdict::Missing& m = v.missing.front();
      CHECK(m.rank == missing);
      CHECK(m.why == why);
      CHECK(m.waiting == 31);  // all, one after another
      CHECK(m.first >= 0);
      CHECK((m.operation == "receive" || m.operation == "reduce gradients"));
      CHECK(m.since_unix_s == Approx(1.79e9));
      if (why == Why::no_ring) {
        CHECK(v.without == std::vector<int>{missing});
        continue;
      }
      CHECK(m.behind == 5);  // micro-batches 4 to 7, and the reduction
      CHECK(m.last == "step 100: forward of micro-batch 3, virtual stage 0");
      CHECK(v.behind.front().rank == missing);
      CHECK_THAT(v.summary(), Contains(fmt::format("rank {} (pid {})", missing, 1000 + missing)) &&
                                  Contains("5 instructions behind its stage") &&
                                  Contains("31 of 32 ranks wait"));
    }
  }
}

TEST_CASE("those that gave up are not the cause, and a circle has its slowest rank", "[flight]") {
  const Activity work = compute(RunPhase::forward, 3, 1);
  // Rank 1 computes; rank 0 waits for it, gives up after its time and ends.
  std::vector<FlightLog> logs = {
      Hand(0).does(0, work).does(kSecond, wait_for(work, "all-reduce", "dp group", {1})).log,
      Hand(1).does(0, work).log};
  logs[0].lost_unix_s = double(kBegin) * 1e-9 + 31;
  FlightVerdict v = merge_flights(logs, 2, 1);
  REQUIRE(v.missing.size() == 1);
  CHECK(v.missing[0].rank == 1);
  CHECK(v.missing[0].why == Why::computing);
  // One that is killed in a wait that has just begun is the cause itself, though the other one is ahead.
  logs[0].lost_unix_s = double(kBegin) * 1e-9 + 1.001;
  v = merge_flights(logs, 2, 1);
  CHECK(v.missing[0].rank == 0);
  CHECK(v.missing[0].why == Why::ended);
  // Of several that ended the first is; the others lost their peer.
  logs[1].lost_unix_s = double(kBegin) * 1e-9 + 1.5;
  v = merge_flights(logs, 2, 1);
  REQUIRE(v.missing.size() == 1);
  CHECK(v.missing[0].rank == 0);

  // Both ends were seen at once: one waited for the other.
  logs[1].lost_unix_s = *logs[0].lost_unix_s;
  v = merge_flights(logs, 2, 1);
  CHECK(v.missing[0].rank == 1);

  const Activity late = compute(RunPhase::forward, 2, 1);
  v = merge_flights(
      std::vector<FlightLog>{Hand(0).does(0, late).does(1, wait_for(late, "send", "pipe", {1})).log,
                             Hand(1).does(0, work).does(1, wait_for(work, "receive", "pipe", {0})).log},
      2, 1);
  REQUIRE(v.missing.size() == 1);
  CHECK(v.missing[0].rank == 0);
  CHECK(v.missing[0].why == Why::waiting);
  CHECK(v.missing[0].behind > 0);

  v = merge_flights(std::vector<FlightLog>{Hand(0).does(0, work).log, Hand(1).does(0, work).log}, 2, 1);
  CHECK(v.missing.empty());
  CHECK_THAT(v.summary(), Contains("no rank is missing"));
  CHECK(merge_flights({}, 2, 1).without == std::vector<int>{0, 1});
}

TEST_CASE("rings of 64 and 4,096 ranks are merged within seconds", "[flight]") {
  for (const parallel::MeshShape mesh : {parallel::MeshShape{.tp = 4, .cp = 1, .dp = 4, .pp = 4},
                                         parallel::MeshShape{.tp = 8, .cp = 1, .dp = 32, .pp = 16}}) {
    const int ranks = mesh.world_size(), missing = ranks / 3;
    const std::vector<FlightLog> logs = made_up(mesh, missing, 50, Why::computing);
    std::string text;
    for (const FlightLog& log : logs) text += flight_line(log, kMostFlightEntries) + "\n";
    const auto began = std::chrono::steady_clock::now();
    std::vector<FlightLog> read;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      read.push_back(*flight_log_of(text.substr(begin, end - begin)));
      begin = end + 1;
    }
    const auto was_read = std::chrono::steady_clock::now();
    const FlightVerdict v = merge_flights(read, ranks, mesh.pp);
    const auto was_merged = std::chrono::steady_clock::now();
    const trace::Trace picture = trace::flight_trace(read, v, mesh, "r");
    size_t bytes = 0;
    trace::write_chrome_trace(picture, [&](std::string_view part) { bytes += part.size(); });
    const auto seconds = [](auto from, auto to) { return std::chrono::duration<double>(to - from).count(); };
    fmt::print(
        "{} ranks, {:.1f} MB: read in {:.3f} s, merged in {:.3f} s, a trace of {:.1f} MB in {:.3f} s\n",
        ranks, double(text.size()) / 1e6, seconds(began, was_read), seconds(was_read, was_merged),
        double(bytes) / 1e6, seconds(was_merged, std::chrono::steady_clock::now()));
    REQUIRE(!v.missing.empty());
    CHECK(v.missing.front().rank == missing);
    CHECK(v.missing.front().waiting == ranks - 1);
    CHECK(picture.ranks.size() == 64);
  }
}

TEST_CASE("the trace of rings has each instruction until the next, and the waits within", "[flight]") {
  const Activity work = compute(RunPhase::forward, 3, 1);
  const std::vector<FlightLog> logs = {
      Hand(0)
          .does(0, work)
          .does(10'000, wait_for(work, "all-reduce", "dp group", {1}))
          .does(40'000, compute(RunPhase::optimizer, 3))
          .log,
      Hand(1).does(5'000, work).does(90'000, compute(RunPhase::optimizer, 3)).log};
  const trace::Trace picture =
      trace::flight_trace(logs, merge_flights(logs, 2, 1), {.tp = 1, .cp = 1, .dp = 2, .pp = 1}, "r");
  std::string text;
  trace::write_chrome_trace(picture, [&](std::string_view part) { text += part; });
  const Json json = parse_json(text);
  std::string shown;
  for (const Json& e : json["traceEvents"])
    if (e["ph"] == "X")
      shown += fmt::format("{}:{} {}+{}; ", e["pid"].get<int>(), e["name"].get<std::string>(),
                           e["ts"].get<double>(), e["dur"].get<double>());
  CHECK(shown ==
        "0:forward 0+40; 0:wait: all-reduce for rank 1 10+30; 0:optimizer 40+50; 1:forward 5+85; 1:optimizer "
        "90+0; ");
}
