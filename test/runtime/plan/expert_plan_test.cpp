// Goal: a plan says what sharing experts takes on each kind of device, and counts of rows are sent once a
// layer and micro-batch, whatever is computed again. Method: one job with experts of its own and with shared
// ones; the messages of a step on the tally twin.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <optional>

#include "runtime/plan/report.h"
#include "runtime/plan/step_tally.h"
#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

constexpr int kExperts = 8;

ParseInput with_experts(int shared_by, const std::string& device, const std::string& recompute) {
  return {.text = fmt::format(
              R"({{"version": 1, "name": "test", "model": {{"preset": "llama-tiny",
              "moe": {{"num_experts": {}, "top_k": 2, "expert_ffn_size": 24}}}}, "batch": {{"global_sequences": 8}},
              "data": {{"train": [{{"path": "/none.bin", "format": "raw", "dtype": "uint16"}}]}}, "device": "{}",
              "schedule": {{"total_steps": 10, "lr": 1e-3}}, "parallelism": {{"data": 4, "lanes": 4}},
              "memory": {{"activation_recompute": "{}"}}}})",
              kExperts, device, recompute),
          .file = "job.json",
          .overrides = {fmt::format("parallelism.expert={}", shared_by)},
          .environment = {}};
}

JobSpec parsed(const ParseInput& input) {
  const ParsedJob job = parse_job(input);
  INFO(render(job.diagnostics, false));
  REQUIRE(job.ok());
  return job.job;
}

}  // namespace

TEST_CASE("a plan says what ranks that share experts take, on CPU cores and GPUs") {
  const auto report = [](int shared_by, const std::string& device) {
    const ParseInput input = with_experts(shared_by, device, "none");
    const JobSpec job = parsed(input);
    return make_report(input, job, device_of_kind(job, device == "cpu" ? DeviceKind::cpu : DeviceKind::cuda),
                       std::nullopt);
  };
  const PlanReport cpu = report(4, "cpu"), gpu = report(4, "cuda"), alone = report(1, "cuda");
  CHECK_THAT(render_plan(cpu),
             Catch::Contains("share experts") && !Catch::Contains("the host waits for its GPU"));
  CHECK_THAT(render_plan(gpu), Catch::Contains("the host waits for its GPU"));
  CHECK_THAT(render_plan(alone), !Catch::Contains("the host waits for its GPU"));
  CHECK(cpu.plan.worst().stage.host == 0);
  CHECK(alone.plan.worst().stage.host == 0);
  CHECK(gpu.plan.worst().stage.host > 0);
  CHECK(gpu.plan.worst().pinned_host > gpu.plan.worst().stage.host);
  CHECK(gpu.plan.worst().nccl > alone.plan.worst().nccl);
}

TEST_CASE("counts of rows are sent once a layer and micro-batch") {
  for (const char* recompute : {"none", "selective", "full"}) {
    CAPTURE(recompute);
    const JobSpec job = parsed(with_experts(4, "cuda", recompute));
    const parallel::TrafficTally traffic =
        tally_step({job, device_of_kind(job, DeviceKind::cuda), model_tables(job)}, {}, true).traffic;
    uint64_t sent = 0;
    for (const auto& [key, count] : traffic.messages)
      if (key.group == parallel::TrafficGroup::experts && key.way == parallel::Way::send &&
          key.bytes == (kExperts + 1) * sizeof(int32_t))
        sent += count;
    const uint64_t others = 3, micro_batches = 2;
    CHECK(sent == others * micro_batches * uint64_t(job.model.num_layers));
  }
}
