// Goal: a run that lost its folder of checkpoints goes on from its store with the same bits. Method: the real
// program with a folder as the store, against an undisturbed run.
#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/base/json.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

using trainctl::Json;
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
  const auto status = Json::parse(hit.run_program({"status", "r", "--json"}).out);
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
}

TEST_CASE("a damaged checkpoint is repaired from the store before the run goes back to an older one",
          "[saving]") {
  const Job whole;
  REQUIRE(whole.run_program(whole.launch({})).status == 0);
  const Job hit;
  const std::string store = "checkpoint.store=" + hit.folder + "/copies";
  REQUIRE(hit.run_program(hit.launch({"-s", store, "-s", "checkpoint.every_steps=4", "--max-steps", "12"}))
              .status == 0);
  const std::string step = hit.run + "/ckpt/step-00000012";
  const std::string what = GENERATE(as<std::string>{}, "a flipped byte, which the ranks find",
                                    "a lost file, without which it does not open");
  INFO(what);
  const std::string shard = step + "/shard-00000-of-00004.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() - 9] ^= 2;
  if (what.starts_with("a flipped"))
    write_file(shard, bytes);
  else
    std::filesystem::remove(shard);
  const bool is_named = GENERATE(false, true);
  const Outcome resumed = hit.run_program(is_named ? std::vector<std::string>{"resume", "r", "--step", "12"}
                                                   : std::vector<std::string>{"resume", "r"});
  INFO(resumed.err);
  if (is_named && what.starts_with("a lost")) {
    CHECK(resumed.status == 7);  // it does not open: only a flipped byte needs the ranks to be found
    return;
  }
  REQUIRE(resumed.status == 0);
  const bool is_repaired = what.starts_with("a flipped");  // what does not open is copied whole
  CHECK_THAT(resumed.err, Contains((is_repaired ? "repairing checkpoint step 12 from its copy in "
                                                : "copying checkpoint step 12 (2.81 MB) from ") +
                                   hit.folder + "/copies/r"));
  CHECK_THAT(read_file(hit.run + "/events.jsonl"),
             Contains(is_repaired ? "\"kind\":\"checkpoint_repaired\"" : "\"kind\":\"checkpoint_fetched\""));
  CHECK_FALSE(std::filesystem::exists(hit.run + "/ckpt/superseded-e2"));  // it did not go back
  CHECK(losses_of(hit.run) == losses_of(whole.run));
  CHECK(hit.run_program({"inspect-ckpt", "runs/r", "--diff", whole.run}).status == 0);
}

TEST_CASE("a resume goes on from its folder while the store is dead", "[saving]") {
  const Job hit;
  REQUIRE(
      hit.run_program(hit.launch({"-s", "checkpoint.store=" + hit.folder + "/copies", "--max-steps", "12"}))
          .status == 0);
  std::filesystem::rename(hit.folder + "/copies", hit.folder + "/away");
  write_file(hit.folder + "/copies", "a file is no folder of copies");
  const Outcome resumed = hit.run_program({"resume", "r"});
  INFO(resumed.err);
  CHECK(resumed.status == 0);
  CHECK_THAT(resumed.err,
             Contains("checkpoints cannot be copied to ") &&
                 Contains("if it has a newer checkpoint than the run's folder, that is not used"));
  // Without a checkpoint of its own it cannot go on: another one may be in the store.
  std::filesystem::remove_all(hit.run + "/ckpt");
  CHECK(hit.run_program({"resume", "r", "-s", "schedule.total_steps=24"}).status == 7);
}
