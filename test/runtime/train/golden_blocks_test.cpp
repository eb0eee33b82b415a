// Goal: each family computes what Hugging Face's transformers compute in float64.
// Method: a tiny model of each (test/golden/blocks, made by test/golden/make_blocks.py, and with modules of
// multi-token prediction by make_mtp.py), read from its own
// config.json: logits of the first sample, as `export` computes them, and with a cache of keys, as `sample`
// does; likelihoods of the endings of test/golden/tasks (make_tasks.py), several in one sequence here and
// each alone there; on thread ranks loss and gradient norm of 12 AdamW steps, and gradients of step 0 per
// tensor, on one rank by the reference and by the CPU's kernels, on TP2 PP2 DP2, and on TP4 PP2.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "ckpt/checkpoint.h"
#include "runtime/base/json.h"
#include "runtime/exchange/model_config.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/train/generate/evaluate.h"
#include "test/support/cached_generation.h"
#include "test/support/golden.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

const std::string kBlocks = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/blocks";

Json json_at(const std::string& file) { return Json::parse(std::ifstream(kBlocks + "/" + file)); }

/// The model that a config.json describes.
ModelSpec model_of(const std::string& name, const char* file) {
  return read_model_config(json_at(name + "/" + file), name).model;
}

JobSpec block_job(const std::string& name) {
  const std::string dir = kBlocks + "/" + name;
  JobSpec job = golden_training(dir, json_at("train.json"));
  job.model = model_of(name, "config.json");
  job.model.init.from = dir + "/weights.safetensors";
  if (job.model.moe.selection_bias)
    job.model.moe.bias_update_rate = json_at("train.json")["bias_update_rate"];
  return job;
}

/// The largest differences of a run from transformers.
struct BlockDifference {
  double loss = 0;       ///< of all steps, also of modules of multi-token prediction
  double grad_norm = 0;  ///< of all steps, relative
  WorstTensor gradient;  ///< of step 0; none where the file keeps them transposed
};

struct BlockMesh {
  int tp = 1, pp = 1, dp = 1;
};

BlockDifference block_difference(const std::string& name, const BlockMesh& mesh, bool reference) {
  const TemporaryFolder dir;
  JobSpec job = block_job(name);
  job.parallelism.tensor = mesh.tp;
  job.parallelism.pipeline = mesh.pp;
  job.parallelism.data = mesh.dp;
  job.parallelism.lanes = 2;
  const ThreadRun run = run_on_threads(
      job, {.dir = dir.path(), .gradients_dir = dir.path() + "/gradients", .reference_backend = reference});
  const Json curve = json_at(name + "/curve.json");
  REQUIRE(run.losses.size() == curve.size());
  BlockDifference worst;
  for (size_t i = 0; i < curve.size(); ++i) {
    worst.loss = std::max(worst.loss, std::abs(run.losses[i] - curve[i]["loss"].get<double>()));
    worst.grad_norm =
        std::max(worst.grad_norm, std::abs(run.grad_norms[i] / curve[i]["grad_norm"].get<double>() - 1));
    for (size_t d = 0; curve[i].contains("mtp_losses") && d < curve[i]["mtp_losses"].size(); ++d)
      worst.loss = std::max(worst.loss, std::abs(parse_json(run.lines[i])["mtp_losses"][d].get<double>() -
                                                 curve[i]["mtp_losses"][d].get<double>()));
  }
  if (name != "gpt2")  // golden_test.cpp has its gradients
    worst.gradient = compare_with_golden(ckpt::step_directory(dir.path() + "/gradients", 0),
                                         ckpt::Role::gradient, kBlocks + "/" + name + "/grads.safetensors");
  return worst;
}

void check_block(const std::string& name, const BlockMesh& mesh, bool reference) {
  CAPTURE(name, mesh.tp, mesh.pp, mesh.dp, reference);
  const BlockDifference worst = block_difference(name, mesh, reference);
  CHECK(worst.loss < tolerance::kBlockLoss);
  CHECK(worst.grad_norm < tolerance::kBlockGradNorm);
  INFO("worst gradient: " << worst.gradient.name << " " << worst.gradient.relative);
  CHECK(worst.gradient.compared == worst.gradient.expected);
  CHECK(worst.gradient.relative < tolerance::kBlockGradient);
}

/// The tokens of the first sample.
std::vector<int32_t> first_sample(const std::string& name, const JobSpec& job) {
  std::vector<uint16_t> stored(static_cast<size_t>(job.data.seq_len));
  std::ifstream(kBlocks + "/" + name + "/tokens.bin", std::ios::binary)
      .read(reinterpret_cast<char*>(stored.data()), int64_t(stored.size()) * 2);
  return {stored.begin(), stored.end()};
}

/// Largest difference of the logits of the first sample, and the largest of them.
struct LogitDifference {
  double largest = 0, scale = 0;
};
LogitDifference logit_difference(const std::string& name) {
  const std::string dir = kBlocks + "/" + name;
  const JobSpec job = block_job(name);
  const std::vector<int32_t> tokens = first_sample(name, job);
  const auto backend = kernels::make_cpu_backend(1);
  FileSystem& fs = real_file_system();
  const auto weights = ckpt::TensorFolder::open(fs, job.model.init.from);
  const std::vector<float> ours = Generator(job, *weights, *backend).logits(tokens),
                           theirs = ckpt::TensorFolder::open(fs, dir + "/logits.safetensors")->read_f32("logits");
  REQUIRE(ours.size() == theirs.size());
  LogitDifference difference;
  for (size_t i = 0; i < ours.size(); ++i) {
    difference.largest = std::max(difference.largest, std::abs(double(ours[i]) - double(theirs[i])));
    difference.scale = std::max(difference.scale, std::abs(double(theirs[i])));
  }
  return difference;
}

std::vector<std::string> blocks() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kBlocks))
    if (entry.is_directory()) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("files of transformers 4 and 5 describe the same model", "[golden]") {
  for (const std::string& name : blocks()) {
    if (name == "gpt2") continue;  // it has one form
    CAPTURE(name);
    CHECK(spec::model_values(model_of(name, "config.json")) ==
          spec::model_values(model_of(name, "config_v4.json")));
  }
}

TEST_CASE("each family's curve and gradients on one rank", "[golden]") {
  REQUIRE(blocks().size() == 18);
  for (const std::string& name : blocks()) {
    check_block(name, {}, true);
    check_block(name, {}, false);
  }
}

TEST_CASE("each family's logits", "[golden]") {
  for (const std::string& name : blocks()) {
    const LogitDifference difference = logit_difference(name);
    CAPTURE(name, difference.largest, difference.scale);
    CHECK(difference.largest < tolerance::kBlockLogits * difference.scale);
  }
}

TEST_CASE("endings of tasks are as likely as a scorer in Python says", "[golden]") {
  const std::string folder = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/tasks";
  FileSystem& fs = real_file_system();
  const TaskFile file = read_task_file(fs, folder + "/tasks.bin", nullptr, 64, 0);
  REQUIRE(file.examples.size() == 40);
  const Json expected = Json::parse(std::ifstream(folder + "/likelihoods.json"));
  for (const std::string name : {"gemma2", "olmo3", "qwen3"}) {
    CAPTURE(name);
    const JobSpec job = block_job(name);
    const auto backend = kernels::make_cpu_backend(1);
    const auto weights = ckpt::TensorFolder::open(fs, job.model.init.from);
    Generator generator(job, *weights, *backend);
    const TaskLikelihoods ours = task_likelihoods(generator, file, std::nullopt);
    CHECK(ours.cut > 0);
    size_t next = 0;
    for (size_t i = 0; i < file.examples.size(); ++i) {
      const size_t endings = file.examples[i].endings.size();
      for (size_t e = 0; e < endings; ++e)
        CHECK(std::abs(ours.of_endings[next + e].log / expected[name]["sums"][i][e].get<double>() - 1) <
              tolerance::kBlockLogits);
      next += endings;
    }
    const auto [right_by_mean, right_by_sum] = right_endings(file, ours.of_endings);
    CHECK(right_by_sum == expected[name]["right_by_sum"].get<int64_t>());
    CHECK(right_by_mean == expected[name]["right_by_mean"].get<int64_t>());
  }
}

TEST_CASE("a cache of keys gives the logits of the whole window", "[golden]") {
  const auto cpu = kernels::make_cpu_backend(2), reference = kernels::make_reference_backend();
  for (const std::string& name : blocks())
    for (kernels::Backend* backend : {cpu.get(), reference.get()}) {
      CAPTURE(name, backend->name());
      const JobSpec job = block_job(name);
      const auto weights = ckpt::TensorFolder::open(real_file_system(), job.model.init.from);
      Generator generator(job, *weights, *backend);
      check_cached(generator, first_sample(name, job), size_t(job.model.vocab_size));
    }
}

TEST_CASE("the likeliest tokens are those of the whole window, also beyond seq_len", "[golden]") {
  const auto backend = kernels::make_cpu_backend(1);
  for (const std::string& name : blocks()) {
    CAPTURE(name);
    const JobSpec job = block_job(name);
    const auto weights = ckpt::TensorFolder::open(real_file_system(), job.model.init.from);
    Generator generator(job, *weights, *backend);
    std::vector<int32_t> tokens = first_sample(name, job);
    tokens.resize(tokens.size() / 2);
    const GenerateOptions options{.tokens = job.data.seq_len, .temperature = 0};
    const std::vector<int32_t> generated = generator.generate({tokens}, options, [](size_t, int32_t) {})[0];
    CHECK(generated == likeliest_tokens(generator, tokens, size_t(job.model.vocab_size), options.tokens));
    Generator in_passes(job, *weights, *backend, 5);
    CHECK(in_passes.generate({tokens, {1}}, options, [](size_t, int32_t) {})[0] == generated);
  }
}

TEST_CASE("prompts that are continued together give the text that each gives alone", "[golden]") {
  const auto cpu = kernels::make_cpu_backend(2), reference = kernels::make_reference_backend();
  for (const std::string& name : blocks())
    for (kernels::Backend* backend : {cpu.get(), reference.get()}) {
      CAPTURE(name, backend->name());
      const JobSpec job = block_job(name);
      const auto weights = ckpt::TensorFolder::open(real_file_system(), job.model.init.from);
      Generator generator(job, *weights, *backend);
      const std::vector<int32_t> tokens = first_sample(name, job);
      // Of all lengths, together more than a sequence; some go on beyond it.
      std::vector<std::vector<int32_t>> prompts;
      for (const size_t length : {size_t(1), tokens.size(), size_t(3), tokens.size() / 2, size_t(2)})
        prompts.emplace_back(tokens.begin(), tokens.begin() + ptrdiff_t(length));
      GenerateOptions options{.tokens = 2 * job.data.seq_len / 3, .temperature = 0.7, .top_k = 5};
      const auto none = [](size_t, int32_t) {};
      options.stop_token = generator.generate({prompts[2]}, options, none)[0][2];  // one that comes
      std::vector<std::vector<int32_t>> alone;
      for (const std::vector<int32_t>& prompt : prompts)
        alone.push_back(generator.generate({prompt}, options, none)[0]);
      CHECK(alone[2].size() <= 2);
      CHECK(int64_t(alone[1].size()) <= options.tokens);
      std::vector<std::vector<int32_t>> reported(prompts.size());
      const auto together = generator.generate(
          prompts, options, [&](size_t prompt, int32_t token) { reported[prompt].push_back(token); });
      CHECK(together == alone);
      CHECK(reported == alone);
    }
}

TEST_CASE("each family's curve and gradients on TP4 PP2, two ranks for each KV head",
          "[golden][shared_heads]") {
  for (const std::string& name : blocks()) {
    if (block_job(name).model.is_latent()) continue;  // its experts are not cut in four
    if (name != "gpt2") CHECK(block_job(name).model.num_kv_heads == 2);
    check_block(name, {.tp = 4, .pp = 2}, false);
  }
}

TEST_CASE("each family's curve and gradients on TP2 PP2 DP2", "[golden]") {
  for (const std::string& name : blocks()) check_block(name, {2, 2, 2}, false);
}

// Of scripts/bench/results/families-transformers.md: test_train "the table of families"
TEST_CASE("the table of families", "[.][soak][table]") {
  std::cout << "| model | logits | loss | gradient norm | gradients | loss on TP2 PP2 DP2 | gradient norm "
               "| gradients |\n|---|---|---|---|---|---|---|---|\n";
  for (const std::string& name : blocks()) {
    const LogitDifference logits = logit_difference(name);
    std::cout << fmt::format("| {} | {:.1e}", name, logits.largest / logits.scale);
    for (const BlockMesh& mesh : {BlockMesh{}, BlockMesh{2, 2, 2}}) {
      const BlockDifference worst = block_difference(name, mesh, false);
      std::cout << fmt::format(" | {:.1e} | {:.1e} | ", worst.loss, worst.grad_norm)
                << (worst.gradient.compared > 0 ? fmt::format("{:.1e}", worst.gradient.relative) : "");
      CHECK(worst.gradient.compared == worst.gradient.expected);
    }
    std::cout << " |" << std::endl;
  }
}
