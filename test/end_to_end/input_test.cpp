// Goal: bad input gets one located sentence, the right exit status, and leaves nothing behind.
// Method: the real program on each kind of bad input; the message, the status and the run folder are checked.
#include <catch2/catch.hpp>
#include <filesystem>

#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/thread_run.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using Catch::Contains;

namespace {

struct Case {
  std::vector<std::string> arguments;
  int status;
  std::string says;
};

bool started_nothing(const std::string& dir) {
  namespace fs = std::filesystem;
  if (!fs::exists(dir + "/runs")) return true;
  for (const auto& entry : fs::directory_iterator(dir + "/runs"))
    if (entry.is_directory()) return false;
  return true;
}

}  // namespace

TEST_CASE("bad input is refused before anything starts", "[input]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("bad"));
  write_file(dir.path() + "/broken.json", "{\"version\": 1,\n \"modle\": {}}\n");
  write_file(dir.path() + "/odd.bin", "abc");
  write_file(dir.path() + "/big.bin", std::string(4096, '\xff'));
  const std::vector<Case> cases = {
      {{"launch", "job.json", "-s", "parallelism.tensor=3"}, 3, "E0312"},
      {{"launch", "job.json", "-s", "parallelism.pipeline=7"}, 3, "num_layers"},
      {{"launch", "job.json", "-s", "batch.global_sequences=6"}, 3, "global_sequences"},
      {{"launch", "job.json", "-s", "parallelism.lanes=3"}, 3, "lanes"},
      {{"launch", "job.json", "-s", "launcher.slots=2"}, 3, "slots"},
      {{"launch", "broken.json"}, 3, "did you mean `model`"},
      {{"launch", "missing.json"}, 2, "missing.json"},
      {{"launch", "job.json", "-s", "data.train.0.path=nowhere.bin"}, 6, "nowhere.bin"},
      {{"launch", "job.json", "-s", "data.train.0.path=odd.bin"}, 6, "odd.bin"},
      {{"launch", "job.json", "-s", "data.train.0.path=big.bin"}, 6, "65535"},
      {{"launch", "job.json", "-s", "launcher.mpirun=/nowhere/mpirun"}, 5, "/nowhere/mpirun"},
      {{"launch", "job.json", "-s", "observability.run_dir=/proc/nowhere"}, 5, "/proc/nowhere"},
      {{"launch", "job.json", "--dryrun"}, 2, "--dry-run"},
      {{"lanch", "job.json"}, 2, "launch"},
      {{"resume", "nothing"}, 2, "nothing"},
      {{"inspect-ckpt", "."}, 7, ""}};
  for (const Case& c : cases) {
    CAPTURE(c.arguments);
    const Outcome o = run_trainctl(dir.path(), c.arguments);
    INFO(o.out << o.err);
    CHECK(o.status == c.status);
    CHECK_THAT(o.err, Contains(c.says));
    CHECK(started_nothing(dir.path()));
  }
}

TEST_CASE("a run that exists is not overwritten by another spec", "[input]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("fixed"));
  REQUIRE(run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=mine", "--max-steps", "2"}).status == 0);
  const std::string before = read_file(dir.path() + "/runs/mine/metrics.jsonl");
  const Outcome o = run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=mine", "-s", "schedule.lr=1e-3"});
  INFO(o.err);
  CHECK(o.status != 0);
  CHECK_THAT(o.err, Contains("mine"));
  CHECK(read_file(dir.path() + "/runs/mine/metrics.jsonl") == before);
  const Outcome changed = run_trainctl(dir.path(), {"resume", "mine", "-s", "schedule.lr=1e-3"});
  INFO(changed.err);
  CHECK(changed.status == 3);
  CHECK_THAT(changed.err, Contains("schedule.lr"));
}

TEST_CASE("a resume takes no other run's checkpoints and never begins again unasked", "[input]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("own"));
  const std::string shared = dir.path() + "/shared";
  REQUIRE(run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=a", "--max-steps", "4"}).status == 0);
  REQUIRE(run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=b", "-s", "checkpoint.dir=" + shared,
                                    "--max-steps", "8"}).status == 0);
  const std::string before = read_file(dir.path() + "/runs/a/metrics.jsonl");
  for (const std::string& other : {shared, dir.path() + "/empty"}) {
    const Outcome o = run_trainctl(dir.path(), {"resume", "a", "-s", "checkpoint.dir=" + other});
    CAPTURE(other, o.err);
    CHECK(o.status == 7);
    CHECK_THAT(o.err, Contains(other));
    CHECK(read_file(dir.path() + "/runs/a/metrics.jsonl") == before);
  }
  std::filesystem::copy(dir.path() + "/runs/a", dir.path() + "/runs/copy", std::filesystem::copy_options::recursive);
  const Outcome o = run_trainctl(dir.path(), {"resume", "runs/copy", "--max-steps", "6"});
  INFO(o.err);
  CHECK(o.status == 0);
}

TEST_CASE("damaged checkpoints are found, named and passed over", "[input]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("bits"));
  REQUIRE(run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=r", "--max-steps", "8"}).status == 0);
  const std::string shard = dir.path() + "/runs/r/ckpt/step-00000008/shard-00002-of-00004.safetensors";
  std::string bytes = read_file(shard);
  REQUIRE(bytes.size() > 2000);
  bytes[bytes.size() - 1001] = char(bytes[bytes.size() - 1001] ^ 1);
  write_file(shard, bytes);
  const Outcome verify = run_trainctl(dir.path(), {"inspect-ckpt", "runs/r", "--verify"});
  INFO(verify.out << verify.err);
  CHECK(verify.status == 7);
  CHECK_THAT(verify.out + verify.err, Contains("shard-00002-of-00004.safetensors") && Contains("model."));
  write_file(shard, bytes.substr(0, bytes.size() / 2));
  const Outcome resumed = run_trainctl(dir.path(), {"resume", "r"});
  INFO(resumed.err);
  CHECK(resumed.status == 0);
  CHECK_THAT(resumed.err, Contains("step-00000008") && Contains("step 4"));
  CHECK(losses_of(dir.path() + "/runs/r").size() == 20);
}

TEST_CASE("a loss that is not a number ends the run with 8", "[input]") {
  const TemporaryFolder dir;
  std::string weights = read_file(std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/llama-tiny/weights.safetensors");
  const unsigned char nan[] = {0, 0, 0xc0, 0x7f};
  std::copy(nan, nan + 4, weights.end() - 4);
  write_file(dir.path() + "/weights.safetensors", weights);
  write_file(dir.path() + "/job.json", tiny_spec("nan"));
  const Outcome o = run_trainctl(dir.path(), {"launch", "job.json", "-s", "model.init.from=weights.safetensors"});
  INFO(o.err);
  CHECK(o.status == 8);
  CHECK_THAT(o.err, Contains("at step 6") && Contains("after 5 skipped steps in a row") && Contains("schedule.lr"));
}

TEST_CASE("a job starts and resumes from any folder: its paths start at its file", "[input]") {
  const TemporaryFolder dir;
  std::filesystem::create_directories(dir.path() + "/here/deeper");
  std::filesystem::create_directories(dir.path() + "/jobs/data");
  std::filesystem::copy(std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/llama-tiny/tokens.bin", dir.path() + "/jobs/data/tokens.bin");
  std::string spec = tiny_spec("paths");
  const std::string golden = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/llama-tiny/tokens.bin";
  spec.replace(spec.find(golden), golden.size(), "data/tokens.bin");
  write_file(dir.path() + "/jobs/job.json", spec);
  const Outcome first = run_trainctl(dir.path() + "/here", {"launch", "../jobs/job.json", "-s", "observability.run_id=p", "--max-steps", "4"});
  INFO(first.err);
  REQUIRE(first.status == 0);
  CHECK(std::filesystem::exists(dir.path() + "/here/runs/p/ckpt"));
  const Outcome second = run_trainctl(dir.path() + "/here/deeper", {"resume", "../runs/p", "--max-steps", "5"});
  INFO(second.err);
  CHECK(second.status == 0);
  CHECK(losses_of(dir.path() + "/here/runs/p").size() == 5);
}

TEST_CASE("a checkpoint writes text", "[input]") {
  const TemporaryFolder dir;
  write_file(dir.path() + "/job.json", tiny_spec("text"));
  REQUIRE(run_trainctl(dir.path(), {"launch", "job.json", "-s", "observability.run_id=r", "--max-steps", "4"}).status == 0);
  const std::vector<std::string> arguments = {"sample", "r", "--prompt", "abc", "--tokens", "16", "--tokenizer"};
  std::vector<std::string> bytes = arguments;
  bytes.push_back("bytes");
  // The tiny model has 256 ids, the byte tokenizer 257: refused in one sentence.
  const Outcome o = run_trainctl(dir.path(), bytes);
  CHECK(o.status == 6);
  CHECK_THAT(o.err, Contains("257") && Contains("256"));
  CHECK(o.out.empty());   // not even the prompt
}
