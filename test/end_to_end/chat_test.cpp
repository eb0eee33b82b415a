// Goal: fine-tuning goes the whole way: a model that a folder holds, conversations that become tokens with a
// loss on the answers, a run that begins from the weights, and text from it; a run that is killed and goes on
// elsewhere has the same bits.
// Method: the real program: a tiny model is trained and exported, then learns the answers of conversations
// whose questions are noise; the loss falls far below that of the questions. A run is cut off by kill -9 and
// resumed on another mesh, and compared with the undisturbed one.
#include <signal.h>

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

class FineTuning {
 public:
  TemporaryFolder dir;

  Outcome trainctl(const std::vector<std::string>& words) const { return run_trainctl(dir.path(), words); }
  Outcome done(const std::vector<std::string>& words) const {
    const Outcome o = trainctl(words);
    INFO(o.err);
    REQUIRE(o.status == 0);
    return o;
  }

  /// base/: a model in the form of Hugging Face, of bytes. chat.idx, .bin and .loss: conversations.
  FineTuning() {
    std::string text, chats;
    unsigned noise = 12345;
    for (int i = 0; i < 400; ++i) {
      std::string question;
      for (int c = 0; c < 24; ++c) question += char('a' + (noise = noise * 1103515245 + 12345) / 65536 % 26);
      text += question + "\n";
      const Json user{{"role", "user"}, {"content", question}},
          answer{{"role", "assistant"}, {"content", "Yes, it is."}};
      chats += trainctl::dump_json(Json{{"messages", Json::array({user, answer})}}) + "\n";
    }
    write_file(dir / "text.txt", text);
    write_file(dir / "chat.jsonl", chats);
    done({"data", "tokenize", "text.txt", "--out", "text"});
    done({"init", "llama-tiny", "--data", "text", "-o", "first.json"});
    done({"launch", "first.json", "-s", "name=first", "-s", "parallelism.data=1", "-s",
          "parallelism.tensor=1", "-s", "parallelism.pipeline=1", "-s", "model.max_seq_len=64", "--max-steps",
          "2"});
    done({"export", "first", "--out", "base"});
    const Outcome o = done({"data", "tokenize", "chat.jsonl", "--out", "chat", "--chat-template", "tulu"});
    CHECK_THAT(o.out, Contains("loss ") && Contains("chat template tulu"));
    done({"init", "--from", "base", "--data", "chat", "-o", "job.json"});
  }

  std::vector<std::string> launch(const std::string& name, std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"launch", "job.json",
                                      "-s",     "name=" + name,
                                      "-s",     "parallelism.data=2",
                                      "-s",     "parallelism.tensor=1",
                                      "-s",     "parallelism.pipeline=1",
                                      "-s",     "parallelism.lanes=4",
                                      "-s",     "batch.global_sequences=8",
                                      "-s",     "batch.micro_sequences=2",
                                      "-s",     "data.seq_len=64",
                                      "-s",     "schedule.total_steps=100",
                                      "-s",     "schedule.warmup_steps=2",
                                      "-s",     "schedule.lr=3e-3",
                                      "-s",     "checkpoint.every_steps=5",
                                      "-s",     "eval.every_steps=0",
                                      "-s",     "fault_tolerance.max_restarts=0"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

std::string in_job(const std::string& run, const char* field) {
  return Json::parse(read_file(run + "/job.json")).at("data").at(field).get<std::string>();
}

}  // namespace

TEST_CASE("a model of a folder learns the answers of conversations, with the same bits wherever it goes on",
          "[chat]") {
  const FineTuning tuning;
  const std::string dir = tuning.dir.path();
  tuning.done(tuning.launch("whole"));
  const std::string whole = run_of(dir, "whole");
  CHECK(in_job(whole, "loss") == "mask");  // auto, of the file
  CHECK(in_job(whole, "documents") == "mask");
  const std::vector<double> losses = losses_of(whole);
  REQUIRE(losses.size() == 100);
  CHECK(losses.front() > 3);
  CHECK(losses.back() < 0.5);
  // Questions are noise of 26 letters: with a loss on them, it does not get below half of theirs.
  tuning.done(tuning.launch("all", {"-s", "data.loss=all"}));
  CHECK(losses_of(run_of(dir, "all")).back() > 1.0);

  std::vector<std::string> words = tuning.launch("cut");
  words.insert(words.begin(), trainctl_path());
  Child child(words, dir, {stop_variable({{.rank = 0, .step = 9}})});
  REQUIRE(eventually(60, [&] { return run_of(dir, "cut") != ""; }));
  const std::string run = run_of(dir, "cut");
  for (const pid_t pid : await_stopped_rank(child, run, 2, 0)) ::kill(pid, SIGKILL);
  CHECK(child.wait(60).status != 0);
  const Outcome resumed =
      tuning.done({"resume", run, "-s", "parallelism.data=1", "-s", "parallelism.pipeline=2"});
  CHECK_THAT(resumed.err, Contains("with the same bits"));
  CHECK(losses_of(run) == losses);
  const Outcome diff = tuning.trainctl({"inspect-ckpt", run, "--diff", whole});
  CHECK(diff.status == 0);
  CHECK_THAT(diff.out, Contains("identical"));

  const Outcome text = tuning.done({"sample", "whole", "--prompt", "<|user|>\nqwerty\n<|assistant|>\n",
                                    "--tokens", "11", "--temperature", "0"});
  CHECK_THAT(text.out, Contains("Yes, it"));
}

TEST_CASE("a loss file that does not fit is refused before anything starts", "[chat]") {
  const FineTuning tuning;
  std::filesystem::resize_file(tuning.dir / "chat.loss", 20);
  const Outcome cut = tuning.trainctl({"launch", "job.json"});
  CHECK(cut.status == 6);
  CHECK_THAT(cut.err, Contains("chat.loss") && Contains("E0513"));
  std::filesystem::remove(tuning.dir / "chat.loss");
  const Outcome none = tuning.trainctl({"validate", "job.json", "-s", "data.loss=mask"});
  CHECK(none.status == 6);
  CHECK_THAT(none.err, Contains("E0514"));
}
