// Goal: the job that init proposes is valid, fits the machine, reads the token sets that are there, and can be
// launched from any folder; a mesh that does not fit is not proposed.
// Method: token sets and devices made by hand; every preset on small and large devices.
#include "runtime/supervise/preflight/starter.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "data/tokenize/tokenize.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/supervise/preflight/job_files.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using Catch::Matchers::Contains;
using trainctl::test::TemporaryFolder;

namespace {

FileSystem& fs = real_file_system();

/// A token set with bytes as its tokens, and one that validates it.
void make_tokens(const std::string& prefix, bool with_validation) {
  const std::string text = prefix + ".txt";
  fs.write_new_text(text, "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n");
  data::TokenizeOptions options;
  options.inputs = {text};
  options.out = prefix;
  options.tokenizer = data::TokenizerChoice::bytes();
  if (with_validation) options.train_share = 60, options.val_share = 40;
  data::tokenize(options);
}

StarterMachine gpus(int count, uint64_t memory_gib) {
  return {.gpus = count,
          .device = {.kind = DeviceKind::cuda,
                     .name = "some GPU",
                     .memory_bytes = memory_gib << 30,
                     .total_bytes = memory_gib << 30,
                     .flops_per_s = 1e15}};
}

ParsedJob parsed(const std::string& text, const std::string& file = "job.json") {
  return parse_job({.text = text, .file = file});
}

}  // namespace

TEST_CASE("token sets of a folder are found with what their sidecars say") {
  const TemporaryFolder folder;
  make_tokens(folder / "words", true);
  make_tokens(folder / "only", false);
  fs.write_new_text(folder / "other.idx", "of another program");
  fs.write_new_text(folder / "bad.idx", "");
  fs.write_new_text(folder / "bad.json", R"({"trainctl_tokens": 1})");
  const auto found = find_tokens(fs, folder.path());
  REQUIRE(found.size() == 2);
  CHECK(found[0].path == folder / "only.idx");
  CHECK(found[0].val_path.empty());
  CHECK(found[1].val_path == folder / "words-val.idx");
  CHECK(found[1].vocab_size == 257);
  CHECK(found[1].tokenizer == "bytes");
  CHECK(find_tokens(fs, folder / "nowhere").empty());
}

TEST_CASE("the starter reads the tokens that were found, from where its file is") {
  const TemporaryFolder folder;
  make_tokens(folder / "words", true);
  make_tokens(folder / "only", false);
  for (const FoundTokens& tokens : find_tokens(fs, folder.path())) {
    const std::string text = starter_text(
        {.preset = "llama-tiny", .tokens = tokens, .mesh = StarterMesh{.data = 2}}, folder / "jobs");
    fs.make_directory(folder / "jobs");
    INFO(text);
    const ParsedJob job = parsed(text, folder / "jobs/job.json");
    REQUIRE(job.ok());
    CHECK(missing_files(job, fs).empty());
    CHECK(job.job.model.vocab_size == 257);
    CHECK(job.job.data.tokenizer.is_bytes());
    CHECK(job.job.parallelism.data == 2);
    CHECK(job.job.data.val.empty() == tokens.val_path.empty());
    CHECK_THAT(text, Contains("The mesh is for this machine: 2 ranks."));
  }
}

TEST_CASE("without changes a starter is as it was, and a new field comes into its section") {
  const std::string plain = starter_job("llama-tiny"),
                    changed = starter_job("llama-tiny", {{"model.vocab_size", "300"}, {"data.val", ""}});
  CHECK_THAT(plain, Contains("\"val\"") && !Contains("vocab_size"));
  CHECK_THAT(changed, !Contains("\"val\"") && Contains("\"vocab_size\": 300\n  }"));
  CHECK(parsed(changed).ok());
  CHECK(starter_job("nothing").empty());
}

TEST_CASE("a mesh is read as it is written") {
  CHECK(parse_starter_mesh("1x2x4") == StarterMesh{1, 2, 4});
  for (const auto& [text, mesh] : {std::pair{"1x2x4", StarterMesh{1, 2, 4}},
                                   {"1x2x4xc2", StarterMesh{1, 2, 4, 2}},
                                   {"1x2x4xe8", StarterMesh{1, 2, 4, 1, 8}},
                                   {"2x1x4xc2xe8", StarterMesh{2, 1, 4, 2, 8}}}) {
    CHECK(parse_starter_mesh(text) == mesh);
    CHECK(text_of(mesh) == text);
  }
  CHECK(StarterMesh{2, 1, 4, 2, 8}.ranks() == 16);
  for (const char* wrong :
       {"", "1", "1x2", "1x2x", "0x1x1", "1x2x4x1", "axbxc", "-1x1x1", "1 x 2 x 4", "1x2x4x", "1x2x4xe",
        "1x2x4xe0", "1x2x4xe8xc2", "1x2x4xc2x", "1x2x4xc2xe8x2", "1x2xe4"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_starter_mesh(wrong));
  }
}

TEST_CASE("what is proposed fits; what fits nowhere here is not proposed") {
  for (const auto& [machine, presets] : std::vector<std::pair<StarterMachine, std::vector<std::string>>>{
           {gpus(1, 80), {"gpt2-124m", "llama3-1b"}},
           {gpus(8, 80), {"llama-4m", "llama3-8b"}},
           {gpus(3, 24), {"gpt2-350m"}}})
    for (const std::string& preset : presets) {
      CAPTURE(preset, machine.gpus);
      const StarterChoice choice = proposed_mesh({.preset = preset}, machine);
      REQUIRE(choice.mesh);
      CHECK(choice.mesh->tensor * choice.mesh->pipeline * choice.mesh->data <= machine.gpus);
      const StarterFit fit = fit_of_starter(starter_text(choice, ""), machine.device);
      INFO(fit.problem << "\n" << starter_text(choice, ""));
      CHECK(fit.valid);
      CHECK(fit.fits);
    }
  CHECK_FALSE(proposed_mesh({.preset = "llama3-405b"}, gpus(8, 80)).mesh);
  const StarterFit wrong = fit_of_starter(
      starter_text({.preset = "llama-tiny", .mesh = StarterMesh{.tensor = 3}}, ""), gpus(3, 80).device);
  CHECK_FALSE(wrong.valid);
  CHECK_THAT(wrong.problem, Contains("tensor parallel size"));
}

TEST_CASE("ranks that share experts are proposed where the checks of a job allow them") {
  const StarterChoice proposed = proposed_mesh({.preset = "qwen1.5-moe-a2.7b"}, gpus(4, 141));
  REQUIRE(proposed.mesh);
  const std::string text = starter_text(proposed, "");
  INFO(text);
  CHECK(fit_of_starter(text, gpus(4, 141).device).fits);
  StarterChoice shared = proposed;
  shared.mesh = StarterMesh{.data = 4, .expert = 4};
  const StarterFit fit = fit_of_starter(starter_text(shared, ""), gpus(4, 141).device);
  if (fit.valid && fit.fits)
    CHECK(proposed.mesh == shared.mesh);
  else
    CHECK(proposed.mesh->expert == 1);
  // On CPU cores the checks allow them.
  StarterMachine cores{.gpus = 4,
                       .device = {.memory_bytes = uint64_t{64} << 30, .total_bytes = uint64_t{64} << 30}};
  const StarterFields on_cpu = {{"device", "\"cpu\""}};
  const StarterChoice small = proposed_mesh({.preset = "mixtral-tiny", .changes = on_cpu}, cores);
  REQUIRE(small.mesh);
  INFO(starter_text(small, ""));
  CHECK(*small.mesh == StarterMesh{.data = 4, .expert = 4});
  CHECK(parsed(starter_text(small, "")).job.parallelism.expert == 4);
}

TEST_CASE("the model that is proposed grows with the machine") {
  CHECK(proposed_preset({.device = {.memory_bytes = uint64_t{8} << 30}}) == "llama-4m");
  CHECK(proposed_preset(gpus(1, 16)) != "llama3-8b");
  CHECK(proposed_preset(gpus(8, 80)) == "llama3-8b");
}

TEST_CASE("rate, batch and length follow from the model and from the tokens there are") {
  const StarterScale small = starter_scale(4'000'000, 0), few = starter_scale(4'000'000, 10'000),
                     large = starter_scale(124'000'000, 0);
  CHECK((small.lr == "3e-3" && small.step_tokens == 2048 && small.total_tokens == 2'000'000));
  CHECK((few.total_tokens == 40'000 && few.step_tokens == 256));  // four passes, in no fewer than 100 steps
  CHECK((large.lr == "6e-4" && large.total_tokens == 2'400'000'000 && large.warmup_tokens == 48'000'000));
  // Few tokens and many ranks still make a batch that can be cut.
  const FoundTokens tokens{.path = "t.idx", .tokens = 100'000, .vocab_size = 50257};
  for (const int data : {1, 2, 8}) {
    const std::string text =
        starter_text({.preset = "gpt2-124m", .tokens = tokens, .mesh = StarterMesh{.data = data}}, "");
    INFO(text);
    CHECK(parsed(text).ok());
    CHECK_THAT(text, Contains("It reads the 100.0 k tokens of t.idx 4") && !Contains("\"cuda\""));
  }
}
