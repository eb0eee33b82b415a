// Goal: the ranks of the nodes that are to be tested are tested, and only those; all learn what every rank
// found, a rank whose device is wrong fails with that, and the others because of it. Method: ranks as
// threads on three nodes, the cores of one of them with a device that computes wrongly.
#include "runtime/run/rank/burn_in_phase.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <mutex>

#include "runtime/base/record.h"
#include "runtime/run/record/burn_in_record.h"
#include "test/parallel/rank_threads.h"
#include "test/support/spoiling_backend.h"

using namespace trainctl;

namespace {

/// Keeps the events of the ranks.
class NotedEvents final : public Control {
 public:
  StopLevel stop_level() const override { return StopLevel::none; }
  void activity(const Activity&) override {}
  void device_activity(const Activity&) override {}
  void report(const StepReport&) override {}
  void report_times(int64_t, const RankTimes&) override {}
  void event(EventKind kind, const std::string& json) override {
    const std::lock_guard lock(mutex_);
    CHECK(kind == EventKind::burn_in);
    records.push_back(record_of_text<BurnInRecord>(json));
  }
  void hand_in(const HandedIn&) override {}
  std::optional<SaveResult> saved(int64_t) const override { return std::nullopt; }
  SaveResult await_saved(int64_t) override { return {}; }
  void done() override {}
  std::vector<BurnInRecord> records;

 private:
  std::mutex mutex_;
};

struct Phase {
  std::vector<BurnInRecord> records;
  std::vector<std::string> errors;  ///< of each rank: "code: message"; "": none
  int opened = 0;                   ///< devices
};

/// Of two ranks on each of the nodes a, b and c. `wrong`: the rank whose device is; -1: none.
Phase run_phase(const std::vector<std::string>& tested, int wrong) {
  AttemptFile attempt;
  attempt.nodes = {{"a", 0, 2}, {"b", 2, 2}, {"c", 4, 2}};
  attempt.burn_in = tested;
  Phase phase{.records = {}, .errors = std::vector<std::string>(6)};
  NotedEvents control;
  std::atomic<int> opened = 0;
  std::vector<std::unique_ptr<parallel::Communicator>> ends = parallel::make_thread_world(6, test::kLongS);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 6; ++rank)
    threads.emplace_back([&, rank] {
      try {
        RankActivity activity(control, RunPhase::starting);
        burn_in_phase(attempt,
                      {.answer_s = test::kLongS,
                       .rank = rank,
                       .local_rank = rank % 2,
                       .is_bound = true,
                       .open =
                           [&, rank](const BurnInPlace&) {
                             ++opened;
                             return test::make_spoiling_backend({.every_product = int(rank == wrong)});
                           }},
                      *ends[size_t(rank)], control, activity);
      } catch (const Error& error) {
        phase.errors[size_t(rank)] = fmt::format("{}: {}", name_of(error.code()), error.what());
        parallel::abort_thread_world(*ends[size_t(rank)], error.what());  // as the end of its process
      }
    });
  for (std::thread& thread : threads) thread.join();
  phase.records = control.records;
  phase.opened = opened;
  return phase;
}

}  // namespace

TEST_CASE("without nodes to test, nothing is done", "[burn_in_phase]") {
  const Phase phase = run_phase({}, 1);
  CHECK(phase.records.empty());
  CHECK(phase.opened == 0);
  CHECK(phase.errors == std::vector<std::string>(6));
}

TEST_CASE("nodes in order go on, with what was measured", "[burn_in_phase]") {
  const Phase phase = run_phase({"a", "c"}, 2);  // what is wrong on b is not tested
  REQUIRE(phase.records.size() == 1);
  REQUIRE(phase.records[0].nodes.size() == 2);
  CHECK(phase.records[0].is_well());
  CHECK(phase.records[0].nodes[0].node == "a");
  CHECK(phase.records[0].nodes[1].node == "c");
  for (const NodeTest& test : phase.records[0].nodes) {
    CHECK(test.product_s > 0);
    CHECK_THAT(test.place, Catch::StartsWith("core "));
  }
  CHECK(phase.opened >= 4);
  CHECK(phase.errors == std::vector<std::string>(6));
}

TEST_CASE("a rank whose device is wrong fails with that, the others because of it", "[burn_in_phase]") {
  const Phase phase = run_phase({"a", "b", "c"}, 3);
  REQUIRE(phase.records.size() == 1);
  REQUIRE(phase.records[0].nodes.size() == 3);
  for (const NodeTest& test : phase.records[0].nodes) CHECK(test.wrong.empty() == (test.node != "b"));
  CHECK_THAT(phase.records[0].text, Catch::StartsWith("burn-in: b must not be used: core "));
  for (int rank = 0; rank < 6; ++rank) {
    INFO(rank);
    if (rank == 3)
      CHECK_THAT(phase.errors[3], Catch::StartsWith("device: burn-in: core ") &&
                                      Catch::Contains("have other bits than the reference, element 0 is 0x"));
    else
      CHECK_THAT(phase.errors[size_t(rank)], Catch::StartsWith("peer lost: "));
  }
}
