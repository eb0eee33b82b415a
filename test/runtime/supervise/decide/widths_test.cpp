// Goal: a run that loses nodes goes on at every narrower width that its spec allows, with as many ranks that
// share experts as fit. Method: jobs of 4 data-parallel and 2 tensor ranks with cut and with whole experts;
// the widths, and what is set at each.
#include "runtime/supervise/decide/widths.h"

#include <catch2/catch.hpp>

#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

ParsedJob elastic_job(const std::vector<std::string>& overrides) {
  const ParsedJob job = parse_job({.text = R"({
  "version": 1, "name": "widths",
  "model": {"preset": "mixtral-tiny", "moe": {"num_experts": 8}},
  "data": {"train": [{"path": "a.idx"}]},
  "batch": {"global_sequences": 16},
  "parallelism": {"world_size": 8, "tensor": 2, "data": 4, "lanes": 4},
  "schedule": {"total_steps": 10, "lr": 1e-3},
  "fault_tolerance": {"elastic": true}
})",
                                   .file = "job.json",
                                   .overrides = overrides,
                                   .environment = {}});
  INFO(render(job.diagnostics, false));
  REQUIRE(job.ok());
  return job;
}

std::vector<std::string> settings_of(const std::vector<std::string>& overrides) {
  const ParsedJob job = elastic_job(overrides);
  std::vector<std::string> all;
  for (const Width& width : widths_of(job)) {
    std::string text;
    for (const std::string& setting : overrides_of(job, width)) text += setting + " ";
    all.push_back(text);
  }
  return all;
}

}  // namespace

TEST_CASE("ranks that share experts get fewer with the width, whole experts with their tensor ranks") {
  const std::string three = "parallelism.data=3 parallelism.world_size=6 ",
                    four = "parallelism.data=2 parallelism.world_size=4 ",
                    two = "parallelism.data=1 parallelism.world_size=2 ";
  CHECK(settings_of({"parallelism.expert=4"}) == std::vector<std::string>{"", three + "parallelism.expert=1 ",
                                                                          four + "parallelism.expert=2 ",
                                                                          two + "parallelism.expert=1 "});
  CHECK(settings_of({"parallelism.expert=8", "parallelism.expert_tensor=1"}) ==
        std::vector<std::string>{"", three + "parallelism.expert=2 ", four + "parallelism.expert=4 ",
                                 two + "parallelism.expert=2 "});
  CHECK(settings_of({"parallelism.expert=2", "parallelism.expert_tensor=1"}) ==
        std::vector<std::string>{"", three, four, two});
}
