// Goal: the plan says how often a run will save and copy its state and what that costs, as the run itself
// will decide from the same numbers. Method: the plan of a small model for a GPU, with chosen times of a
// step, intervals and times between failures; compared with the rule of Young and Daly by hand, and with a
// calendar that measures what the forecast assumed.
#include <catch2/catch.hpp>

#include <cmath>

#include "runtime/base/json.h"
#include "runtime/spec/parse.h"
#include "runtime/train/save/save_calendar.h"
#include "runtime/train/save/save_forecast.h"

using namespace trainctl;

namespace {

PlanReport report_of(const std::vector<std::string>& settings, double step_s) {
  const ParseInput input{
      .text = R"({"version": 1, "name": "test", "device": "cuda", "model": {"preset": "gpt2-124m"},
      "data": {"train": [{"path": "/none.bin", "format": "raw", "dtype": "uint16"}]},
      "batch": {"global_sequences": 16}, "schedule": {"total_steps": 100000, "lr": 1e-3}})",
      .file = "job.json",
      .overrides = settings,
      .environment = {}};
  const ParsedJob parsed = parse_job(input);
  REQUIRE(parsed.ok());
  PlanReport report =
      make_report(input, parsed.job, device_named("h100", parsed.job, DeviceKind::cuda), std::nullopt);
  REQUIRE(report.time);
  report.time->step_s = step_s;
  return report;
}

const std::string kAuto = "checkpoint.interval=auto";

}  // namespace

TEST_CASE("an automatic interval is forecast as the run will decide it") {
  for (const int nodes : {1, 32, 2048})
    for (const double step_s : {0.1, 2.0, 30.0})
      for (const char* memory : {"checkpoint.memory=on", "checkpoint.memory=off"}) {
        CAPTURE(nodes, step_s, memory);
        const PlanReport report = report_of({kAuto, memory}, step_s);
        const auto saves = forecast_saves(report, nodes);
        REQUIRE(saves);
        CHECK(saves->automatic);
        CHECK(saves->mtbf_s == assumed_mtbf_s(nodes));
        CHECK(saves->node_bytes == (report.plan.checkpoint_bytes + size_t(nodes) - 1) / size_t(nodes));
        CHECK(saves->write_s == double(saves->node_bytes) / kAssumedWriteBytesPerS);
        CHECK(saves->in_memory == (std::string(memory) == "checkpoint.memory=on"));
        CHECK(saves->cost_s ==
              (saves->in_memory ? double(report.plan.saved_bytes) / kAssumedCopyBytesPerS : saves->write_s));
        CHECK(saves->first_step == 10);
        // Young and Daly, within a step, at least as long as a write takes and at most an hour.
        const double ideal_s = std::sqrt(2 * saves->cost_s * saves->mtbf_s);
        const double within_s = std::min(std::max(ideal_s, saves->write_s), 3600.0);
        CHECK(std::abs(saves->interval_s - within_s) <= step_s);
        CHECK(saves->interval_s == double(saves->steps) * step_s);

        SaveCalendar calendar({directory_rule(report.job.checkpoint)}, {}, {.mtbf_s = assumed_mtbf_s(nodes)});
        for (int i = 0; i < 5; ++i) calendar.stepped(step_s);
        calendar.cost(SaveTier::directory, saves->cost_s);
        calendar.safe(SaveTier::directory, saves->write_s);
        const auto measured = calendar.take_changes(0);
        REQUIRE(measured.size() == 1);
        CHECK(measured[0].steps == saves->steps);
        CHECK(measured[0].loss == saves->loss);
        CHECK(measured[0].text() == saves->text);
      }
}

TEST_CASE("a given interval and a given time between failures are forecast as given") {
  const auto saves =
      forecast_saves(report_of({"checkpoint.every_steps=50", "checkpoint.mtbf_seconds=7200"}, 2), 4);
  REQUIRE(saves);
  CHECK_FALSE(saves->automatic);
  CHECK((saves->steps == 50 && saves->first_step == 50));
  CHECK(saves->interval_s == 100);
  CHECK((saves->mtbf_is_given && saves->mtbf_s == 7200));
  CHECK(saves->cost_share() == saves->cost_s / 100);
  CHECK(saves->loss == saves->cost_s / 100 + 100 / (2 * 7200.0));
}

TEST_CASE("a run that saves at its end only, or of which no step is known, has no forecast") {
  CHECK_FALSE(forecast_saves(report_of({"checkpoint.every_steps=0"}, 2), 1));
  PlanReport unknown = report_of({kAuto}, 2);
  unknown.time.reset();
  CHECK_FALSE(forecast_saves(unknown, 1));
}

TEST_CASE("the plan prints the forecast with the numbers that it is based on") {
  PlanReport report = report_of({kAuto, "checkpoint.memory=on"}, 2);
  CHECK_THAT(render_plan(report), !Catch::Contains("Saves"));
  CHECK_FALSE(parse_json(plan_json(report)).contains("saves"));
  report.saves = forecast_saves(report, 32);
  const std::string text = render_plan(report);
  CHECK_THAT(text, Catch::Contains("Saves    the first after 10 steps, then " + report.saves->text));
  CHECK_THAT(text, Catch::Contains("a node of 32 at 1.00 GB/s") &&
                       Catch::Contains("a rank copied at 4.00 GB/s") &&
                       Catch::Contains("one failure in 6.2 days (all assumed"));
  const auto json = parse_json(plan_json(report))["saves"];
  CHECK(json["steps"] == report.saves->steps);
  CHECK(json["first_step"] == 10);
  CHECK(json["nodes"] == 32);
  CHECK(json["cost_share"] == report.saves->cost_share());
  CHECK(json["assumed_write_bytes_per_s"] == kAssumedWriteBytesPerS);
}

TEST_CASE("copies in memory and second copies are forecast as the run will make them") {
  for (const int nodes : {2, 32})
    for (const double step_s : {0.01, 0.1, 2.0}) {
      CAPTURE(nodes, step_s);
      const PlanReport report = report_of({kAuto}, step_s);
      const auto memory = forecast_memory_copies(report, nodes);
      REQUIRE(memory);
      CHECK((memory->steps == 1 && memory->interval_s == step_s));
      CHECK(memory->rank_bytes == report.plan.saved_bytes);
      CHECK(memory->seconds == double(report.plan.saved_bytes) / kAssumedCopyBytesPerS);

      const auto second = forecast_second_copies(report, nodes);
      REQUIRE(second);
      CHECK(second->node_bytes == (report.plan.checkpoint_bytes + size_t(nodes) - 1) / size_t(nodes));
      CHECK(second->seconds == double(second->node_bytes) / kAssumedSendBytesPerS);
      // The network belongs to training for three quarters of the time.
      CHECK(second->interval_s >= 4 * second->seconds);
      CHECK(second->interval_s - step_s <= std::max(4 * second->seconds, step_s));
      CHECK(second->interval_s == double(second->steps) * step_s);
    }
}

TEST_CASE("copies are forecast at the intervals that the spec gives") {
  const PlanReport report =
      report_of({kAuto, "checkpoint.memory_every_steps=5", "checkpoint.partner_every_steps=20"}, 2);
  const auto memory = forecast_memory_copies(report, 4), second = forecast_second_copies(report, 4);
  REQUIRE((memory && second));
  CHECK((memory->steps == 5 && memory->interval_s == 10));
  CHECK((second->steps == 20 && second->interval_s == 40));
}

TEST_CASE("copies that are not made have no forecast") {
  CHECK_FALSE(forecast_second_copies(report_of({}, 2), 1));  // there is no other node
  CHECK_FALSE(forecast_second_copies(report_of({"checkpoint.partner=off"}, 2), 4));
  CHECK(forecast_memory_copies(report_of({"checkpoint.partner=off"}, 2), 4));
  CHECK_FALSE(forecast_second_copies(report_of({"checkpoint.memory=off"}, 2), 4));
  CHECK_FALSE(forecast_memory_copies(report_of({"checkpoint.memory=off"}, 2), 4));
  PlanReport unknown = report_of({}, 2);
  unknown.time.reset();
  CHECK_FALSE(forecast_memory_copies(unknown, 4));
  CHECK_FALSE(forecast_second_copies(unknown, 4));
}

TEST_CASE("the plan prints both tiers in memory, also of a run that saves only at its end") {
  PlanReport report = report_of({"checkpoint.every_steps=0"}, 2);
  report.memory_copies = forecast_memory_copies(report, 4);
  report.second_copies = forecast_second_copies(report, 4);
  CHECK_THAT(render_plan(report), Catch::Contains("Copies   in memory every step (2 s)") &&
                                      Catch::Contains("\n         to the partner every ") &&
                                      Catch::Contains("a node at 1.25 GB/s") && !Catch::Contains("waits"));
  const auto json = parse_json(plan_json(report));
  CHECK(json["memory_copies"]["steps"] == 1);
  CHECK(json["second_copies"]["steps"] == report.second_copies->steps);
  CHECK(json["second_copies"]["assumed_bytes_per_s"] == kAssumedSendBytesPerS);
  // A copy that takes longer than the steps to the next one holds training up.
  report = report_of({}, 0.01);
  report.memory_copies = forecast_memory_copies(report, 4);
  REQUIRE(report.memory_copies->seconds > 0.01);
  CHECK_THAT(render_plan(report), Catch::Contains("training waits") && Catch::Contains("memory_every_steps"));
  report = report_of({"checkpoint.memory_every_steps=0"}, 2);
  report.memory_copies = forecast_memory_copies(report, 4);
  CHECK_THAT(render_plan(report), Catch::Contains("Copies   in memory with each save to the folder"));
}
