// Goal: by muP a model's logits move equally far at every width; without it wider models move further.
// Method: the coordinate check of Tensor Programs V (arXiv:2203.03466): tiny models of widths 32 to 256 are
// trained for five steps with one learning rate, on few tokens; the slope of log(change of the logits) over
// log(width).
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "ckpt/checkpoint.h"
#include "runtime/base/file_system.h"
#include "runtime/train/generate/generate.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr int64_t kBaseWidth = 32;
constexpr int kWidths[] = {32, 64, 128, 256};
constexpr int32_t kFewTokens =
    5;  // few: what a step does for one token is not lost among what it does for others

/// A text that says 0 1 2 3 4 again and again.
void write_few_tokens(const std::string& path) {
  std::vector<uint16_t> tokens(4 * 1024);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = uint16_t(i % size_t(kFewTokens));
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), std::streamsize(tokens.size() * sizeof tokens[0]));
}

struct Checked {
  Family family = Family::llama;
  OptimizerType type = OptimizerType::adamw;
  parallel::MuonScale scale = parallel::MuonScale::match_rms;
  bool wider_heads = false;  ///< not more of them
  double lr = 5e-4;
};

std::vector<float> logits_of(const JobSpec& job, const std::string& dir, int64_t steps) {
  const ThreadRun run = run_on_threads(job, {.dir = dir, .max_steps = steps});
  const auto checkpoint = ckpt::Checkpoint::open(real_file_system(), run.checkpoint);
  const auto backend = kernels::make_cpu_backend(1);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 16; ++i) tokens.push_back(i % kFewTokens);
  return Generator(job, *checkpoint, *backend).logits(tokens);
}

/// The root of the mean square of what 5 steps change of the logits, for each width.
std::vector<double> changes(const Checked& c, bool mup) {
  std::vector<double> result;
  for (const int width : kWidths) {
    const TemporaryFolder dir;
    JobSpec job = tiny_job(c.family, dir.path());
    write_few_tokens(job.data.train.front().path);
    job.model.vocab_size = 8;
    job.model.hidden_size = width;
    job.model.num_layers = 2;
    job.model.ffn_size = 3 * width;
    job.model.num_heads = job.model.num_kv_heads = c.wider_heads ? 4 : width / 8;
    job.model.head_dim_given = width / job.model.num_heads;
    if (mup) job.model.mup = {.base_hidden_size = kBaseWidth, .base_head_dim = 8};
    job.optimizer.type = c.type;
    job.optimizer.muon.scale = c.scale;
    job.optimizer.grad_clip = 0;
    job.optimizer.weight_decay = 0;
    job.schedule = {.total_steps = 5, .lr = c.lr, .type = LrSchedule::constant};
    const std::vector<float> after = logits_of(job, dir.path() + "/after", 5);
    job.optimizer.lr_scale = {0, 0, 0, 0};
    const std::vector<float> before = logits_of(job, dir.path() + "/before", 1);
    double squares = 0;
    for (size_t i = 0; i < after.size(); ++i) squares += std::pow(double(after[i]) - double(before[i]), 2);
    result.push_back(std::sqrt(squares / double(after.size())));
  }
  return result;
}

/// Of the line through (log width, log value), by least squares.
double slope(const std::vector<double>& values) {
  const auto n = double(values.size());
  double x = 0, y = 0, xx = 0, xy = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double a = std::log(double(kWidths[i])), b = std::log(values[i]);
    x += a, y += b, xx += a * a, xy += a * b;
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

void check(const Checked& c, double least_growth) {
  const std::vector<double> with = changes(c, true), without = changes(c, false);
  CAPTURE(word_of(c.family), word_of(c.type), word_of(c.scale), c.wider_heads, with, without);
  CHECK(std::abs(slope(with)) < tolerance::kCoordinateSlope);
  CHECK(slope(without) > least_growth);
}

}  // namespace

TEST_CASE("coordinate check: with AdamW logits move equally far at every width by muP", "[mup]") {
  check({.family = Family::llama}, 0.8);
  check({.family = Family::llama, .wider_heads = true}, 0.8);
  check({.family = Family::gpt2}, 0.8);
}

TEST_CASE("coordinate check: with other rules logits move equally far at every width by muP", "[mup]") {
  check({.type = OptimizerType::lion, .lr = 1.5e-4}, 0.8);
  check({.type = OptimizerType::muon, .lr = 1e-3}, 0.2);
  check({.type = OptimizerType::muon, .scale = parallel::MuonScale::spectral, .lr = 3e-3}, 0.2);
  check({.type = OptimizerType::sgd, .lr = 5e-3}, 0.2);
}
