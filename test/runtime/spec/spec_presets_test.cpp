// Goal: what a user gives against a preset is what a run trains, also after its resolved spec is read again.
// Method: presets with experts, and their fields set to what the fields have by default.
#include <catch2/catch.hpp>

#include "runtime/spec/parse.h"

using namespace trainctl;

TEST_CASE("a default that is given against a preset stays when the resolved spec is read again", "[spec]") {
  const std::string text =
      R"({"version": 1, "model": {"preset": "qwen3-30b-a3b"}, "data": {"train": [{"path": "t.idx"}]},
    "schedule": {"total_steps": 5}})";
  for (const std::string setting :
       {"model.moe.top_k=2", "model.moe.aux_loss_coefficient=0.01", "model.moe.renormalize=true"}) {
    CAPTURE(setting);
    const ParsedJob job =
        parse_job({.text = text, .file = "job.json", .overrides = {setting}, .environment = {}});
    REQUIRE(job.ok());
    const ParsedJob again =
        parse_job({.text = job.resolved_json, .file = "job.json", .overrides = {}, .environment = {}});
    REQUIRE(again.ok());
    CHECK(again.job.model.moe == job.job.model.moe);
    CHECK(again.hash == job.hash);
  }
}
