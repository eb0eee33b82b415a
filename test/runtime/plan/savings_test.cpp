// Goal: the table of savings has what a plan of each would say, and a reason where the job cannot have it; what it
// proposes together fits, and no setting of it is too much.
// Method: small jobs on devices of a given size; each row is compared with the plan and the time of the job that its
// settings make.
#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/plan/fit.h"
#include "runtime/plan/savings.h"

using namespace trainctl;

namespace {

ParseInput saving_job(std::vector<std::string> overrides) {
  return {.text = R"({"version": 1,
  "model": {"family": "llama", "hidden_size": 512, "num_layers": 24, "num_heads": 8, "num_kv_heads": 4,
            "ffn_size": 1376, "vocab_size": 4096, "max_seq_len": 512},
  "data": {"train": [{"path": "a.idx"}], "seq_len": 512},
  "batch": {"global_sequences": 32, "micro_sequences": 4},
  "parallelism": {"data": 2, "zero_stage": 0, "bucket_mib": 8},
  "precision": {"compute": "bf16"},
  "schedule": {"total_steps": 10, "lr": 1e-3}})",
          .file = "savings.json",
          .overrides = std::move(overrides)};
}

struct Planned {
  uint64_t bytes = 0;
  bool fits = false;
  double step_s = 0;
};
Planned planned(ParseInput input, const std::vector<std::string>& settings, DeviceModel device) {
  input.overrides.insert(input.overrides.end(), settings.begin(), settings.end());
  const ParsedJob parsed = parse_job(input);
  REQUIRE(parsed.ok());
  const JobPlan plan = make_plan(parsed.job, device);
  const Fit fit = fit_of(parsed.job, plan, device);
  return {fit.needed(), fit.fits(), estimate_time(parsed.job, plan, device, std::nullopt)->step_s};
}

/// An H100 with so much memory.
DeviceModel h100_of(uint64_t bytes, const ParseInput& input) {
  DeviceModel device = device_named("h100", parse_job(input).job, DeviceKind::cuda);
  device.memory_bytes = bytes;
  return device;
}
SavingTable table_of(const ParseInput& input, const DeviceModel& device) {
  const ParsedJob parsed = parse_job(input);
  REQUIRE(parsed.ok());
  return saving_table(input, parsed.job, device, std::nullopt);
}
const SavingRow* row_of(const SavingTable& table, const std::string& name) {
  for (const SavingRow& row : table.rows)
    if (row.name == name) return &row;
  return nullptr;
}

}  // namespace

TEST_CASE("each row of the table of savings is a plan of its own") {
  const ParseInput input = saving_job({});
  const DeviceModel device = h100_of(uint64_t(80) << 30, input);
  const SavingTable table = table_of(input, device);
  CHECK(!table.of_machine);
  CHECK(!table.together);
  for (const SavingRow& row : table.rows) {
    CAPTURE(row.name);
    if (!row.refused.empty()) continue;
    const Planned plan = planned(input, row.settings, device);
    CHECK(row.bytes == plan.bytes);
    CHECK(row.fits == plan.fits);
    CHECK(*row.step_s == plan.step_s);
  }
  for (const char* name : {"ZeRO-1", "ZeRO-2", "ZeRO-3", "full recomputation", "selective recomputation",
                           "moments in bf16", "moments in 8 bits"}) {
    CAPTURE(name);
    REQUIRE(row_of(table, name));
    CHECK(row_of(table, name)->bytes < table.job.bytes);
  }
  CHECK(row_of(table, "ZeRO-3")->accuracy == "");
  CHECK(row_of(table, "moments in 8 bits")->accuracy != "");
  // Of ranks on CPUs alone.
  CHECK(row_of(table, "optimizer on disk")->refused != "");
  CHECK(render_savings(table).find("not possible: E") != std::string::npos);
}

TEST_CASE("what the job has is no row of the table of savings") {
  const ParseInput input =
      saving_job({"parallelism.zero_stage=2", "memory.activation_recompute=full", "optimizer.moments=bf16"});
  const SavingTable table = table_of(input, h100_of(uint64_t(80) << 30, input));
  for (const char* name :
       {"ZeRO-1", "ZeRO-2", "full recomputation", "selective recomputation", "bf16", "moments in bf16"})
    CHECK(!row_of(table, name));
  CHECK(row_of(table, "ZeRO-3"));
  CHECK(row_of(table, "moments in 8 bits"));
}

TEST_CASE("savings together fit, need each of their settings, and keep the bits where that is possible") {
  const ParseInput input = saving_job({});
  const DeviceModel large = h100_of(uint64_t(80) << 30, input);
  const uint64_t contexts = large.memory_bytes - large.room(parse_job(input).job);
  const SavingTable all = table_of(input, large);
  uint64_t least = all.job.bytes;
  for (const SavingRow& row : all.rows)
    if (row.refused.empty() && row.accuracy.empty()) least = std::min(least, row.bytes);
  size_t fitting = 0, several = 0;
  for (uint64_t room = all.job.bytes - 1; room > all.job.bytes / 8; room -= all.job.bytes / 16) {
    CAPTURE(room);
    const DeviceModel device = h100_of(room + contexts, input);
    const SavingTable table = table_of(input, device);
    REQUIRE(table.together);
    const SavingRow& together = *table.together;
    const Planned plan = planned(input, together.settings, device);
    CHECK(together.bytes == plan.bytes);
    CHECK(together.fits == plan.fits);
    if (!plan.fits) continue;
    ++fitting;
    several += together.settings.size() > 1;
    if (room >= least) CHECK(together.accuracy == "");
    for (size_t i = 0; i < together.settings.size(); ++i) {
      std::vector<std::string> fewer = together.settings;
      fewer.erase(fewer.begin() + int64_t(i));
      CHECK(!planned(input, fewer, device).fits);
    }
  }
  CHECK(fitting > 2);
  CHECK(several > 0);
}

TEST_CASE("savings that are not enough say how much is missing") {
  const ParseInput input = saving_job({});
  const DeviceModel large = h100_of(uint64_t(80) << 30, input);
  const uint64_t contexts = large.memory_bytes - large.room(parse_job(input).job);
  const SavingTable table = table_of(input, h100_of(contexts + 1, input));
  REQUIRE(table.together);
  CHECK(table.together->fits == false);
  CHECK(table.together->settings.size() > 2);
  CHECK(render_savings(table).find("All that help are not enough") != std::string::npos);
}

TEST_CASE("savings of a device whose memory or speed is not known") {
  const ParseInput input = saving_job({});
  const ParsedJob parsed = parse_job(input);
  const SavingTable table =
      saving_table(input, parsed.job, device_of_kind(parsed.job, DeviceKind::cuda), std::nullopt);
  CHECK(!table.job.fits);
  CHECK(!table.together);
  CHECK(render_savings(table).find("an unknown amount") != std::string::npos);
}
