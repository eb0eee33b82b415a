// Goal: a GPU that keeps the keys and values of what it has read gives the logits of the whole window.
// Method: models that between them have every kind of attention, token by token, several at once, with
// another end, and as a window that moves on; against the pass over all tokens.
#include <catch2/catch.hpp>

#include "ckpt/checkpoint.h"
#include "runtime/base/file_system.h"
#include "runtime/train/generate/generate.h"
#include "test/cuda_training/gpu_runs.h"
#include "test/support/cached_generation.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

void check_cached_on_gpu(const JobSpec& job, const std::string& dir) {
  const ThreadRun run = run_on_threads(job, {.dir = dir, .max_steps = 2});
  const auto checkpoint = ckpt::Checkpoint::open(real_file_system(), run.checkpoint);
  const auto backend = kernels::make_cuda_backend({});
  Generator generator(job, *checkpoint, *backend);
  const size_t v = size_t(job.model.vocab_size);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 16; ++i) tokens.push_back((7 * i + i * i) % int32_t(v));
  check_cached(generator, tokens, v);

  const GenerateOptions options{.tokens = 4, .temperature = 0};
  const std::vector<int32_t> shorter(tokens.begin(), tokens.begin() + 3);
  const auto generated = generator.generate({tokens, shorter}, options, [](size_t, int32_t) {});
  CHECK(generated[1] == generator.generate({shorter}, options, [](size_t, int32_t) {})[0]);
  CHECK(generated[0] == likeliest_tokens(generator, tokens, v, options.tokens));
}

}  // namespace

TEST_CASE("a cache of keys on a GPU gives the logits of the whole window", "[checkpoint]") {
  for (void (*describe)(ModelSpec&) :
       {+[](ModelSpec&) {}, describe_everything, describe_more_latent, describe_grouped_experts}) {
    prepare_devices(1, 1);
    const TemporaryFolder dir;
    JobSpec job = tiny_job(Family::llama, dir.path());
    describe(job.model);
    CAPTURE(job.model.layer.window, job.model.is_latent(), job.model.moe.num_experts);
    check_cached_on_gpu(job, dir.path());
  }
}
