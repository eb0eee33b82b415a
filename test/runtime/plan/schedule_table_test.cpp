// Goal: the table of schedules has what a plan of each would say, and a reason where the job cannot have it.
// Method: tables of small jobs; each row is compared with the plan, the pipeline and the picture of the job
// that its settings make, and refusals with their sentences. Bounds on what the schedules are known for.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "parallel/schedules.h"
#include "runtime/plan/pipeline_plan.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/schedule_table.h"
#include "test/support/merged_schedule.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using parallel::kMergedSchedule;
using parallel::Schedule;

namespace {

ParseInput table_job(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"parallelism.data=1"});
  return {.text = R"({"version": 1,
  "model": {"family": "llama", "hidden_size": 64, "num_layers": 12, "num_heads": 4, "num_kv_heads": 2,
            "ffn_size": 96, "vocab_size": 128, "max_seq_len": 32},
  "data": {"train": [{"path": "a.idx"}], "seq_len": 32},
  "batch": {"global_sequences": 32, "micro_sequences": 1},
  "parallelism": {"pipeline": 4},
  "schedule": {"total_steps": 10, "lr": 1e-3}})",
          .file = "table.json",
          .overrides = std::move(overrides)};
}

ScheduleTable table_of(const ParseInput& input) {
  const ParsedJob parsed = parse_job(input);
  REQUIRE(parsed.ok());
  return schedule_table(input, parsed.job, device_named("h100", parsed.job, DeviceKind::cuda), std::nullopt);
}

const ScheduleRow& row_of(const ScheduleTable& table, Schedule schedule, int virtual_stages = 0) {
  for (const ScheduleRow& row : table.rows)
    if (row.schedule == schedule && (virtual_stages == 0 || row.virtual_stages == virtual_stages)) return row;
  FAIL("no such row");
  throw;
}

}  // namespace

TEST_CASE("each row of the table of schedules is a plan of its own") {
  for (const char* recompute : {"none", "full"}) {
    const ParseInput input = table_job({std::string("memory.activation_recompute=") + recompute});
    const ScheduleTable table = table_of(input);
    CHECK(table.stages == 4);
    CHECK(table.micro_batches == 32);
    CHECK(table.with_transfers);
    CHECK(table.cluster == "h100");
    std::set<Schedule> kinds;
    double fastest = 1e9;
    for (const ScheduleRow& row : table.rows) {
      CAPTURE(recompute, parallel::name_of(row.schedule), row.virtual_stages);
      REQUIRE(row.refused == "");
      kinds.insert(row.schedule);
      ParseInput with = input;
      with.overrides.insert(with.overrides.end(), row.settings.begin(), row.settings.end());
      const ParsedJob job = parse_job(with);
      REQUIRE(job.ok());
      CHECK(job.job.parallelism.schedule == row.schedule);
      CHECK(job.job.parallelism.virtual_stages == row.virtual_stages);
      CHECK(row.chosen == row.settings.empty());
      const DeviceModel device = device_named("h100", job.job, DeviceKind::cuda);
      const JobPlan plan = make_plan(job.job, device);
      const PipelinePicture picture = pipeline_picture(job.job, device);
      CHECK(row.total_bytes == plan.worst().total());
      CHECK(row.bubble_fraction ==
            Approx(picture.timeline.bubble_fraction).margin(test::tolerance::kFormula));
      CHECK(*row.pass_s == Approx(picture.timeline.makespan));
      CHECK(*row.fits);
      // 64 channels of bf16 or f32 for 32 tokens: each message.
      const PipelinePlan pipeline = plan_pipeline(job.job, 0);
      CHECK(row.sent_bytes == double(*std::max_element(pipeline.sends.begin(), pipeline.sends.end())) * 64 *
                                  32 * double(size_of(job.job.compute)));
      CHECK(!row.overlaps.empty());
      fastest = std::min(fastest, row.relative_time);
    }
    CHECK(kinds.size() == parallel::schedules().size());
    CHECK(fastest == 1);
    CHECK(row_of(table, Schedule::one_f_one_b).chosen);
    const ScheduleRow& alternating = row_of(table, Schedule::one_f_one_b);
    const ScheduleRow& v = row_of(table, Schedule::zb_v);
    CHECK(v.sent_bytes > alternating.sent_bytes);  // tensors pass each edge twice
    const ScheduleRow& merged = row_of(table, kMergedSchedule, 1);
    CHECK(merged.activation_bytes > alternating.activation_bytes);
    CHECK(merged.sent_bytes == alternating.sent_bytes);
    if (std::string(recompute) == "none") {
      CHECK(v.bubble_fraction < alternating.bubble_fraction);
      CHECK(row_of(table, Schedule::gpipe).activation_bytes > 2 * alternating.activation_bytes);
    } else {
      CHECK(v.overlaps.find("computed again") != std::string::npos);
    }
  }
}

TEST_CASE("over a slow link merged-1f1b takes less time than 1f1b, for more memory") {
  const ParseInput input = table_job({"parallelism.stage_layers=[4,3,3,2]"});
  const ParsedJob parsed = parse_job(input);
  REQUIRE(parsed.ok());
  DeviceModel device = device_named("h100", parsed.job, DeviceKind::cuda);
  device.cluster.reset();
  device.flops_per_s = 1e9;
  device.link_bytes_per_s = 1e6;
  const ScheduleTable table = schedule_table(input, parsed.job, device, 1.0);
  CHECK(table.with_transfers);
  const ScheduleRow& alternating = row_of(table, Schedule::one_f_one_b);
  const ScheduleRow& merged = row_of(table, kMergedSchedule, 1);
  CHECK(merged.relative_time < 0.95 * alternating.relative_time);
  CHECK(merged.bubble_fraction < alternating.bubble_fraction);
  CHECK(merged.total_bytes > alternating.total_bytes);
}

TEST_CASE("a long step's row of the table is extrapolated to what it would be") {
  // 2^17 micro-batches times virtual stages are simulated at most; so this one is not.
  const ScheduleTable longer =
      table_of(table_job({"batch.global_sequences=32770", "parallelism.pipeline=2"}));
  const ScheduleTable shorter =
      table_of(table_job({"batch.global_sequences=16386", "parallelism.pipeline=2"}));
  const ScheduleTable even = table_of(table_job({"batch.global_sequences=65538", "parallelism.pipeline=2"}));
  for (size_t i = 0; i < longer.rows.size(); ++i) {
    if (!longer.rows[i].refused.empty()) continue;
    CAPTURE(i);
    // The time of a step is a line over the micro-batches.
    const double step = *longer.rows[i].pass_s - *shorter.rows[i].pass_s;
    CHECK(*even.rows[i].pass_s == Approx(*longer.rows[i].pass_s + 2 * step).epsilon(test::tolerance::kShare));
  }
}

TEST_CASE("what a job cannot have is named with the reason") {
  const ScheduleTable table = table_of(table_job({"batch.global_sequences=6"}));
  CHECK(row_of(table, Schedule::dualpipev).refused ==
        "E0304 the pipeline cannot be scheduled: micro_batches = 6 is fewer than 2 * stages = 8, which the "
        "schedule dualpipev needs; use at least 8");
  CHECK(row_of(table, Schedule::interleaved).refused ==
        "E0304 the pipeline cannot be scheduled: micro_batches = 6 is not divisible by stages = 4, which the "
        "schedule interleaved needs; use 4 or 8");
  CHECK(row_of(table, kMergedSchedule, 1).refused == "");
  CHECK(row_of(table, kMergedSchedule, 2).refused ==
        "E0304 the pipeline cannot be scheduled: micro_batches = 6 is not divisible by stages = 4, which the "
        "schedule merged-1f1b needs with several virtual stages; use 4 or 8");
  CHECK(row_of(table, Schedule::zb_v).refused == "");
  const std::string text = render_schedules(table);
  CHECK(text.find("dualpipev x 2    not possible: E0304") != std::string::npos);
  CHECK(text.find("* 1f1b ") != std::string::npos);

  const ScheduleTable few = table_of(table_job({"model.num_layers=5"}));
  for (const Schedule schedule : {Schedule::interleaved, Schedule::zb_v, Schedule::dualpipev})
    CHECK(row_of(few, schedule).refused == "E0303 5 layers cannot fill 8 virtual stages");
  CHECK(row_of(few, Schedule::zb_h1).refused == "");

  const ScheduleTable alone = table_of(table_job({"parallelism.pipeline=1"}));
  for (const Schedule schedule : {Schedule::interleaved, Schedule::zb_v, Schedule::dualpipev})
    CHECK(row_of(alone, schedule).refused == "E0304 virtual stages need a pipeline of at least two stages");
}

TEST_CASE("a cut of layers that the spec gives is for its own virtual stages alone") {
  const ScheduleTable table = table_of(table_job({"parallelism.stage_layers=[4,4,3,1]"}));
  CHECK(row_of(table, Schedule::zb_h1).settings ==
        std::vector<std::string>{"parallelism.pipeline_schedule=zb-h1"});
  CHECK(row_of(table, Schedule::zb_v).settings ==
        std::vector<std::string>{"parallelism.pipeline_schedule=zb-v", "parallelism.virtual_stages=2",
                                 "parallelism.stage_layers=auto"});
  CHECK(row_of(table, Schedule::zb_v).refused == "");
}
