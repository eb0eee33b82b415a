// Goal: the speed that a run reports is its speed on the wall: a step's time contains what happens between steps, its phases stay within it.
// Method: whole runs on rank threads whose report of a step takes a while; only lower bounds of times are asserted.
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <thread>

#include "runtime/base/json.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("a step's time runs from step end to step end", "[step_time]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.data.val = job.data.train;
  job.eval.every_steps = 2;
  job.checkpoint.every_steps = 2;
  const double report_s = 0.03;
  const ThreadRun run = run_on_threads(
      job, {.dir = dir.path(), .max_steps = 4, .on_report = [&] { std::this_thread::sleep_for(std::chrono::duration<double>(report_s)); }});
  REQUIRE(run.lines.size() == 4);
  for (size_t i = 0; i < run.lines.size(); ++i) {
    const auto j = Json::parse(run.lines[i]);
    const double step_s = j["step_s"], reporting_s = j["phases"]["reporting_s"];
    CAPTURE(run.lines[i]);
    if (i == 0) CHECK(reporting_s == 0);
    else CHECK(reporting_s >= report_s);
    CHECK(step_s >= reporting_s);
    const double unix_s = j["t"];
    CHECK(unix_s == std::round(unix_s * 1e3) / 1e3);  // no finer than milliseconds
    CHECK(j["tokens_per_s"].get<double>() == Approx(double(job.tokens_per_step()) / step_s));
    double sum = 0;
    for (const char* phase : {"forward_s", "backward_s", "communication_s", "optimizer_s", "data_s", "reporting_s"})
      sum += j["phases"][phase].get<double>();
    CHECK(sum <= step_s + tolerance::kClockTextS);
  }
}

TEST_CASE("each step has its speed, and the last one is evaluated", "[step_time]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.data.val = job.data.train;
  job.eval.every_steps = 2;
  job.schedule.total_steps = 5;
  job.observability.log_every_steps = 4;
  job.observability.rank_metrics_every_steps = 0;
  const ThreadRun run = run_on_threads(job, {.dir = dir.path(), .max_steps = 5});
  REQUIRE(run.lines.size() == 5);
  for (int64_t step = 1; step <= 5; ++step) {
    const auto j = Json::parse(run.lines[size_t(step - 1)]);
    CAPTURE(step, run.lines[size_t(step - 1)]);
    CHECK(j["step_s"].get<double>() > 0);
    CHECK(j["tokens_per_s"].get<double>() > 0);
    CHECK(j.contains("ranks") == (step == 1 || step >= 4));
    CHECK(j.contains("val_loss") == (step == 2 || step >= 4));
  }
}
