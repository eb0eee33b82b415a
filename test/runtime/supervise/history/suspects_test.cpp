// Goal: a checkpoint is suspect when two attempts that loaded it had a bad step soon after, and only then; it
// is passed over while an older one opens. Method: lists of events in both directions; folders with good,
// suspect and damaged checkpoints.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "runtime/supervise/history/suspects.h"
#include "test/ckpt/state_fixture.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

std::string start(int epoch, int64_t from) {
  return fmt::format(R"({{"kind":"start","epoch":{},"from_step":{},"checkpoint":"{}"}})", epoch, from,
                     from > 0 ? "/ckpt" : "");
}
std::string skipped(int64_t step) { return fmt::format(R"({{"kind":"step_skipped","step":{}}})", step); }
std::string saved(int64_t step) { return fmt::format(R"({{"kind":"checkpoint","step":{}}})", step); }
std::string diverged(int64_t step) {
  return fmt::format(R"({{"kind":"failure","step":{},"code_name":"diverged"}})", step);
}
std::string crashed(int64_t step) {
  return fmt::format(R"({{"kind":"failure","step":{},"code_name":"worker"}})", step);
}

std::string from_memory(int epoch, int64_t from) {
  return fmt::format(R"({{"kind":"start","epoch":{},"from_step":{},"tier":"memory","checkpoint":""}})", epoch,
                     from);
}

using Steps = std::vector<int64_t>;
Steps suspects(const std::vector<std::string>& events) {
  Steps steps;
  for (const Suspect& suspect : suspect_checkpoints(events)) steps.push_back(suspect.step);
  return steps;
}

}  // namespace

TEST_CASE("two bad loads make a checkpoint suspect") {
  CHECK(suspects({}).empty());
  const std::vector<std::string> once = {start(1, 0), saved(20),   start(2, 20),
                                         skipped(22), skipped(23), crashed(23)};
  CHECK(suspects(once).empty());
  auto twice = once;
  twice.insert(twice.end(), {start(3, 20), diverged(24)});
  CHECK(suspects(twice) == Steps{20});
  CHECK_THAT(suspect_checkpoints(twice)[0].text(),
             Catch::Contains("step 20") && Catch::Contains("attempts 2, 3"));
  auto saved_again = twice;
  saved_again.insert(saved_again.end(), {start(4, 10), saved(20)});
  CHECK(suspects(saved_again).empty());
}

TEST_CASE("two bad loads from memory make a state suspect, too") {
  const std::vector<std::string> events = {start(1, 0), from_memory(4, 41), diverged(41), from_memory(5, 41),
                                           diverged(41)};
  CHECK(suspects(events) == Steps{41});
  const auto doubted = doubted_states(suspect_checkpoints(events));
  REQUIRE(doubted.size() == 1);
  CHECK(doubted[0].step == 41);
  CHECK(doubted[0].epoch == 5);  // what epoch 5 or a later one computes of step 41 is another state
  CHECK_THAT(doubted[0].why, Catch::Contains("attempts 4, 5"));
  // Written to the folder after it was loaded it is the same state; computed again it is another one.
  auto written = events;
  written.insert(written.end() - 1, saved(41));
  CHECK(suspects(written) == Steps{41});
  auto again = events;
  again.insert(again.end(), {start(6, 30), saved(41)});
  CHECK(suspects(again).empty());
  // The same bad step from two states: the data or the learning rate.
  CHECK(suspects({from_memory(4, 41), diverged(41), from_memory(5, 41), diverged(41), start(6, 40),
                  diverged(41), from_memory(7, 41), diverged(41)}) == Steps{41});
  CHECK(suspects({start(3, 40), diverged(41), from_memory(4, 41), diverged(41), from_memory(5, 41),
                  diverged(41)}).empty());
}

TEST_CASE("what says nothing against a checkpoint") {
  // Too far behind it.
  CHECK(suspects({start(2, 20), skipped(31), start(3, 20), skipped(31)}).empty());
  CHECK(suspects({start(2, 20), skipped(30), start(3, 20), skipped(30)}) == Steps{20});
  // The same step is bad from elsewhere, too: the data or the learning rate, not the checkpoint.
  CHECK(suspects({start(1, 0), skipped(22), start(2, 20), skipped(22), start(3, 20), skipped(22)}).empty());
  // Another failure, a beginning without a checkpoint, lines that are no events.
  CHECK(suspects({start(2, 20), crashed(21), start(3, 20), crashed(21)}).empty());
  CHECK(suspects({start(1, 0), skipped(2), start(2, 0), skipped(2)}).empty());
  CHECK(
      suspects({"", "{", "[]", R"({"kind":"start"})", R"({"kind":"unheard of"})", R"({"kind":7})"}).empty());
}

TEST_CASE("a suspect is passed over while an older one opens") {
  PowerLossFileSystem fs;
  for (const int64_t step : {10, 20, 30}) save(fs, "/ckpt", make_state(1, step), 2);
  std::vector<int64_t> passed, used;
  int skips = 0;
  const auto found = [&](std::optional<int64_t> at_most, const std::vector<Suspect>& list) {
    passed.clear();
    used.clear();
    const auto checkpoint = open_latest_trusted(
        fs, "/ckpt", at_most, list, [&](const std::string&, const std::string&) { ++skips; },
        [&](const Suspect& suspect, bool is_used) { (is_used ? used : passed).push_back(suspect.step); });
    return checkpoint ? checkpoint->state().step : -1;
  };
  CHECK(found({}, {}) == 30);
  CHECK(found({}, {{30, {2, 3}}}) == 20);
  CHECK(passed == Steps{30});
  CHECK(found({}, {{20, {2, 3}}, {30, {4, 5}}}) == 10);
  CHECK(passed == Steps{30, 20});
  CHECK(found(25, {{20, {2, 3}}}) == 10);
  CHECK(found(-1, {}) == -1);
  CHECK(used.empty());
  CHECK(found({}, {{10, {1, 2}}, {20, {2, 3}}, {30, {4, 5}}}) == 30);  // better than none, and said
  CHECK(passed.empty());
  CHECK(used == Steps{30});
  fs.remove_file("/ckpt/step-00000020/COMMIT");
  CHECK(found({}, {{30, {2, 3}}}) == 10);
  CHECK(skips == 1);
  fs.remove_tree("/ckpt");
  CHECK(found({}, {{30, {2, 3}}}) == -1);
}
