// Goal: what is offered for a job that does not fit has meshes in which ranks share experts, and sequences,
// where the checks allow them; and each alternative is what it says. Method: small models with experts and with
// long sequences on a machine of just the memory that a shared mesh needs; each alternative is planned again.
#include <catch2/catch.hpp>

#include "runtime/plan/fit.h"
#include "runtime/plan/plan.h"
#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

ParseInput spec_of_experts(std::vector<std::string> settings) {
  settings.insert(settings.end(), {"device=cpu", "precision.compute=bf16", "batch.micro_sequences=1",
                                   "memory.activation_recompute=full", "checkpoint.memory=off"});
  return {.text = R"({"version": 1, "name": "test", "model": {"preset": "mixtral-tiny", "hidden_size": 128,
                      "moe": {"num_experts": 32, "expert_ffn_size": 512}, "max_seq_len": 32768},
            "data": {"train": [{"path": "/none.bin", "format": "raw", "dtype": "uint16"}]},
            "schedule": {"total_steps": 10, "lr": 1e-3}})",
          .file = "job.json",
          .overrides = std::move(settings),
          .environment = {}};
}

ParsedJob parsed_with(ParseInput input, const std::vector<std::string>& more) {
  input.overrides.insert(input.overrides.end(), more.begin(), more.end());
  ParsedJob job = parse_job(input);
  INFO(render(job.diagnostics, false));
  REQUIRE(job.ok());
  return job;
}

uint64_t need_of(const JobSpec& job) {
  return memory_need(job.parallelism, job.checkpoint.memory, make_plan(job, DeviceKind::cpu))
      .without_copies();
}

/// The alternatives on a machine with what the job needs with these settings.
std::vector<Alternative> offered(const ParseInput& input, const std::vector<std::string>& shared) {
  const ParsedJob job = parsed_with(input, {});
  DeviceModel device = device_of_kind(job.job, DeviceKind::cpu);
  device.memory_bytes = need_of(parsed_with(input, shared).job);
  REQUIRE(device.memory_bytes < need_of(job.job));
  std::vector<Alternative> found = what_fits(input, job.job, device, 200);
  for (const Alternative& a : found) {
    const JobSpec now = parsed_with(input, a.settings).job;
    CHECK(now.mesh().world_size() == a.ranks);
    CHECK(fit_of(now, make_plan(now, device), device).fits());
  }
  return found;
}

bool any_has(const std::vector<Alternative>& found, const std::string& setting) {
  return std::any_of(found.begin(), found.end(), [&](const Alternative& a) {
    return std::find(a.settings.begin(), a.settings.end(), setting) != a.settings.end();
  });
}

}  // namespace

TEST_CASE("alternatives: ranks that share experts", "[experts]") {
  const ParseInput input =
      spec_of_experts({"parallelism.data=4", "batch.global_sequences=8", "data.seq_len=32"});
  const auto found = offered(input, {"parallelism.expert=4"});
  CHECK(std::any_of(found.begin(), found.end(), [](const Alternative& a) {
    return a.settings == std::vector<std::string>{"parallelism.expert=4"};
  }));
  // Long enough sequences are needed before ranks share them.
  for (const Alternative& a : found)
    for (const std::string& setting : a.settings) CHECK_FALSE(setting.starts_with("parallelism.context"));
}

TEST_CASE("alternatives: ranks that share sequences", "[experts]") {
  const ParseInput input =
      spec_of_experts({"parallelism.data=2", "batch.global_sequences=2", "data.seq_len=16384"});
  const auto found = offered(input, {"parallelism.data=1", "parallelism.context=2"});
  CHECK(any_has(found, "parallelism.context=2"));
  // The given number of blocks keeps the bits.
  const ParseInput cut = spec_of_experts({"parallelism.data=2", "parallelism.context_blocks=2",
                                          "batch.global_sequences=2", "data.seq_len=16384"});
  const auto of_cut = offered(cut, {"parallelism.data=1", "parallelism.context=2"});
  REQUIRE(any_has(of_cut, "parallelism.context=2"));
  CHECK(any_has(of_cut, "parallelism.context_blocks=2"));
}
