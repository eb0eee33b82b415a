// Goal: what is decided about saves follows from what they were measured to cost: a save that failed, or that
//       is not published yet, is not measured as safe; a copy to the partner costs what it slows training
//       down by; copies in memory follow the time for which training waits for them; a partner that fails is
//       left alone for growing pauses.
// Method: SaveDecider alone, by a clock that the test moves through the steps of a run.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "runtime/train/save/save_decider.h"
#include "test/support/thread_clock.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

struct Run {
  explicit Run(const CheckpointSpec& checkpoint, double mtbf_s = 0, bool has_partner = true) {
    CheckpointSpec spec = checkpoint;
    spec.mtbf_seconds = mtbf_s;
    decider.emplace(
        SaveDecider::Options{.decides = true,
                             .checkpoint = spec,
                             .history = {},
                             .waits = false,
                             .has_memory = true,
                             .has_partner = has_partner,
                             .newest_save = [this] { return int64_t(written.size()); },
                             .saved = [this](int64_t) { return writing ? std::nullopt : result; },
                             .decided = [this](const SaveInterval& now) { decided.push_back(now); },
                             .warned = [this](const ShortInterval& now) { warned.push_back(now); }},
        clock);
  }
  /// One step of `seconds`, at the end of which training waits for the copies; then what is due is begun.
  void step(double seconds, const SavesUnderWay& saves = {}, double waited_s = 0) {
    ++steps;
    writing = saves.writing;
    clock.pass(seconds + waited_s);
    const SaveSet due = decider->due(steps);
    decider->fenced(waited_s, saves);
    decider->stepped(seconds);
    const SaveTargets begun{.memory = due.has(SaveTier::memory),
                            .partner = due.has(SaveTier::partner) && !saves.writing,
                            .directory = due.has(SaveTier::directory) && !saves.writing};
    decider->count(steps, [&] { return begun; });
    if (begun.partner) sent.push_back(steps);
    if (begun.directory) written.push_back(steps);
    if (begun.memory) copied.push_back(steps);
    if (begun.any()) staged.insert(steps);
  }
  const SaveInterval* newest(SaveTier tier) const {
    const auto found = std::find_if(decided.rbegin(), decided.rend(),
                                    [&](const SaveInterval& interval) { return interval.tier == tier; });
    return found == decided.rend() ? nullptr : &*found;
  }

  ThreadClock clock;
  std::optional<Control::SaveResult> result = Control::SaveResult{.ok = true, .message = "root"};
  bool writing = false;
  int64_t steps = 0;
  std::vector<SaveInterval> decided;
  std::vector<ShortInterval> warned;
  std::vector<int64_t> sent, written, copied;  // steps
  std::set<int64_t> staged;
  std::optional<SaveDecider> decider;
};

}  // namespace

TEST_CASE("a save that failed, or is not published yet, is not measured as safe", "[decider]") {
  const auto advice_of = [](std::optional<Control::SaveResult> result) {
    Run run({.every_steps = 2});
    run.result = std::move(result);
    // Each is written, or tried, for three steps.
    for (int i = 0; i < 60; ++i) run.step(1, {.writing = i % 4 != 1});
    CHECK(run.written.size() > 10);
    return run.warned;
  };
  const auto good = advice_of(Control::SaveResult{.ok = true, .message = "root"});
  REQUIRE(good.size() == 1);
  CHECK(good[0].enough_steps > 2);
  CHECK(advice_of(Control::SaveResult{.ok = false, .message = "not written"}).empty());
  CHECK(advice_of(std::nullopt).empty());
}

TEST_CASE("the time until a save is safe ends when it is published", "[decider]") {
  Run run({.interval = SaveIntervalChoice::automatic}, 1e-3);  // as often as a save is safe
  run.result.reset();
  for (int i = 0; i < 30; ++i) {
    // Published ten steps after it was begun.
    if (i == 20) run.result = Control::SaveResult{.ok = true, .message = "root"};
    run.step(1);
  }
  REQUIRE(run.written.at(0) == 10);
  const SaveInterval* interval = run.newest(SaveTier::directory);
  REQUIRE(interval);
  CHECK(interval->reason == IntervalReason::write_time);
  const auto first = std::find_if(run.decided.begin(), run.decided.end(), [](const SaveInterval& i) {
    return i.tier == SaveTier::directory && i.write_s > 0;
  });
  REQUIRE(first != run.decided.end());
  CHECK(first->write_s >= 10);
}

TEST_CASE("a copy to the partner costs what it slows training down by", "[decider]") {
  const auto interval_with = [](double slow_s) {
    Run run({}, 10'000);
    for (int i = 0; i < 4000; ++i) {
      // It is on its way during two steps.
      const bool is_sent = !run.sent.empty() && run.steps < run.sent.back() + 2;
      run.step(is_sent ? 1 + slow_s : 1, {.writing = is_sent && run.steps + 1 < run.sent.back() + 2});
    }
    const SaveInterval* interval = run.newest(SaveTier::partner);
    REQUIRE(interval);
    return *interval;
  };
  const SaveInterval free = interval_with(0);
  CHECK(free.cost_s == 0);
  CHECK(free.steps == 8);  // four times as long as it takes
  const SaveInterval slow = interval_with(0.5);
  CHECK(slow.cost_s == Approx(1));
  // sqrt(2 x 1 x 10000) s.
  CHECK((slow.steps >= 138 && slow.steps <= 144));
  CHECK(slow.reason == IntervalReason::least_loss);
}

TEST_CASE("copies in memory follow the time for which training waits for them", "[decider]") {
  const auto copies = [](double waited_s) {
    Run run({.memory_when = EverySteps::automatic}, 10'000, false);
    for (int i = 0; i < 1000; ++i) run.step(1, {}, run.staged.contains(run.steps) ? waited_s : 0);
    CHECK(run.copied.front() == 1);
    // What goes to the directory is copied, too.
    return run.staged.size();
  };
  CHECK(copies(0) > 990);           // free: after each step
  const size_t dear = copies(0.5);  // every 100 s
  CHECK((dear >= 9 && dear <= 16));
  // By default, and where a number is given, the calendar has no say.
  Run given({.memory_every_steps = 3});
  for (int i = 0; i < 100; ++i) given.step(1);
  CHECK(given.copied.empty());
  CHECK_FALSE(given.newest(SaveTier::memory));
}

TEST_CASE("a partner that fails is left alone for growing pauses, until a copy succeeds", "[decider]") {
  Run run({.partner_every_steps = 1});
  SavesUnderWay saves{.no_partner = true};
  for (int i = 0; i < 400; ++i) run.step(1, saves);
  const std::vector<int64_t> tries = run.sent;
  // 5, 10, 20, 40, 80, 160 s between them; the next try begins before the failure of one is known.
  REQUIRE(tries.size() == 14);
  for (size_t i = 0; i < 14; i += 2) CHECK(tries[i + 1] == tries[i] + 1);
  for (size_t i = 1; i < 7; ++i) {
    const int64_t pause = tries[2 * i] - tries[2 * i - 2], wanted = 5 << (i - 1);
    CHECK((pause >= wanted && pause <= wanted + 2));
  }
  saves.no_partner = false;
  for (int i = 0; i < 400; ++i) run.step(1, saves);
  const size_t before = run.sent.size();
  for (int i = 0; i < 10; ++i) run.step(1, saves);
  CHECK(run.sent.size() == before + 10);
}
