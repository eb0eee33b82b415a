// Goal: the trainer computes what PyTorch computes in float64.
// Method: both golden cases, thread ranks, on one rank and on TP2 PP2 DP2: loss and gradient norm of every step, gradients of
// step 0 per tensor, parameters after the last step. test/golden/make_golden.py makes the cases.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "ckpt/checkpoint.h"
#include "runtime/base/json.h"
#include "test/support/golden.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

Json curve_of(const std::string& name) {
  return Json::parse(
      std::ifstream(std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/" + name + "/curve.json"));
}

void check_case(const std::string& name, int tp, int pp, int dp, bool reference) {
  CAPTURE(name, tp, pp, dp, reference);
  const TemporaryFolder dir;
  JobSpec job = golden_job(name);
  job.parallelism.tensor = tp;
  job.parallelism.pipeline = pp;
  job.parallelism.data = dp;
  job.parallelism.lanes = 2;
  const ThreadRun run = run_on_threads(
      job, {.dir = dir.path(), .gradients_dir = dir.path() + "/gradients", .reference_backend = reference});
  const auto curve = curve_of(name);
  REQUIRE(run.losses.size() == curve.size());
  double worst_loss = 0, worst_norm = 0;
  for (size_t i = 0; i < curve.size(); ++i) {
    worst_loss = std::max(worst_loss, std::abs(run.losses[i] - curve[i]["loss"].get<double>()));
    worst_norm = std::max(worst_norm, std::abs(run.grad_norms[i] / curve[i]["grad_norm"].get<double>() - 1));
  }
  CHECK(worst_loss < tolerance::kLossF32);
  CHECK(worst_norm < tolerance::kGradNorm);
  const std::string golden = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/" + name;
  const WorstTensor gradient = compare_with_golden(ckpt::step_directory(dir.path() + "/gradients", 0), ckpt::Role::gradient,
                                                   golden + "/grads.safetensors");
  INFO("worst gradient: " << gradient.name << " " << gradient.relative);
  CHECK(gradient.compared == gradient.expected);
  CHECK(gradient.relative < tolerance::kGradient);
  const WorstTensor final = compare_with_golden(run.checkpoint, ckpt::Role::master, golden + "/final.safetensors");
  INFO("worst parameter: " << final.name << " " << final.relative);
  CHECK(final.compared == final.expected);
  CHECK(final.relative < tolerance::kFinalParameter);
}

}  // namespace

TEST_CASE("golden curves in float32 on one rank", "[golden]") {
  for (const char* name : {"gpt2-tiny", "llama-tiny"}) {
    check_case(name, 1, 1, 1, true);
    check_case(name, 1, 1, 1, false);
  }
}

TEST_CASE("golden curves in float32 on TP2 PP2 DP2", "[golden]") {
  for (const char* name : {"gpt2-tiny", "llama-tiny"}) check_case(name, 2, 2, 2, false);
}
