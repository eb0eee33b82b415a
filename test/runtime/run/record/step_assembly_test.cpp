// Goal: a step is recorded once, in order, with the numbers of all ranks, in whatever order reports and times
//       arrive; what never comes holds nothing up and takes bounded memory.
// Method: made-up ranks whose messages arrive in every order of a small case and in random orders (seeded);
//         late, repeated and lost ones; a hand-wound clock.
#include "runtime/base/json.h"
#include "runtime/run/record/step_assembly.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "test/support/seed.h"

using namespace trainctl;

namespace {

constexpr StepWork kWork{
    .tokens = 1000, .flops_per_token_causal = 3, .flops_per_token_full = 4, .peak_flops_per_s = 1e5};

StepReport report_of(int64_t step, bool with_times = true) {
  return {.line = {.attempt = 2, .step = step, .tokens = 1000 * step, .loss = 2.5},
          .log = true,
          .work = with_times ? std::optional(kWork) : std::nullopt,
          .each_rank = step % 2 == 0};
}

/// Rank r takes (r + 1) seconds, all of them in the forward pass.
RankTimes times_of(int rank) { return {.forward_s = rank + 1.0, .step_s = rank + 1.0, .peak_bytes = 1e9}; }

std::string text_of(const StepRecord& record) { return step_line_text(record.line); }

std::vector<int64_t> steps_of(const std::vector<StepRecord>& records) {
  std::vector<int64_t> steps;
  for (const StepRecord& record : records) steps.push_back(record.line.step);
  return steps;
}

void add(std::vector<StepRecord>& all, std::vector<StepRecord> more) {
  for (StepRecord& record : more) all.push_back(std::move(record));
}

}  // namespace

TEST_CASE("a step's record has the numbers of all ranks, whatever comes first", "[step_assembly]") {
  std::vector<int> order = {0, 1, 2, 3};  // 3: the report
  std::string first;
  do {
    StepAssembly steps({.ranks = 3, .nodes = {{"a", 0, 2}, {"b", 2, 1}}});
    std::vector<StepRecord> records;
    for (const int what : order) {
      REQUIRE(records.empty());
      what == 3 ? steps.report(report_of(4), 9, 100) : steps.times(4, what, times_of(what));
      CHECK(steps.oldest_sequence().has_value() == (what == 3 || steps.deadline_s() == 102));
      records = steps.take(100);
    }
    REQUIRE(steps_of(records) == std::vector<int64_t>{4});
    CHECK_FALSE(steps.oldest_sequence());
    CHECK(steps.take_all().empty());
    if (first.empty()) first = text_of(records[0]);
    CHECK(text_of(records[0]) == first);
  } while (std::next_permutation(order.begin(), order.end()));
  const auto line = Json::parse(first);
  CHECK(line["loss"] == 2.5);
  CHECK(line["attempt"] == 2);
  CHECK(line["step_s"] == 3);
  CHECK(line["tokens_per_s"].get<double>() == Approx(1000 / 3.0));
  CHECK(line["flops_per_s"].get<double>() == Approx(1000));
  CHECK(line["mfu"].get<double>() == Approx(0.01));
  CHECK(line["phases"]["forward_s"] == 2);
  CHECK(line["ranks"]["count"] == 3);
  CHECK(line["ranks"]["compute_s"]["max_node"] == "b");
  CHECK(line["ranks"]["compute_s"]["median"] == 2);
}

TEST_CASE("steps are recorded in order, and those that nobody times at once", "[step_assembly]") {
  const uint64_t seed = test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  for (int again = 0; again < 50; ++again) {
    // Each sender's messages arrive in order, the senders' in any order. A rank is at most one step ahead.
    constexpr int kRanks = 5;
    constexpr int64_t kSteps = 12;
    std::vector<int64_t> next(kRanks + 1, 1);  // of each rank; the last one is rank 0's report
    StepAssembly steps({.ranks = kRanks, .nodes = {}});
    std::vector<StepRecord> records;
    while (*std::min_element(next.begin(), next.end()) <= kSteps) {
      const size_t who = random() % next.size();
      const int64_t step = next[who];
      if (step > kSteps || step > *std::min_element(next.begin(), next.end()) + 1) continue;
      ++next[who];
      const bool timed = step % 3 != 0;
      if (who == kRanks)
        steps.report(report_of(step, timed), uint64_t(step), 0);
      else if (timed)
        steps.times(step, int(who), times_of(int(who)));
      add(records, steps.take(0));
    }
    REQUIRE(records.size() == size_t(kSteps));
    for (int64_t step = 1; step <= kSteps; ++step) {
      const StepRecord& record = records[size_t(step) - 1];
      const auto line = Json::parse(text_of(record));
      CHECK(line["step"] == step);
      CHECK(line.contains("ranks") == (step % 3 != 0));
      if (line.contains("ranks")) CHECK(line["ranks"]["count"] == kRanks);
      CHECK(record.ranks.empty() == (step % 3 == 0 || step % 2 != 0));
    }
  }
}

TEST_CASE("a rank that says nothing holds a step up for a while, and is missing in its numbers",
          "[step_assembly]") {
  StepAssembly steps({.ranks = 4, .nodes = {}, .patience_s = 2});
  for (const int64_t step : {1, 2, 3}) {
    for (const int rank : {0, 1, 3}) steps.times(step, rank, times_of(rank));
    steps.report(report_of(step), uint64_t(10 + step), double(step));
  }
  steps.times(2, 2, times_of(2));
  CHECK(steps.take(2.9).empty());  // step 2 waits for step 1
  CHECK(steps.oldest_sequence() == 11);
  CHECK(steps.deadline_s() == 3);
  const auto records = steps.take(3);
  REQUIRE(steps_of(records) == std::vector<int64_t>{1, 2});
  CHECK(steps.oldest_sequence() == 13);
  const auto late = Json::parse(text_of(records[0]));
  CHECK(late["ranks"]["count"] == 3);
  CHECK(late["step_s"] == 4);
  CHECK(late["phases"]["forward_s"].get<double>() == Approx((1 + 2 + 4) / 3.0));
  CHECK(Json::parse(text_of(records[1]))["ranks"]["count"] == 4);
  const auto each = Json::parse(records[1].ranks);
  CHECK(each["forward_s"].size() == 4);
  // What comes after the record does not count, and the end of the attempt waits for nobody.
  steps.times(1, 2, times_of(2));
  steps.report(report_of(1), 14, 3);
  const auto rest = steps.take_all();
  REQUIRE(steps_of(rest) == std::vector<int64_t>{3});
  CHECK(steps.take_all().empty());
  // Of the rank without numbers there is null.
  StepAssembly other({.ranks = 2, .nodes = {}});
  other.report(report_of(2), 1, 0);
  other.times(2, 1, times_of(1));
  const auto lost = Json::parse(other.take_all().at(0).ranks);
  CHECK(lost["count"] == 2);
  CHECK(lost["forward_s"][0].is_null());
  CHECK(lost["forward_s"][1] == 2);
  // And of none: the line as rank 0 made it.
  other.report(report_of(4), 2, 0);
  const StepRecord bare = other.take_all().at(0);
  CHECK(text_of(bare) == step_line_text(report_of(4).line));
  CHECK(bare.ranks.empty());
}

TEST_CASE("a supervisor that takes over records what the one before did not", "[step_assembly]") {
  StepAssembly steps({.ranks = 1, .nodes = {}, .after_step = 7});
  for (int64_t step = 6; step <= 9; ++step) {
    steps.times(step, 0, times_of(0));
    steps.report(report_of(step), uint64_t(step), 0);
    steps.report(report_of(step), uint64_t(step), 0);  // said again
  }
  CHECK(steps_of(steps.take(0)) == std::vector<int64_t>{8, 9});
}

TEST_CASE("what waits is bounded, on either side", "[step_assembly]") {
  constexpr int64_t kMany = 1000;
  StepAssembly mute({.ranks = 2, .nodes = {}});  // rank 0 is not heard
  for (int64_t step = 1; step <= kMany; ++step)
    mute.times(step, 1, times_of(1)), mute.times(step, 0, times_of(0));
  CHECK(mute.take(1e9).empty());
  std::vector<StepRecord> records;
  for (int64_t step = 1; step <= kMany; ++step) {
    mute.report(report_of(step), uint64_t(step), 0);
    add(records, mute.take(0));
  }
  add(records, mute.take_all());
  std::vector<int64_t> all(kMany);
  std::iota(all.begin(), all.end(), 1);
  CHECK(steps_of(records) == all);
  // The newest have kept their numbers.
  CHECK_FALSE(Json::parse(text_of(records[0])).contains("ranks"));
  CHECK(Json::parse(text_of(records.back()))["ranks"]["count"] == 2);

  StepAssembly deaf({.ranks = 2, .nodes = {}});  // rank 1 is not heard
  records.clear();
  for (int64_t step = 1; step <= kMany; ++step) {
    deaf.report(report_of(step), uint64_t(step), 0);
    add(records, deaf.take(0));
    REQUIRE(records.size() + StepAssembly::kMostSteps >= size_t(step));
  }
}
