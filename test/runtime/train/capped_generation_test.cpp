// Goal: a model whose experts drop what is over their capacity continues texts from a cache of keys, also where
// a micro-batch has exactly as many rows at experts as tokens. Method: such a model after two steps: two tokens
// read one by one and at once, and texts beyond the window.
#include <catch2/catch.hpp>
#include <cmath>

#include "ckpt/checkpoint.h"
#include "kernels/backend.h"
#include "runtime/base/file_system.h"
#include "runtime/train/generate/generate.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("a cache of keys serves experts that have a capacity", "[checkpoint]") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::llama, dir.path());
  job.model.moe = {.num_experts = 8, .top_k = 2, .expert_ffn_size = 12, .aux_loss_coefficient = 0};
  job.model.moe.capacity_factor = 0.5;
  const ThreadRun run = run_on_threads(job, {.dir = dir.path() + "/run", .max_steps = 2});
  const auto checkpoint = ckpt::Checkpoint::open(real_file_system(), run.checkpoint);
  const auto backend = kernels::make_cpu_backend(1);
  Generator generator(job, *checkpoint, *backend);
  const std::vector<int32_t> tokens = {5, 17, 3, 60, 41, 8};
  // So few that no expert drops any: one by one, and both at once.
  const std::span<const int32_t> two = std::span(tokens).first(2);
  generator.next_logits(two.first(1));
  const std::vector<float> one_by_one = generator.next_logits(two);
  Generator fresh(job, *checkpoint, *backend);
  const std::vector<float> at_once = fresh.next_logits(two);
  REQUIRE(one_by_one.size() == at_once.size());
  for (size_t i = 0; i < at_once.size(); ++i)
    CHECK(std::abs(double(one_by_one[i]) - double(at_once[i])) < tolerance::kCachedLogits);
  for (const float logit : generator.next_logits(tokens)) REQUIRE(std::isfinite(logit));
  const auto texts =
      generator.generate({tokens, {9}}, {.tokens = 12, .temperature = 0}, [](size_t, int32_t) {});
  CHECK(texts[0].size() == 12);
  CHECK(texts[1].size() == 12);
}
