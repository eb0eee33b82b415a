// Goal: the plan says how often a run will save and what that costs, as the run itself will decide from the
// same numbers. Method: the plan of a small model for a GPU, with chosen times of a step, intervals and times
// between failures; compared with the rule of Young and Daly by hand, and with a calendar that measures what
// the forecast assumed.
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
