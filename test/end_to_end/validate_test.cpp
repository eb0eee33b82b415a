// Goal: `validate` refuses what `launch` would refuse, with the same code and exit status, and a refused launch
//       leaves nothing.
// Method: the real program; one job, broken in one way after the other.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using Catch::Contains;

namespace {

struct BrokenJob {
  std::vector<std::string> overrides;
  int status;
  std::string said;
};

const BrokenJob kBroken[] = {
    {{"model.vocab_size=256"}, 6, "E0508"},
    {{"data.tokenizer=bytes"}, 6, "E0509"},
    {{"data.tokenizer=other.model"}, 6, "E0509"},
    {{"data.tokenizer=none.model"}, 6, "E0506"},
    {{R"(data.train=[{"path": "none"}])"}, 6, "E0504"},
    {{R"(data.val=[{"path": "bytes.idx"}])", "model.vocab_size=256"}, 6, "E0508"},
    {{"model.init.from=nowhere"}, 6, "E0507"},
    {{R"(launcher.hosts=["node0:x"])"}, 3, "E0706"},
    {{R"(launcher.hosts=["node0:0"])"}, 3, "E0706"},
    {{R"(launcher.hosts=["node0:-2", ""])"}, 3, "E0706"},
    {{R"(launcher.hosts=["node0:8", "node0:8"])"}, 3, "node0 is named twice"},
    {{R"(launcher.hosts=["localhost:1"])", "parallelism.tensor=2", "parallelism.world_size=2"}, 4, "E0706"},
    {{"launcher.hostfile=none"}, 5, "E0706"},
    {{"checkpoint.store=s3://bucket/prefix"}, 5, "E0606"},
    {{"checkpoint.store=s3://bucket"}, 3, "E0604"},
    {{"launcher.slots=1", "parallelism.data=2", "parallelism.world_size=2"}, 3, "E0702"},
    {{"schedule.lr=nan"}, 3, "E0201"},
    {{"parallelism.data=3", "parallelism.world_size=4"}, 3, "E0301"},
    {{"batch.micro_sequences=3"}, 3, "E0"},
    {{"model.num_heads=5"}, 3, "E0"},
    {{"learning_rate=1"}, 3, "E0101"},
    {{"observability.run_id=../x"}, 3, "E0212"},
    {{R"(data.train=[{"path": "cut.idx"}])"}, 6, "E0510"},
    {{R"(data.train=[{"path": "empty.idx"}])"}, 6, "E0510"},
    {{R"(data.train=[{"path": "folder"}])"}, 6, "E0504"},
    {{R"(data.train=[{"path": "raw.bin"}])"}, 6, "E0504"},
    {{R"(data.train=[{"path": "raw.bin", "format": "raw"}])"}, 3, "E0501"},
    {{R"(data.train=[{"path": "raw.bin", "format": "raw", "dtype": "uint16"}])"}, 6, "E0510"},
    {{R"(data.train=[{"path": "raw.bin", "format": "llmc"}])"}, 6, "E0510"},
    {{R"(data.train=[{"path": "raw.bin", "format": "raw", "dtype": "uint16"}])", "data.documents=mask"},
     6,
     "E0511"},
    {{R"(data.train=[{"path": "unfit.idx"}])"}, 6, "E0513"},
    {{"data.loss=mask"}, 6, "E0514"},
    {{R"(data.train=[{"path": "tokens.idx", "format": "llmc"}])"}, 6, "E0510"},
    {{R"(data.train=[{"path": "tokens.idx", "weight": 0}])"}, 3, "E0202"},
    {{R"(data.train=[{"path": "*.nothing"}])"}, 6, "E0504"},
    {{R"(data.train=[{"path": ""}])"}, 3, "E0204"},
    {{"data.train=[]"}, 3, "E0211"},
    {{R"(data.val=[{"path": "cut.idx"}])", "eval.every_steps=1"}, 6, "E0510"},
    {{R"(data.val=[{"path": "short.idx"}])", "eval.every_steps=1"}, 6, "E0510"},
    {{R"(data.val=[{"path": "tokens.idx"}])", "eval.every_steps=1", "eval.max_tokens=-5"}, 3, "E0202"},
    {{"eval.tasks=corpus.txt"}, 6, "E0510"},
    {{"eval.tasks=nowhere.bin"}, 6, "E0510"},
    {{"eval.max_examples=-1"}, 3, "E0202"},
    {{"data.seq_len=64"}, 3, "E0230"},
    {{"data.tokenizer=folder"}, 6, "E0506"},
    {{"observability.run_dir=corpus.txt"}, 5, "E0607"},
    {{"checkpoint.dir=corpus.txt/x"}, 5, "E0607"},
    {{"checkpoint.store=ftp://x/y"}, 3, "E0604"},
    {{"checkpoint.keep_last=0"}, 3, "E0202"},
    {{"launcher.mpirun=/nowhere/mpirun"}, 5, "E0708"},
    {{R"(observability.alerts.command=["/nowhere/page"])"}, 5, "E0712"},
    {{R"(launcher.hosts=["no-such-host.invalid:1"])"}, 5, "E0706"},
    {{"launcher.port=22222222"}, 3, "E0202"},
    {{R"(launcher.env={"A=B": "1"})"}, 3, "E0703"},
    {{"model.preset=llama3-70b", "model.vocab_size=128256"}, 4, "1 rank would need"},
    {{"model.preset=llama-tinny"}, 3, "E0209"},
    {{"model.hidden_size=66"}, 3, "E0220"},
    {{"model.init.from=folder"}, 6, "E0507"},
    {{"device=tpu"}, 3, "E0203"},
    {{"parallelism.tensor=3", "parallelism.world_size=3"}, 3, "E0312"},
    {{"parallelism.pipeline=8", "parallelism.world_size=8"}, 3, "E0303"},
    {{"parallelism.lanes=3"}, 3, "E0306"},
    {{"parallelism.threads_per_rank=0"}, 3, "E0202"},
    {{"batch.global_tokens=100"}, 3, "E0236"},
    {{"schedule.warmup_steps=10"}, 3, "E0231"},
    {{"schedule.min_lr=1"}, 3, "E0232"},
    {{"checkpoint.interval=10m"}, 3, "checkpoint.every_seconds"},
    {{"version=2"}, 3, "E0109"},
    {{R"(extends=["none.json"])"}, 3, "E0104"},
};
static_assert(std::size(kBroken) >= 60);

void write_tokens(const TemporaryFolder& dir) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i * 37) + " of a text with words in it\n";
  write_file(dir / "corpus.txt", text);
  write_file(dir / "other.txt", text + "and another end\n");
  for (const auto& [input, out] : {std::pair("corpus.txt", "tokens"), std::pair("other.txt", "other")})
    REQUIRE(run_trainctl(dir.path(), {"data", "tokenize", input, "--out", out, "--train-vocab", "400",
                                      "--tokenizer-out", std::string(out) + ".model"})
                .status == 0);
  write_file(dir / "few.txt", "a few words\n");
  for (const auto& [input, out] : {std::pair("corpus.txt", "bytes"), std::pair("few.txt", "few")})
    REQUIRE(run_trainctl(dir.path(), {"data", "tokenize", input, "--out", out}).status == 0);
  REQUIRE(run_trainctl(dir.path(),
                       {"data", "tokenize", "few.txt", "--out", "short", "--tokenizer", "tokens.model"})
              .status == 0);
  std::filesystem::copy_file(dir / "tokens.idx", dir / "cut.idx");
  for (const char* ending : {".idx", ".bin"})
    std::filesystem::copy_file(dir / (std::string("tokens") + ending), dir / (std::string("unfit") + ending));
  write_file(dir / "unfit.loss", "step loss");
  write_file(dir / "cut.bin", read_file(dir / "tokens.bin").substr(0, 100));
  write_file(dir / "empty.idx", "");
  write_file(dir / "empty.bin", "");
  write_file(dir / "raw.bin", std::string(4000, '\xf0'));
  std::filesystem::create_directory(dir / "folder");
}

}  // namespace

TEST_CASE("validate finds what launch would refuse, and a refused launch leaves nothing", "[input]") {
  const TemporaryFolder dir;
  write_tokens(dir);
  write_file(dir / "job.json",
             R"({"version": 1, "name": "words", "model": {"preset": "llama-tiny", "vocab_size": 512},
    "data": {"train": [{"path": "tokens.idx"}], "seq_len": 32}, "device": "cpu",
    "batch": {"global_sequences": 4, "micro_sequences": 1},
    "schedule": {"total_steps": 2, "lr": 1e-3}})");
  const std::vector<std::string> bare = {"AWS_ACCESS_KEY_ID=", "AWS_SHARED_CREDENTIALS_FILE=/nowhere"};
  REQUIRE(run_trainctl(dir.path(), {"validate", "job.json"}, 120, bare).status == 0);
  for (const BrokenJob& broken : kBroken) {
    std::vector<std::string> words = {"validate", "job.json"};
    for (const std::string& value : broken.overrides) words.insert(words.end(), {"-s", value});
    for (const char* command : {"validate", "launch"}) {
      words[0] = command;
      const Outcome o = run_trainctl(dir.path(), words, 120, bare);
      INFO(command << " " << broken.overrides.front() << "\n" << o.err);
      CHECK(o.status == broken.status);
      CHECK_THAT(o.err, Contains(broken.said));
    }
  }
  CHECK((!std::filesystem::exists(dir / "runs") || std::filesystem::is_empty(dir / "runs")));
}

TEST_CASE("a run that Slurm refuses is not there afterwards", "[input]") {
  const TemporaryFolder dir;
  write_file(dir / "job.json", tiny_spec("tiny"));
  const std::string bin = dir / "bin";
  std::filesystem::create_directory(bin);
  for (const char* command : {"sbatch", "squeue", "scontrol", "scancel", "srun"}) {
    write_file(bin + "/" + command,
               "#!/bin/sh\necho 'error: invalid partition specified: none' >&2\nexit 1\n");
    std::filesystem::permissions(bin + "/" + command, std::filesystem::perms::owner_all);
  }
  const Outcome o = run_trainctl(dir.path(), {"launch", "job.json", "--submit"}, 120,
                                 {"PATH=" + bin + ":" + std::getenv("PATH")});
  INFO(o.err);
  CHECK(o.status == 12);
  CHECK_THAT(o.err, Contains("invalid partition specified"));
  CHECK(run_of(dir.path(), "tiny") == "");
}

TEST_CASE("a launch with the id of a run says what differs, and trains no finished run on", "[input]") {
  const TemporaryFolder dir;
  write_file(dir / "job.json", tiny_spec("tiny"));
  const auto launch = [&](const std::string& id, std::vector<std::string> more) {
    std::vector<std::string> words = {"launch", "job.json", "-s", "observability.run_id=" + id};
    words.insert(words.end(), more.begin(), more.end());
    return run_trainctl(dir.path(), words);
  };
  REQUIRE(launch("a", {"-s", "schedule.total_steps=6"}).status == 0);
  const Outcome same = launch("a", {"-s", "schedule.total_steps=6"});
  CHECK(same.status == 0);
  CHECK_THAT(same.err, Contains("run a exists with the same job") && Contains("is finished: step 6 of 6"));
  const Outcome longer = launch("a", {"-s", "schedule.total_steps=8"});
  CHECK(longer.status == 3);
  CHECK_THAT(longer.err, Contains("run a is finished, and this job differs from its own") &&
                             Contains("schedule.total_steps 6 → 8"));
  const Outcome shorter = run_trainctl(dir.path(), {"resume", "a", "-s", "schedule.total_steps=5"});
  CHECK(shorter.status == 3);
  CHECK_THAT(shorter.err, Contains("are behind step 6, which run a has saved"));
  REQUIRE(launch("b", {"--max-steps", "4"}).status == 0);
  const Outcome on = launch("b", {"-s", "checkpoint.every_steps=2"});
  CHECK(on.status == 0);
  CHECK_THAT(on.err, Contains("run b exists: going on with it, with checkpoint.every_steps 4 → 2"));
}
