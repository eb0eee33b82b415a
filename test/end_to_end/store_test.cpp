// Goal: a run that lost its folder of checkpoints goes on from its store with the same bits. Method: the real
// program with a folder as the store, against an undisturbed run.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using Catch::Contains;

namespace {

struct Job {
  TemporaryFolder dir;
  std::string folder = std::filesystem::canonical(dir.path()).string(), run = folder + "/runs/r";

  Job() { write_file(folder + "/job.json", tiny_spec("tiny")); }
  Outcome run_program(const std::vector<std::string>& words) const { return run_trainctl(folder, words); }
  std::vector<std::string> launch(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"launch", "job.json", "-s", "observability.run_id=r"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

}  // namespace

TEST_CASE("without its checkpoints a run goes on from the store, with the same bits", "[saving]") {
  const Job whole;
  REQUIRE(whole.run_program(whole.launch({})).status == 0);
  const Job hit;
  const std::string store = "checkpoint.store=" + hit.folder + "/copies";
  const Outcome first = hit.run_program(hit.launch({"-s", store, "--max-steps", "12"}));
  INFO(first.err);
  REQUIRE(first.status == 0);
  CHECK_THAT(first.err, Contains("checkpoint step 12 copied to " + hit.folder + "/copies/r"));
  const auto status = nlohmann::json::parse(hit.run_program({"status", "r", "--json"}).out);
  CHECK((status["saved_step"] == 12 && status["verified_step"] == 12 && status["uploaded_step"] == 12));
  CHECK_THAT(hit.run_program({"status", "r"}).out, Contains("step 12 written · 12 verified · 12 copied to "));

  std::filesystem::remove_all(hit.run + "/ckpt");
  const Outcome resumed = hit.run_program({"resume", "r"});
  INFO(resumed.err);
  REQUIRE(resumed.status == 0);
  CHECK_THAT(resumed.err,
             Contains("store       copying checkpoint step 12 ") && Contains("every hash matches"));
  CHECK_THAT(read_file(hit.run + "/events.jsonl"), Contains("\"kind\":\"checkpoint_fetched\""));
  CHECK(losses_of(hit.run) == losses_of(whole.run));
  CHECK(hit.run_program({"inspect-ckpt", "runs/r", "--diff", whole.run}).status == 0);

  // A resume finds the newest damaged and the copy of it good.
  const std::string shard = hit.run + "/ckpt/step-00000020/shard-00000-of-00004.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() - 9] ^= 2;
  write_file(shard, bytes);
  std::filesystem::remove(hit.run + "/checkpoints.json");
  const Outcome more = hit.run_program({"resume", "r", "-s", "schedule.total_steps=24"});
  INFO(more.err);
  CHECK(hit.run_program({"inspect-ckpt", hit.run + "/ckpt/step-00000020", "--verify"}).status == 0);
}
