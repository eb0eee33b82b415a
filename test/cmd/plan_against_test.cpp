// Goal: a plan is compared with a run, corrects the cluster file, and says what keeps it from that; a
// machine is measured into a cluster file that plans can use. Method: run_program in this process, on a
// folder that holds what three steps of a run left; a quick measurement.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "runtime/base/json.h"
#include "runtime/predict/cluster.h"
#include "test/cmd/program_run.h"
#include "test/support/json_schema.h"

using namespace trainctl;
using test::Outcome;
using test::run;
using test::TemporaryFolder;

namespace {

const std::string kJob =
    R"({"version":1,"model":{"preset":"gpt2-tiny"},"data":{"train":[{"path":"a.idx"}]},
"schedule":{"total_steps":10},"device":"cpu"})";

/// A line of metrics.jsonl with these seconds.
std::string step_line(int step, double step_s, double forward_s, double backward_s, double optimizer_s) {
  return fmt::format(
      R"({{"v": 1, "step": {}, "loss": 5, "grad_norm": 1, "lr": 0.001, "tokens": {}, "step_s": {}, )"
      R"("phases": {{"forward_s": {}, "backward_s": {}, "communication_s": 0, "optimizer_s": {}, )"
      R"("data_s": 0, "reporting_s": 0, "evaluation_s": 0, "checkpoint_s": 0}}}})"
      "\n",
      step, 100 * step, step_s, forward_s, backward_s, optimizer_s);
}

/// The folder of a run that did three steps of kJob.
void write_run_of_steps(const std::string& folder) {
  FileSystem& fs = real_file_system();
  fs.make_directories(folder);
  fs.write_new_text(folder + "/job.json", kJob);
  fs.write_new_text(
      folder + "/run.json",
      R"({"v": 1, "run_id": "steps", "spec_hash": "", "program_version": "0.1.0", "numerics": "cpu v3",
                        "working_directory": "", "created": 0, "command": []})");
  std::string lines;
  // So slow that this machine is predicted to be faster, however busy it is.
  for (int step = 1; step <= 3; ++step) lines += step_line(step, 20, 5, 10, 4);
  fs.write_new_text(folder + "/metrics.jsonl", lines);
}

}  // namespace

TEST_CASE("a plan against a run names what keeps it from a comparison", "[cmd]") {
  const TemporaryFolder folder;
  write_run_of_steps(folder / "run");
  const std::string job = folder / "job.json";
  real_file_system().write_new_text(job, kJob);
  const auto refused = [&](std::vector<std::string> words, const char* sentence) {
    const Outcome outcome = run(std::move(words));
    CHECK(outcome.status != 0);
    CHECK_THAT(outcome.err, Catch::Contains(sentence));
  };
  const Outcome same = run({"plan", job, "--against", folder / "run"});
  CAPTURE(same.err);
  CHECK(same.status == 0);
  CHECK_THAT(same.out, Catch::Contains("predicted    measured") && Catch::Contains("a step took 20 s") &&
                           Catch::Contains("correct    device.product_share"));
  refused({"plan", job, "--against", folder / "run", "-s", "batch.micro_sequences=2", "-s",
           "batch.global_sequences=8"},
          "is of another job: batch.global_sequences = ");
  refused({"plan", "--against", folder / "run", "-s", "schedule.lr=1"}, "none is given");
  refused({"plan", "--against", folder / "none"}, "is not a run");
  refused({"plan"}, "JOB is missing");
  refused({"plan", job, "-o", folder / "a.json"}, "-o is for");
  refused({"plan", "--against", folder / "run", "--device", "h100"}, "cpu");
  refused({"doctor", "--measure"}, "-o cluster.json");
  refused({"doctor", "-o", folder / "a.json"}, "-o is for --measure");
  real_file_system().replace_text(folder / "run/metrics.jsonl", "{\"v\": 1, \"step\": 1, \"loss\": 5}\n");
  refused({"plan", "--against", folder / "run"}, "has recorded no step with the times of its ranks");
}

TEST_CASE("a run corrects a cluster file, which plans can use", "[cmd]") {
  const TemporaryFolder folder;
  write_run_of_steps(folder / "run");
  const std::string known = "cpu-core";
  const Json first =
      Json::parse(run({"plan", "--against", folder / "run", "--cluster", known, "--json"}).out);
  const auto predicted = [&](size_t kind) {
    return first["instructions"][kind]["predicted_s"].get<double>();
  };
  // All but the waits, of which one rank has none, took a quarter longer.
  const double more = 1.25, spread = predicted(2), step = first["step"]["predicted_s"].get<double>() - spread;
  std::string lines;
  for (int i = 1; i <= 3; ++i)
    lines += step_line(i, more * step, more * predicted(0), more * predicted(1), more * predicted(3));
  real_file_system().replace_text(folder / "run/metrics.jsonl", lines);
  const Outcome outcome = run(
      {"plan", "--against", folder / "run", "--cluster", known, "-o", folder / "corrected.json", "--json"});
  INFO(outcome.err);
  CHECK(test::result_error(outcome.out, "against") == "");
  const predict::ClusterModel corrected =
      predict::parse_cluster(real_file_system().read_text(folder / "corrected.json"), "corrected.json");
  CHECK_THAT(corrected.device_source, Catch::Contains("corrected by run steps, 20"));
  const Outcome again =
      run({"plan", "--against", folder / "run", "--cluster", folder / "corrected.json", "--json"});
  INFO(again.err);
  const Json kinds = Json::parse(again.out)["instructions"];
  const auto seconds = [&](const char* number) {
    return kinds[0][number].get<double>() + kinds[1][number].get<double>() + kinds[3][number].get<double>();
  };
  CHECK(seconds("predicted_s") == Approx(seconds("measured_s")).epsilon(0.01));
}

TEST_CASE("what a trace tells apart is compared, too", "[cmd]") {
  const TemporaryFolder folder;
  write_run_of_steps(folder / "run");
  real_file_system().make_directories(folder / "run/trace");
  const auto traced = [&](int epoch) {
    real_file_system().replace_text(folder / "run/trace/last.json", fmt::format(R"({{"v": 1, "kind": "trace",
        "epoch": {}, "first_step": 2, "last_step": 3, "actions": [{{"action": "backward_weight", "compute_ms": 40}}],
        "communication": [{{"peers": "tensor", "wait_ms": 7}}]}})",
                                                                                epoch));
    const Outcome outcome = run({"plan", "--against", folder / "run", "--json"});
    INFO(outcome.err);
    CHECK(test::result_error(outcome.out, "against") == "");
    return Json::parse(outcome.out)["traced"];
  };
  const Json parts = traced(0);
  REQUIRE(parts.size() == 2);
  CHECK(parts[0]["name"].text() == "backward, weights");
  CHECK(parts[0]["measured_s"].get<double>() == 0.04);
  CHECK(parts[0]["predicted_s"].get<double>() > 0);
  CHECK(parts[1]["name"].text() == "tensor");
  CHECK(parts[1]["measured_s"].get<double>() == 0.007);
  CHECK(traced(3).empty());  // of another attempt
}

TEST_CASE("a machine is measured into a cluster file that plans can use", "[cmd]") {
  const TemporaryFolder folder;
  const Outcome outcome = run({"doctor", "--measure", "--quick", "-o", folder / "measured.json", "--json"});
  INFO(outcome.err);
  CHECK(test::result_error(outcome.out, "measured") == "");
  CHECK_THAT(outcome.err, Catch::Contains("measuring the ops of a step in bf16"));
  const predict::ClusterModel measured =
      predict::parse_cluster(real_file_system().read_text(folder / "measured.json"), "measured.json");
  CHECK(measured.device.ops.size() > 5);
  CHECK_THAT(measured.device_source, Catch::Contains("measured here 20"));
  real_file_system().write_new_text(folder / "job.json", kJob);
  const Outcome plan =
      run({"plan", folder / "job.json", "--no-data", "--cluster", folder / "measured.json", "--json"});
  INFO(plan.err);
  CHECK(test::result_error(plan.out, "plan") == "");
  CHECK(Json::parse(plan.out)["time"]["predicted"]["cluster"].text() == measured.name);
}
