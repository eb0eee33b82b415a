// Goal: what a job says of initial weights, muP and factors of roles is part of its identity where it says
// something, and no part of it where it says what there was before; a resume refuses to change it, a branch
// may.
// Method: specs with one field each against the plain one: hashes, resolved texts, refusals.
#include <catch2/catch.hpp>

#include "runtime/spec/changes.h"
#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

const char* kRolesJob =
    R"({"version": 1, "data": {"train": [{"path": "a.idx"}]}, "schedule": {"total_steps": 10}})";

ParsedJob parse_roles(const std::string& text, const std::vector<std::string>& overrides = {}) {
  ParsedJob parsed = parse_job({.text = text, .file = "job.json", .overrides = overrides, .environment = {}});
  REQUIRE(parsed.ok());
  return parsed;
}

}  // namespace

TEST_CASE("what is said of roles counts in a job's hash only where it says something", "[spec]") {
  const std::string preset = "model.preset=llama-tiny", hash = parse_roles(kRolesJob, {preset}).hash;
  const ParsedJob same = parse(
      kMinimal, {preset, "model.init.type=normal", "optimizer.lr_scale.matrix=1", "model.init.zero_output="});
  CHECK(same.hash == hash);
  CHECK(same.resolved_json.find("lr_scale") == std::string::npos);
  for (const char* other : {"model.init.type=truncated_normal", "model.init.residual_scale=false",
                            "model.mup.base_hidden_size=32", "optimizer.lr_scale.matrix=0.5",
                            "optimizer.weight_decay_scale.embedding=0"}) {
    CAPTURE(other);
    const ParsedJob now = parse_roles(kRolesJob, {preset, other});
    CHECK(now.hash != hash);
    CHECK(parse_roles(now.resolved_json).hash == now.hash);
    CHECK(refused_on_resume(same, now, "trainctl launch it").size() == 1);
    CHECK(refused_on_branch(same, now).empty());
  }
  const ModelSpec wide = parse_roles(kRolesJob, {preset, "model.mup.base_hidden_size=32"}).job.model;
  CHECK(wide.mup_ratio() == 32.0 / double(wide.hidden_size));
  const ModelSpec gemma = parse_roles(kRolesJob, {"model.preset=gemma3-1b", "model.mup.base_hidden_size=256",
                                                  "model.layer.score_scale=0"})
                              .job.model;
  CHECK(gemma.embedding_scale == 16);
}
