// Goal: f16 is planned for ranks on CPUs alone, with the memory that products need there. Method: devices by
// name; the workspace of a job with experts over numbers of ranks that share them.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "runtime/base/error.h"
#include "runtime/plan/device_model.h"
#include "runtime/spec/parse.h"

using namespace trainctl;

TEST_CASE("f16 is planned for machines, not for GPUs") {
  JobSpec job;
  job.compute = DType::f16;
  for (const std::string& name : device_names())
    CHECK_THROWS_WITH(
        device_named(name, job, DeviceKind::cpu),
        Catch::Contains("E0323: f16 is computed by ranks on CPUs alone, and " + name + " is a GPU"));
  CHECK(device_named("64GiB", job, DeviceKind::cpu).is_host());
}

TEST_CASE("products of experts in f16 have room for the rows of all ranks that share them") {
  const auto workspace = [](const char* compute, int ranks) {
    const JobSpec job =
        parse_job({.text = R"({"version": 1, "model": {"preset": "mixtral-tiny"}, "device": "cpu",
                               "data": {"train": [{"path": "/none.idx"}]}, "schedule": {"total_steps": 10},
                               "parallelism": {"data": 2}})",
                   .file = "job.json",
                   .overrides = {fmt::format("precision.compute={}", compute),
                                 fmt::format("parallelism.expert={}", ranks)}})
            .job;
    return device_of_kind(job, DeviceKind::cpu).workspace_bytes(model_tables(job), job.parallelism, {});
  };
  const size_t more = workspace("f16", 2) - workspace("f16", 1);
  CHECK(workspace("f32", 2) == workspace("f32", 1));
  CHECK(more > 0);
}
