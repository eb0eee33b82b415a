// Goal: a run whose records say that it saved is not taken for one that never did; one that was begun again
// is. Method: lists of events and statuses in both directions.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "runtime/supervise/history/recorded_save.h"

using namespace trainctl;

namespace {

std::string begin_of(int epoch, int64_t from, const std::string& tier, const std::string& checkpoint) {
  return fmt::format(R"({{"kind":"start","epoch":{},"from_step":{},"tier":"{}","checkpoint":"{}"}})", epoch,
                     from, tier, checkpoint);
}
std::string save_of(int64_t step) { return fmt::format(R"({{"kind":"checkpoint","step":{}}})", step); }
RunStatus status_of(uint64_t epoch, int64_t step) {
  RunStatus status;
  status.epoch = epoch;
  status.saved_step = step;
  return status;
}
const std::string kFresh = R"({"kind":"start","epoch":1,"from_step":0,"checkpoint":""})";

int64_t save_in(const std::vector<std::string>& events, std::optional<RunStatus> status = {},
                const std::string& parent = "") {
  return recorded_save(events, status, parent).value_or(-1);
}

}  // namespace

TEST_CASE("the newest save since the run began counts") {
  CHECK(save_in({}) == -1);
  CHECK(save_in({kFresh}) == -1);
  CHECK(save_in({kFresh, save_of(20), save_of(10)}) == 20);
  CHECK(save_in({kFresh, save_of(20), begin_of(2, 20, "directory", "/run/ckpt/step-00000020")}) == 20);
  CHECK(save_in({kFresh, save_of(20), begin_of(2, 25, "memory", "")}) == 20);
  // Begun again: from step 0, or from the other run's checkpoint.
  CHECK(save_in({kFresh, save_of(20), begin_of(2, 0, "", "")}) == -1);
  CHECK(save_in({kFresh, save_of(20), begin_of(2, 7, "directory", "/other/step-00000007")}, {}, "/other") ==
        20);
  CHECK(save_in({kFresh, save_of(20), begin_of(2, 7, "directory", "/other")}, {}, "/other") == -1);
  CHECK(save_in({kFresh, save_of(20), begin_of(2, 0, "", ""), save_of(10)}) == 10);
}

TEST_CASE("the status counts where events were lost, not where it is older than they are") {
  CHECK(save_in({}, status_of(3, 40)) == 40);
  CHECK(save_in({kFresh}, status_of(1, 40)) == 40);
  CHECK(save_in({kFresh, begin_of(2, 0, "", "")}, status_of(1, 40)) == -1);
  CHECK(save_in({kFresh, save_of(20)}, status_of(1, -1)) == 20);
}

TEST_CASE("damaged lines hide no other") {
  CHECK(save_in({"", "{", "[]", R"({"kind":7})", R"({"kind":"checkpoint"})",
                 R"({"kind":"checkpoint","step":"x"})", save_of(30), R"({"kind":"start"})"}) == 30);
}
