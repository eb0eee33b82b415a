// Goal: the schedule of a resume follows from the run's and from what changes it.
// Method: the resolved job of a run is parsed again with overrides, as `resume` does; the lengths are compared with
// those that `trainctl explain schedule` states.
#include <catch2/catch.hpp>

#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

using Overrides = std::vector<std::string>;

ParsedJob parsed_schedule(const std::string& text, Overrides overrides) {
  ParsedJob parsed =
      parse_job({.text = text, .file = "job.json", .overrides = std::move(overrides), .environment = {}});
  INFO(render(parsed.diagnostics, false));
  REQUIRE(parsed.ok());
  return parsed;
}

/// Of a run of 100 steps that was launched with `before` and is resumed with `change`.
ScheduleSpec resumed_schedule(Overrides before, Overrides change) {
  const std::string job =
      R"({"model": {"preset": "llama-tiny"}, "data": {"train": [{"path": "a"}]}, "schedule": {"total_steps": 100}})";
  const ParsedJob run = parsed_schedule(job, std::move(before));
  return parsed_schedule(run.resolved_json, std::move(change)).job.schedule;
}

}  // namespace

TEST_CASE("a resume that changes the shape of the schedule takes that shape's decay length", "[spec]") {
  const Overrides cosine = {}, wsd = {"schedule.type=wsd"};
  const Overrides seven = {"schedule.type=wsd", "schedule.decay_steps=7"};
  CHECK(resumed_schedule(cosine, {"schedule.type=wsd"}).decay_steps == 20);
  CHECK(resumed_schedule(cosine, {"schedule.type=wsd", "schedule.total_steps=200"}).decay_steps == 40);
  CHECK(resumed_schedule(cosine, {"schedule.type=wsd", "schedule.decay_steps=9"}).decay_steps == 9);
  CHECK(resumed_schedule(cosine, {"schedule.type=wsd", "schedule.decay_steps=0"}).decay_steps == 0);
  CHECK(resumed_schedule(cosine, {"schedule.type=linear"}).decay_steps == 0);
  CHECK(resumed_schedule(wsd, {"schedule.type=cosine"}).decay_steps == 0);
  CHECK(resumed_schedule(seven, {"schedule.type=linear"}).decay_steps == 0);
  CHECK(resumed_schedule(seven, {"schedule.type=wsd"}).decay_steps == 7);
  CHECK(resumed_schedule(seven, {"schedule.total_steps=200"}).decay_steps == 7);
  // The same type again changes nothing.
  CHECK(
      resumed_schedule({"schedule.type=wsd", "schedule.decay_steps=0"}, {"schedule.type=wsd"}).decay_steps ==
      0);
}
