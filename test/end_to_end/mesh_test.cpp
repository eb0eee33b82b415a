// Goal: what holds on rank threads holds under mpirun, through the command line.
// Method: the golden cases with model.init.from on one rank and on TP2 PP2 DP2; one job with four lanes over several meshes, threads
// and precisions, whose losses and checkpoints are compared bit for bit with one rank's; a run whose mesh
// is chosen, killed and resumed, compared with one whose job has that mesh.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "runtime/base/json.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/golden.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"
#include "test/support/tolerances.h"

using trainctl::Json;
using namespace trainctl::test;

namespace {

double worst_loss(const std::string& run, const std::string& name) {
  const auto curve =
      Json::parse(std::ifstream(std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/" + name + "/curve.json"));
  const std::vector<double> losses = losses_of(run);
  REQUIRE(losses.size() == curve.size());
  double worst = 0;
  for (size_t i = 0; i < losses.size(); ++i) worst = std::max(worst, std::abs(losses[i] - curve[i]["loss"].get<double>()));
  return worst;
}

}  // namespace

TEST_CASE("golden curves through the command line", "[mesh]") {
  for (const std::string name : {"gpt2-tiny", "llama-tiny"}) {
    const TemporaryFolder dir;
    write_file(dir.path() + "/job.json", golden_spec(name));
    const std::vector<std::string> one = {"launch", "job.json", "-s", "name=one", "-s", "parallelism.world_size=1",
                                          "-s", "observability.save_gradients=true"};
    const std::vector<std::string> eight = {"launch", "job.json", "-s", "name=eight", "-s", "parallelism.world_size=8",
                                            "-s", "parallelism.tensor=2", "-s", "parallelism.pipeline=2",
                                            "-s", "observability.save_gradients=true"};
    for (const auto& [run, arguments] : {std::pair{"one", one}, std::pair{"eight", eight}}) {
      CAPTURE(name, run);
      const Outcome o = run_trainctl(dir.path(), arguments);
      INFO(o.err);
      REQUIRE(o.status == 0);
      CHECK(worst_loss(run_of(dir.path(), run), name) < tolerance::kLossF32);
      const WorstTensor gradient =
          compare_with_golden(trainctl::ckpt::step_directory(run_of(dir.path(), run) + "/gradients", 0), trainctl::ckpt::Role::gradient,
                              std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/" + name + "/grads.safetensors");
      CHECK(gradient.compared == gradient.expected);
      CHECK(gradient.relative < tolerance::kGradient);
    }
    std::vector<std::string> rounded = eight;
    rounded[3] = "name=bf16";
    rounded.insert(rounded.end(), {"-s", "precision.compute=bf16"});
    const Outcome o = run_trainctl(dir.path(), rounded);
    INFO(o.err);
    REQUIRE(o.status == 0);
    CHECK(worst_loss(run_of(dir.path(), "bf16"), name) < tolerance::kLossBf16);
  }
}

TEST_CASE("the same bits under mpirun on every mesh", "[mesh]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("tiny"));
  const auto launch = [&](const std::string& name, std::vector<std::string> sets) {
    std::vector<std::string> arguments = {"launch", "job.json", "-s", "name=" + name};
    for (const std::string& s : sets) arguments.insert(arguments.end(), {"-s", s});
    const Outcome o = run_trainctl(dir.path(), arguments);
    INFO(o.err);
    REQUIRE(o.status == 0);
    return run_of(dir.path(), name);
  };
  for (const std::string precision : {"precision.compute=f32", "precision.compute=bf16"}) {
    const std::string suffix = precision.substr(18);
    const std::string plain = launch("plain" + suffix, {precision, "parallelism.data=1", "parallelism.pipeline=1"});
    CHECK_THAT(read_file(plain + "/trainctl.prom"), Catch::Contains("state=\"finished\"} 1"));
    const std::vector<std::vector<std::string>> variants = {
        {"parallelism.data=4", "parallelism.pipeline=2", "parallelism.zero_stage=1",
         "memory.activation_recompute=1"},
        {"parallelism.data=2", "parallelism.pipeline=4", "parallelism.pipeline_schedule=zb-h1",
         "parallelism.bucket_mib=0.02", "parallelism.stage_layers=[0,1,3,0]", "parallelism.zero_stage=3"},
        {"parallelism.data=2", "parallelism.pipeline=2", "parallelism.pipeline_schedule=interleaved",
         "parallelism.virtual_stages=2", "parallelism.zero_stage=0"},
        {"parallelism.data=2", "parallelism.pipeline=2", "parallelism.pipeline_schedule=zb-v",
         "parallelism.virtual_stages=2", "parallelism.zero_stage=2"},
        {"parallelism.data=3", "parallelism.pipeline=2"},
        {"parallelism.data=1", "parallelism.pipeline=3", "parallelism.pipeline_schedule=gpipe",
         "memory.activation_recompute=full", "parallelism.threads_per_rank=2"}};
    for (size_t v = 0; v < variants.size(); ++v) {
      std::vector<std::string> sets = variants[v];
      sets.push_back(precision);
      const std::string run = launch("v" + std::to_string(v) + suffix, sets);
      CAPTURE(v, suffix);
      CHECK(losses_of(run) == losses_of(plain));
      const Outcome diff = run_trainctl(dir.path(), {"inspect-ckpt", run, "--diff", plain});
      INFO(diff.out);
      CHECK(diff.status == 0);
      CHECK_THAT(diff.out, Catch::Contains("identical"));
    }
  }
}

TEST_CASE("a mesh that is left to the program is chosen once, and gives the same bits", "[mesh]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("tiny"));
  const auto launch = [&](const std::string& id, std::vector<std::string> sets) {
    std::vector<std::string> arguments = {"launch", "job.json", "-s", "observability.run_id=" + id};
    for (const std::string& s : sets) arguments.insert(arguments.end(), {"-s", s});
    const Outcome o = run_trainctl(dir.path(), arguments);
    INFO(o.err);
    REQUIRE(o.status == 0);
    return o.err;
  };
  launch("plain", {"parallelism.data=1", "parallelism.pipeline=1"});
  // A width of tensor parallelism that is given stays; another one has other bits.
  const std::vector<std::string> open = {"parallelism=auto", "parallelism.world_size=2",
                                         "parallelism.tensor=1", "parallelism.lanes=4"};
  CHECK_THAT(launch("chosen", open), Catch::Contains("mesh        2 ranks = "));
  const std::string run = dir.path() + "/runs/chosen";
  CHECK(losses_of(run) == losses_of(dir.path() + "/runs/plain"));
  const Json job = Json::parse(read_file(run + "/job.json"));
  CHECK_FALSE(job["parallelism"].contains("mesh"));
  CHECK(job["parallelism"]["world_size"] == 2);
  const std::string again = launch("chosen", open);
  CHECK_THAT(again, Catch::Contains("exists with the same job"));
  CHECK_THAT(again, !Catch::Contains(" choices"));
}

TEST_CASE("a run whose mesh was chosen goes on after a kill as one whose mesh is written out", "[mesh]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("tiny"));
  const std::string run = dir.path() + "/runs/chosen";
  const std::vector<std::string> words = {trainctl_path(),
                                          "launch",
                                          "job.json",
                                          "-s",
                                          "parallelism=auto",
                                          "-s",
                                          "parallelism.world_size=4",
                                          "-s",
                                          "observability.run_id=chosen",
                                          "-s",
                                          "fault_tolerance.max_restarts=0"};
  Child child(words, dir.path(), {stop_variable({{.rank = 0, .step = 10}})});
  const std::vector<pid_t> ranks = await_stopped_rank(child, run, 4, 0);
  REQUIRE(::kill(ranks[1], SIGKILL) == 0);
  const Outcome killed = child.wait(120);
  INFO(killed.err);
  CHECK(killed.status != 0);
  for (const char* text : {"mesh        4 ranks = ", "next best: ", "bits: those of tensor "})
    CHECK_THAT(killed.err, Catch::Contains(text));
  const Json spec = Json::parse(read_file(run + "/job.json"));
  CHECK_FALSE(spec["parallelism"].contains("mesh"));
  CHECK(spec["parallelism"]["world_size"] == 4);

  // The run has the choice: a resume does not search.
  const Outcome resumed = run_trainctl(dir.path(), {"resume", run});
  INFO(resumed.err);
  REQUIRE(resumed.status == 0);
  CHECK_THAT(resumed.err, !Catch::Contains(" choices"));
  CHECK(Json::parse(read_file(run + "/job.json"))["parallelism"] == spec["parallelism"]);

  write_file(dir.path() + "/written.json", spec.dump());
  const Outcome written =
      run_trainctl(dir.path(), {"launch", "written.json", "-s", "observability.run_id=written"});
  INFO(written.err);
  REQUIRE(written.status == 0);
  const std::string whole = dir.path() + "/runs/written";
  CHECK(losses_of(run) == losses_of(whole));
  const Outcome diff = run_trainctl(dir.path(), {"inspect-ckpt", run, "--diff", whole});
  INFO(diff.out << diff.err);
  CHECK(diff.status == 0);
  CHECK_THAT(diff.out, Catch::Contains("identical"));
}
