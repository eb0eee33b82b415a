// Goal: what is offered for a job that does not fit fits, and is what it says: ranks share experts, and
// sequences, where the checks allow them; a job in f32 may fit in bf16, on fewer ranks, or with its state
// on disk. Method: small models with experts and with long sequences on a machine of just the memory that
// they need; each is planned again.
#include <catch2/catch.hpp>

#include "runtime/base/units.h"
#include "runtime/plan/report.h"
#include "runtime/plan/search.h"
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

/// What is offered on a machine with what the job needs with these settings.
std::vector<Proposal> offered(const ParseInput& input, const std::vector<std::string>& shared) {
  const ParsedJob job = parsed_with(input, {});
  DeviceModel device = device_of_kind(job.job, DeviceKind::cpu);
  device.memory_bytes = need_of(parsed_with(input, shared).job);
  REQUIRE(device.memory_bytes < need_of(job.job));
  std::vector<Proposal> found = what_fits(input, job.job, device);
  for (const Proposal& a : found) {
    const JobSpec now = parsed_with(input, a.settings).job;
    CHECK(choice_of(now) == a.choice);
    CHECK(fit_of(now, make_plan(now, device), device).fits());
  }
  return found;
}

}  // namespace

TEST_CASE("alternatives: ranks that share experts", "[experts]") {
  const ParseInput input =
      spec_of_experts({"parallelism.data=4", "batch.global_sequences=8", "data.seq_len=32"});
  const auto found = offered(input, {"parallelism.expert=4"});
  CHECK(std::any_of(found.begin(), found.end(), [](const Proposal& a) { return a.choice.expert > 1; }));
  // Long enough sequences are needed before ranks share them.
  for (const Proposal& a : found)
    for (const std::string& setting : a.settings) CHECK_FALSE(setting.starts_with("parallelism.context"));
}

TEST_CASE("alternatives: ranks that share sequences", "[experts]") {
  for (const bool cut : {false, true}) {
    std::vector<std::string> settings = {"parallelism.data=2", "batch.global_sequences=2",
                                         "data.seq_len=16384"};
    if (cut) settings.push_back("parallelism.context_blocks=2");
    const ParseInput input = spec_of_experts(settings);
    const ParsedJob job = parsed_with(input, {});
    DeviceModel device = device_named("64GiB", job.job, DeviceKind::cpu);
    device.cluster = predict::known_cluster("cpu-core");
    device.flops_per_s = 1e11;
    MeshSearch search(input, job.job, device, [](const MeshChoice& c) { return c.ranks(); });
    search.keep([](const MeshChoice& c) { return c.context == 2; });
    const SearchResult found = search.on(2, 1);
    REQUIRE(found.front.size() == 1);
    const std::vector<std::string>& now = found.front.front().settings;
    CHECK(std::count(now.begin(), now.end(), "parallelism.context=2") == 1);
    // The given number of blocks keeps the bits.
    CHECK(std::count(now.begin(), now.end(), "parallelism.context_blocks=2") == (cut ? 1 : 0));
    CHECK(found.front.front().job.parallelism.context_blocks == 2);
  }
}

TEST_CASE("alternatives: bf16, and fewer ranks of a machine", "[experts]") {
  const auto least_of = [](const ParseInput& input, const JobSpec& job, int ranks) {
    DeviceModel device = device_named("64GiB", job, DeviceKind::cpu);
    device.cluster = predict::known_cluster("cpu-core");
    device.flops_per_s = 1e11;
    MeshSearch search(input, job, device, [](const MeshChoice& c) { return c.ranks(); });
    uint64_t least = UINT64_MAX;
    for (const MeshChoice& choice : mesh_choices(job, device, ranks))
      if (const auto planned = search.planned(choice)) least = std::min(least, planned->bytes);
    return least;
  };
  // Of muon nothing is offered on disk.
  const ParseInput narrow = spec_of_experts(
      {"parallelism.data=2", "batch.global_sequences=2", "data.seq_len=32", "optimizer.type=muon"});
  ParseInput input = narrow;
  input.overrides.push_back("precision.compute=f32");
  const JobSpec wide = parsed_with(input, {}).job;
  DeviceModel device = device_of_kind(wide, DeviceKind::cpu);
  device.memory_bytes = least_of(input, wide, 2) - 1;
  const std::vector<Proposal> found = what_fits(input, wide, device);
  REQUIRE_FALSE(found.empty());
  for (const Proposal& p : found) {
    CHECK(p.bytes <= device.memory_bytes);
    CHECK(p.settings.front() == "precision.compute=bf16");
    CHECK_THAT(p.other_bits, Catch::Contains("precision"));
  }

  const JobSpec job = parsed_with(narrow, {}).job;
  const uint64_t of_two = least_of(narrow, job, 2), of_one = least_of(narrow, job, 1);
  REQUIRE(of_one < of_two);
  device.memory_bytes = of_one;
  const std::vector<Proposal> fewer = what_fits(narrow, job, device);
  REQUIRE_FALSE(fewer.empty());
  CHECK(fewer.front().choice.ranks() == 1);
  CHECK(what_fits(narrow, job, device, 3, false).empty());
  device.memory_bytes = of_one / 2;
  CHECK(what_fits(narrow, job, device).empty());
}

TEST_CASE("alternatives: no master weights come last, with what they cost") {
  const std::string none = "optimizer.master_weights=none";
  const std::vector<Proposal> found = offered(spec_of_experts({}), {none});
  REQUIRE_FALSE(found.empty());
  CHECK(found.back().settings.front() == none);
  CHECK_THAT(found.back().other_bits, Catch::Contains("master_weights f32 → none, weights of 8 bits"));
  for (const char* other : {"precision.compute=f32", "optimizer.type=muon"}) {
    ParseInput spec = spec_of_experts({});
    spec.overrides.emplace_back(other);
    const JobSpec job = parsed_with(spec, {}).job;
    DeviceModel device = device_of_kind(job, DeviceKind::cpu);
    device.memory_bytes = need_of(job) * 9 / 10;
    for (const Proposal& p : what_fits(spec, job, device))
      CHECK(std::count(p.settings.begin(), p.settings.end(), none) == 0);
  }
}

TEST_CASE("the note on no master weights counts what memory, or the file of a rank, has less") {
  const auto planned = [](const std::vector<std::string>& settings) {
    const ParseInput input = spec_of_experts(settings);
    const JobSpec job = parsed_with(input, {}).job;
    DeviceModel device = device_of_kind(job, DeviceKind::cpu);
    device.memory_bytes = uint64_t{1} << 50;  // it fits
    return make_report(input, job, device, std::nullopt);
  };
  const auto notes = [](const PlanReport& report) {
    std::string all;
    for (const std::string& note : plan_notes(report)) all += note + "\n";
    return all;
  };
  const std::string none = "optimizer.master_weights=none", disk = "optimizer.offload=disk";
  const PlanReport with = planned({}), without = planned({none});
  const auto less = double(with.plan.worst().total() - without.plan.worst().total());
  CHECK_THAT(notes(without), Catch::Contains("without master weights a rank takes " + memory_text(less) +
                                             " less: weights of 8 bits"));
  CHECK_THAT(notes(with), !Catch::Contains("without master weights"));
  const PlanReport with_file = planned({disk}), without_file = planned({none, disk});
  const size_t full = with_file.plan.worst().sharding.state_file;
  const size_t rest = without_file.plan.worst().sharding.state_file;
  REQUIRE(rest > 0);
  REQUIRE(rest < full);
  CHECK_THAT(notes(without_file),
             Catch::Contains("without master weights the file of a rank takes " +
                             memory_text(double(full - rest)) + " less: weights of 8 bits"));
}

TEST_CASE("alternatives: the optimizer's state on disk, with the same mesh and bits") {
  const std::string disk = "optimizer.offload=disk";
  const std::vector<Proposal> found = offered(spec_of_experts({}), {disk});
  const auto on_disk =
      std::find_if(found.begin(), found.end(), [&](const Proposal& p) { return p.settings.front() == disk; });
  REQUIRE(on_disk != found.end());
  CHECK(on_disk->other_bits.empty());
  // Nor is it offered where it may not be.
  const ParseInput muon = spec_of_experts({"optimizer.type=muon"});
  const ParsedJob job = parsed_with(muon, {});
  DeviceModel device = device_of_kind(job.job, DeviceKind::cpu);
  device.memory_bytes = need_of(job.job) / 2;
  for (const Proposal& p : what_fits(muon, job.job, device))
    CHECK(std::count(p.settings.begin(), p.settings.end(), disk) == 0);
}
