// Goal: what a user gives against a preset is what a run trains, also after its resolved spec is read again.
// Method: presets with experts, and their fields set to what the fields have by default.
#include <catch2/catch.hpp>

#include "runtime/model/flops.h"
#include "runtime/model/params.h"
#include "runtime/spec/parse.h"
#include "runtime/spec/presets.h"

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

TEST_CASE("quantile balancing takes the place of a preset's rate", "[spec]") {
  const ParsedJob job =
      parse_job({.text = R"({"version": 1, "data": {"train": [{"path": "t.idx"}]}, "schedule":
                                              {"total_steps": 5}})",
                 .file = "job.json",
                 .overrides = {"model.preset=glm-4.5-air", "model.moe.bias_update=quantile"},
                 .environment = {}});
  REQUIRE(job.ok());
  CHECK(job.job.model.moe.bias_update == BiasUpdate::quantile);
  CHECK(job.job.model.moe.bias_update_rate == 0);
  CHECK(job.job.model.moe.selection_bias);
  const ParsedJob again =
      parse_job({.text = job.resolved_json, .file = "job.json", .overrides = {}, .environment = {}});
  REQUIRE(again.ok());
  CHECK(again.job.model.moe == job.job.model.moe);
  CHECK(again.hash == job.hash);
}

TEST_CASE("of a model with experts a token meets the published number of parameters", "[spec]") {
  // DeepSeek-V3's report, arXiv:2412.19437, says 37B of 671B, Kimi K2's 32B of 1T, V2 Lite's 2.4B of 15.7B
  // (without the embedding, of 0.2B).
  for (const auto& [name, met] : {std::pair{"deepseek-v3", int64_t(37'552'297'472)},
                                  {"kimi-k2", int64_t(32'861'500'928)},
                                  {"deepseek-v2-lite", int64_t(2'661'150'208)}}) {
    CAPTURE(name);
    const ParsedJob job =
        parse_job({.text = R"({"version": 1, "data": {"train": [{"path": "t.idx"}]}, "schedule":
                                                {"total_steps": 5}})",
                   .file = "job.json",
                   .overrides = {std::string("model.preset=") + name},
                   .environment = {}});
    REQUIRE(job.ok());
    CHECK(spec::find_preset(name)->parameters - idle_parameters(model_plan(job.job.model)) == met);
    if (std::string(name) != "deepseek-v3") continue;
    // Its files have 684,489,845,504 weights (without scales of FP8): the module of multi-token prediction, and
    // with it second copies of the embedding and the head, 14B in words of its README.
    ModelSpec with_module = job.job.model;
    with_module.mtp.num_layers = 1;
    const int64_t parameters = parameter_table(with_module, {}).total_count();
    CHECK(parameters - spec::find_preset(name)->parameters == 11'610'068'224);
    CHECK(parameters + 2 * int64_t(129'280) * 7'168 == 684'489'845'504);
  }
}
