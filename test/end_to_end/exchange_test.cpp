// Goal: a trained model leaves as a Hugging Face folder and comes back with the same bits: what is imported
// trains on as model.init.from does, and is exported again as the same bytes. Mistakes are one sentence with
// their exit status and leave nothing.
// Method: the real program: a few steps of a GPT-2 and a Llama on two ranks, export, import, launches from
// both, and the wrong command lines.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/base/json.h"
#include "test/end_to_end/jobs.h"
#include "test/end_to_end/program.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using trainctl::Json;
using namespace trainctl::test;
using Catch::Contains;
using Catch::StartsWith;

namespace {

Outcome done(const TemporaryFolder& dir, const std::vector<std::string>& arguments) {
  const Outcome o = run_trainctl(dir.path(), arguments);
  INFO(o.err);
  REQUIRE(o.status == 0);
  return o;
}

/// A run of `steps` steps of a golden case with the name `id`.
Outcome launch(const TemporaryFolder& dir, const std::string& id, int steps, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"launch", "job.json",
                                        "-s",     "observability.run_id=" + id,
                                        "-s",     "schedule.total_steps=" + std::to_string(steps)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return done(dir, arguments);
}

bool has_partial(const std::string& folder) {
  const auto files = std::filesystem::directory_iterator(folder);
  return std::any_of(begin(files), end(files), [](const auto& file) {
    return file.path().filename().string().find(".partial-") != std::string::npos;
  });
}

}  // namespace

TEST_CASE("a trained model is exported, imported, trained on and exported again with the same bits",
          "[exchange]") {
  for (const std::string name : {"gpt2-tiny", "llama-tiny"}) {
    INFO(name);
    const TemporaryFolder dir;
    write_file(dir.path() + "/job.json", golden_spec(name));
    launch(dir, "first", 5, {"-s", "parallelism.pipeline=2"});
    const Json report = Json::parse(done(dir, {"--json", "export", "first", "--out", "out", "--dtype", "f32",
                                               "--shard-size", "100kB", "--check-forward", "40"})
                                        .out);
    CHECK(report["step"] == 5);
    CHECK(report["shards"].get<int>() > 1);
    CHECK(report["forward"]["largest"] == 0);
    done(dir, {"import", "out", "--out", "model"});
    done(dir, {"inspect-ckpt", "model", "--verify"});
    done(dir, {"export", "model", "--out", "again", "--dtype", "f32", "--shard-size", "100kB"});
    for (const std::string file : report["files"]) {
      INFO(file);
      CHECK(read_file(dir / ("out/" + file)) == read_file(dir / ("again/" + file)));
    }
    CHECK_FALSE(has_partial(dir.path()));

    // The import is where model.init.from begins.
    launch(dir, "init", 4, {"-s", "model.init.from=out"});
    const std::string other = "than " + (dir / "out") + "/config.json says: ";
    CHECK_THAT(done(dir, {"validate", "job.json", "-s", "model.init.from=out"}).err, !Contains(other));
    CHECK_THAT(
        done(dir, {"validate", "job.json", "-s", "model.init.from=out", "-s", "model.norm_eps=0.5"}).err,
        Contains(other + "model.norm_eps is 1e-05 there and 0.5 here"));
    // The made-up job of the import has another batch, which is no reason to change the learning rate.
    const Outcome begun =
        launch(dir, "branch", 4,
               {"--from", "model", "-s", "model.init.from=", "-s", "schedule.batch_lr_rule=linear"});
    CHECK_THAT(begun.err, Contains("branch      from out step 0 (state ") &&
                              Contains("): data from its start\n") &&
                              Contains("optimizer   from its start: the checkpoint was imported"));
    const auto curve = losses_of(dir / "runs/init");
    CHECK(curve.size() == 4);
    CHECK(losses_of(dir / "runs/branch") == curve);
    CHECK(run_trainctl(dir.path(), {"inspect-ckpt", "init", "--diff", "branch"}).status == 0);
    CHECK(losses_of(dir / "runs/first").front() != curve.front());
  }
}

TEST_CASE("averages of the weights are exported and sampled, of a run with moments in int8", "[exchange]") {
  const TemporaryFolder dir;
  write_file(dir / "job.json", tiny_spec("averages"));
  const std::vector<std::string> averaged = {"-s", "optimizer.ema.decay=0.5", "-s", "optimizer.moments=int8",
                                             "-s", "model.vocab_size=300"};  // of bytes
  launch(dir, "first", 5, averaged);
  done(dir, {"export", "first", "--out", "weights", "--dtype", "f32"});
  const Json report = Json::parse(
      done(dir, {"--json", "export", "first", "--out", "averages", "--ema", "--check-forward", "20"}).out);
  CHECK(report["forward"]["largest"] == 0);
  done(dir, {"export", "first", "--out", "exact", "--ema", "--dtype", "f32"});
  CHECK(read_file(dir / "weights/model.safetensors") != read_file(dir / "exact/model.safetensors"));
  done(dir, {"import", "exact", "--out", "model"});
  done(dir, {"inspect-ckpt", "first", "--verify"});
  const std::string shown = done(dir, {"inspect-ckpt", "first"}).out;
  CHECK_THAT(shown, Contains("first_moment i8") && Contains("second_moment u8") && Contains("ema f32"));
  const auto sampled = [&](const std::string& from, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"sample", from, "-n", "20", "-t", "0", "--tokenizer", "bytes"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_trainctl(dir.path(), arguments);
  };
  CHECK(sampled("first", {}).status == 0);
  CHECK(sampled("first", {"--ema"}).status == 0);
  // On half of the ranks it goes on to the same state as a run that was never stopped.
  launch(dir, "whole", 8, averaged);
  std::vector<std::string> stopped = averaged;
  stopped.insert(stopped.end(), {"--max-steps", "3"});
  std::vector<std::string> arguments = {
      "launch", "job.json", "-s", "observability.run_id=cut", "-s", "schedule.total_steps=8"};
  arguments.insert(arguments.end(), stopped.begin(), stopped.end());
  done(dir, arguments);
  done(dir, {"resume", "cut", "-s", "parallelism.data=1"});
  CHECK(run_trainctl(dir.path(), {"inspect-ckpt", "whole", "--diff", "cut"}).status == 0);
  const Outcome other = run_trainctl(dir.path(), {"resume", "cut", "-s", "optimizer.moments=bf16"});
  CHECK(other.status == 3);
  CHECK_THAT(other.err, Contains("`optimizer.moments` is fixed for the life of a run"));
  launch(dir, "plain", 5, {});
  const Outcome none = run_trainctl(dir.path(), {"export", "plain", "--out", "new", "--ema"});
  CHECK(none.status == 7);
  CHECK_THAT(none.err, Contains("has no averages of the weights"));
  CHECK(sampled("plain", {"--ema"}).status == 7);
}

TEST_CASE("the tokenizer of a run goes out and comes back with its model", "[exchange]") {
  struct Kind {
    std::string word, described, file, config;
  };
  const Kind kind =
      GENERATE(Kind{"sentencepiece", "SentencePiece ", "tokenizer.model", "LlamaTokenizer"},
               Kind{"bpe", "byte-level BPE ", "tokenizer.json", "PreTrainedTokenizerFast"});
  const TemporaryFolder dir;
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += "line " + std::to_string(i * 37) + " says that " + std::to_string(i % 11) + " of them are here\n";
  write_file(dir / "corpus.txt", text);
  done(dir, {"data", "tokenize", "corpus.txt", "--out", "t", "--train-vocab", "400", "--train-kind", kind.word});
  write_file(dir / "job.json",
             R"({"version": 1, "name": "words", "model": {"preset": "llama-tiny", "vocab_size": 512},
    "data": {"train": [{"path": "t.idx"}], "seq_len": 32},
    "batch": {"global_sequences": 4, "micro_sequences": 1},
    "schedule": {"total_steps": 2, "lr": 1e-3}})");
  done(dir, {"launch", "job.json", "-s", "observability.run_id=words"});
  const Json report = Json::parse(done(dir, {"--json", "export", "words", "--out", "out"}).out);
  const std::string tokenizer = report["tokenizer"];
  REQUIRE_THAT(tokenizer, StartsWith(kind.described));
  const std::string out = dir / ("out/" + kind.file);
  CHECK(read_file(out) == read_file(tokenizer.substr(kind.described.size())));
  CHECK(Json::parse(read_file(dir / "out/tokenizer_config.json"))["tokenizer_class"] == kind.config);
  CHECK(Json::parse(read_file(dir / "out/config.json"))["eos_token_id"] ==
        Json::parse(read_file(dir / "t.json"))["end_of_text"]);
  write_file(dir / "tasks.jsonl",
             R"({"context": "line 37 says", "endings": ["that 1", "xq zzz 9 k"], "label": 0})");
  for (std::vector<std::string> command : {std::vector<std::string>{"export", "words", "--out", "bytes"},
                                           {"eval", "words", "--tasks", "tasks.jsonl"},
                                           {"sample", "words", "-p", "line 3"}}) {
    command.insert(command.end(), {"--tokenizer", "bytes"});
    const Outcome other = run_trainctl(dir.path(), command);
    CAPTURE(command[0], other.out, other.err);
    CHECK(other.status == 6);
    CHECK_THAT(other.err, Contains("was tokenized with") && Contains("not with bytes"));
  }
  CHECK_FALSE(std::filesystem::exists(dir / "bytes"));
  const Json imported = Json::parse(done(dir, {"--json", "import", "out", "--out", "start"}).out);
  CHECK(imported["tokenizer"] == out);
  const Outcome sampled = done(dir, {"sample", "start", "-p", "line 3", "-n", "5", "-t", "0"});
  CHECK_THAT(sampled.out, StartsWith("line 3"));
  const Json measured = Json::parse(
      done(dir, {"--json", "eval", "start", "--tasks", "tasks.jsonl", "--data", "t.idx", "--limit", "3"})
          .out);
  CHECK(measured["tasks"][0]["accuracy"] == 1);
  CHECK(measured["sources"][0]["sequences"] == 3);
  CHECK(measured["sources"][0]["bits_per_byte"].get<double>() > 0.5);
  CHECK(measured["sources"][0]["loss"].get<double>() < 7);
  CHECK_THAT(run_trainctl(dir.path(), {"eval", "start"}).err,
             Contains("has no validation data; give --tasks FILE"));
  done(dir, {"data", "tokenize", "corpus.txt", "--out", "b"});
  const Outcome strange = run_trainctl(dir.path(), {"eval", "start", "--data", "b.idx"});
  CHECK(strange.status == 6);
  CHECK_THAT(strange.err, Contains("was tokenized with bytes, not with"));
  // The folder itself gives the same.
  CHECK(done(dir, {"sample", "out", "-p", "line 3", "-n", "5", "-t", "0"}).out == sampled.out);
  Json direct = Json::parse(
      done(dir, {"--json", "eval", "out", "--tasks", "tasks.jsonl", "--data", "t.idx", "--limit", "3"}).out);
  CHECK(direct["sources"][0]["loss"] == measured["sources"][0]["loss"]);
  CHECK(direct["tasks"][0]["accuracy"] == measured["tasks"][0]["accuracy"]);
  const Json shorter = Json::parse(
      done(dir, {"--json", "eval", "out", "--data", "t.idx", "--limit", "3", "--seq-len", "9"}).out);
  CHECK(shorter["sources"][0]["targets"] == 27);
  CHECK_THAT(run_trainctl(dir.path(), {"sample", "out", "--ema"}).err, Contains("leave --ema out"));
  // Several prompts give the texts of each, and so do lines.
  const std::string second = done(dir, {"sample", "start", "-p", "line 4", "-n", "5", "-t", "0"}).out;
  CHECK(done(dir, {"sample", "start", "-p", "line 3", "-p", "line 4", "-n", "5", "-t", "0"}).out ==
        sampled.out + second);
  const std::string lines = "printf 'line 3\\nline 4\\n' | " + trainctl_path() + " sample start -i -n 5 -t 0";
  CHECK(Child({"/bin/sh", "-c", lines}, dir.path()).wait(60).out == sampled.out + second);
  done(dir, {"export", "start", "--out", "again"});
  CHECK(read_file(dir / "again/model.safetensors") == read_file(dir / "out/model.safetensors"));
  CHECK(read_file(dir / ("again/" + kind.file)) == read_file(out));
  // Without it, and with one that does not fit.
  done(dir, {"import", "out", "--out", "bare", "--no-tokenizer"});
  CHECK(run_trainctl(dir.path(), {"sample", "bare"}).status == 6);
  write_file(dir / "out/tokenizer.model", "");  // of both kinds it would be the one in use
  CHECK_THAT(run_trainctl(dir.path(), {"import", "out", "--out", "new"}).err,
             Contains("is no SentencePiece model"));
}

TEST_CASE("wrong exports and imports are refused in one sentence and leave nothing", "[exchange]") {
  const TemporaryFolder dir;
  write_file(dir / "job.json", golden_spec("llama-tiny"));
  launch(dir, "first", 4, {});
  done(dir, {"export", "first", "--out", "out"});
  const auto refused = [&](std::vector<std::string> arguments, int status, const std::string& message) {
    const Outcome o = run_trainctl(dir.path(), arguments);
    INFO(o.err);
    CHECK(o.status == status);
    CHECK_THAT(o.err, Contains(message));
    CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
    CHECK_FALSE(has_partial(dir.path()));
    CHECK_FALSE(std::filesystem::exists(dir / "new"));
  };
  refused({"export", "first", "--out", "out"}, 2, "out exists and is not an empty folder");
  refused({"export", "first", "--out", "new", "--shard-size", "many"}, 2, "--shard-size many is not a size");
  done(dir, {"import", "out", "--out", "start"});
  refused({"resume", "start"}, 2, "a new run may begin from it: trainctl launch JOB --from start");
  refused({"export", "nothing", "--out", "new"}, 2, "no run nothing in");
  refused({"export", "first", "--out", "new", "--tokenizer", "none.model"}, 6,
          "there is no tokenizer none.model");
  refused({"import", "none", "--out", "new"}, 2, "none is no folder");
  refused({"import", "runs", "--out", "new"}, 6, "runs is no folder of a model: it has no config.json");
  std::filesystem::remove(dir / "out/model.safetensors");
  refused({"import", "out", "--out", "new"}, 7, "out holds no *.safetensors file");
  // A damaged checkpoint is found while it is exported.
  const std::string step = dir / "runs/first/ckpt/step-00000004";
  for (const auto& file : std::filesystem::directory_iterator(step)) {
    if (file.path().extension() != ".safetensors") continue;
    std::string text = read_file(file.path());
    for (size_t at = text.size() / 8; at < text.size(); at += 997) text[at] ^= 1;
    std::filesystem::remove(file.path());
    write_file(file.path(), text);
  }
  refused({"export", "first", "--out", "new"}, 7, "is damaged");
}

TEST_CASE("a run with FP8 products computes in the format that is asked for, as its export does",
          "[exchange]") {
  const TemporaryFolder dir;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "line " + std::to_string(i * 37) + " is here\n";
  write_file(dir / "corpus.txt", text);
  done(dir, {"data", "tokenize", "corpus.txt", "--out", "t", "--tokenizer", "bytes"});
  write_file(dir / "job.json",
             R"({"version": 1, "name": "fp8", "model": {"preset": "llama-tiny", "vocab_size": 257},
    "data": {"train": [{"path": "t.idx"}], "seq_len": 32, "documents": "ignore"},
    "precision": {"compute": "bf16", "fp8": {"recipe": "mxfp8"}},
    "batch": {"global_sequences": 4, "micro_sequences": 1}, "schedule": {"total_steps": 2, "lr": 1e-3}})");
  done(dir, {"launch", "job.json", "-s", "observability.run_id=r"});
  done(dir, {"export", "r", "--out", "out", "--dtype", "f32", "--check-forward", "40"});
  const auto loss = [&](const std::string& model, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--json",  "eval", model,       "--data", "t.idx",
                                      "--limit", "8",    "--seq-len", "32"};
    words.insert(words.end(), more.begin(), more.end());
    return Json::parse(done(dir, words).out)["sources"][0]["loss"].get<double>();
  };
  CHECK(loss("r", {"--dtype", "f32"}) == loss("out", {"--dtype", "f32"}));
  CHECK(loss("r", {}) != loss("r", {"--dtype", "bf16"}));  // as it trained: with its FP8
}
