// Goal: a GPU that keeps the keys and values of what it has read gives the logits of the whole window.
// Method: models that between them have every kind of attention, token by token, several at once, with
// another end, and as a window that moves on; against the pass over all tokens.
#include <catch2/catch.hpp>
#include <cmath>

#include "ckpt/checkpoint.h"
#include "runtime/base/file_system.h"
#include "runtime/train/generate/generate.h"
#include "test/cuda_training/gpu_runs.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"
#include "test/support/tolerances.h"

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
  const auto difference = [&](std::span<const int32_t> known, const std::vector<float>& whole) {
    const std::vector<float> next = generator.next_logits(known);
    REQUIRE(next.size() == v);
    double largest = 0;
    for (size_t i = 0; i < v; ++i)
      largest = std::max(largest, std::abs(double(next[i]) - double(whole[(known.size() - 1) * v + i])));
    return largest;
  };
  const std::vector<float> whole = generator.logits(tokens);
  for (const size_t chunk : {1, 5}) {
    generator.next_logits(std::vector<int32_t>{tokens[0] == 0});  // forgets what it has read
    for (size_t count = chunk; count <= tokens.size(); count += chunk)
      CHECK(difference(std::span(tokens).first(count), whole) < tolerance::kCachedLogits);
  }
  std::vector<int32_t> other = tokens;
  for (size_t i = tokens.size() / 2; i < tokens.size(); ++i) other[i] = (tokens[i] + 1) % int32_t(v);
  CHECK(difference(other, generator.logits(other)) < tolerance::kCachedLogits);

  std::vector<int32_t> text = tokens, expected;
  const GenerateOptions options{.tokens = 4, .temperature = 0};
  const std::vector<int32_t> shorter(tokens.begin(), tokens.begin() + 3);
  const auto generated = generator.generate({text, shorter}, options, [](size_t, int32_t) {});
  CHECK(generated[1] == generator.generate({shorter}, options, [](size_t, int32_t) {})[0]);
  for (int64_t i = 0; i < options.tokens; ++i) {
    const std::vector<float> logits = generator.logits(std::span(text).last(size_t(job.data.seq_len)));
    expected.push_back(pick_token(std::span(logits).last(v), options, 0));
    text.push_back(expected.back());
  }
  CHECK(generated[0] == expected);
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
