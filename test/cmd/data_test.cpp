// Goal: `trainctl data` from the command line: every outcome has its exit status, results are on disk, --json is JSON.
// Method: the whole program in this process with its stdout in a file.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>

#include "cmd/commands.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;

namespace {

class Workplace {
 public:
  std::string operator/(const std::string& name) const { return folder_ / name; }

  /// Runs `trainctl data ARGUMENTS`; returns the exit status and keeps stdout.
  int run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"trainctl", "data"});
    std::vector<const char*> argv;
    for (const std::string& a : arguments) argv.push_back(a.c_str());
    std::fflush(stdout);
    const int saved = ::dup(1), file = ::open((folder_ / "stdout").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ::dup2(file, 1);
    const int status = cmd::run_program(int(argv.size()), argv.data());
    std::fflush(stdout);
    ::dup2(saved, 1);
    ::close(saved);
    ::close(file);
    output = real_file_system().read_text(folder_ / "stdout");
    return status;
  }
  std::string output;

 private:
  test::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("data: tokenize, inspect and verify, in words and as JSON", "[cmd][data]") {
  Workplace w;
  std::ofstream(w / "a.txt") << std::string(500, 'x') << "\n" << std::string(500, 'y') << "\n";
  CHECK(w.run({"tokenize", w / "a.txt", "--out", w / "t", "--split", "1:1"}) == 0);
  CHECK_THAT(w.output, Catch::Contains("vocabulary 257") && Catch::Contains("next: trainctl init --data"));
  CHECK(w.run({"inspect", w / "t"}) == 0);
  CHECK_THAT(w.output, Catch::Contains("document 0") && Catch::Contains("next: trainctl data verify"));
  CHECK(w.run({"verify", w / "t-val"}) == 0);
  CHECK_THAT(w.output, Catch::Contains("sound") && Catch::Contains("trainctl plan"));
  CHECK(w.run({"tokenize", w / "a.txt", "--out", w / "l", "--to", "llmc", "--json"}) == 0);
  CHECK(Json::parse(w.output).at("tokens") == 1003);
  CHECK(w.run({"inspect", w / "l", "--json"}) == 0);
  CHECK(Json::parse(w.output).at("format") == "llmc");
  CHECK(w.run({"verify", w / "l", "--json"}) == 0);
  CHECK(Json::parse(w.output).at("largest_id") == 256);
}

TEST_CASE("data: tokenize divides, leaves out and warns, in words and as JSON", "[cmd][data]") {
  Workplace w;
  std::ofstream(w / "a.txt") << "one\n\ntwo\n\nthr\xff" "e";
  std::ofstream(w / "b.txt") << "one\n<|doc|>\ntwo\n";
  std::ofstream(w / "a.jsonl") << "{\"text\":\"one\"}\nbad\n{\"body\":1}\n{\"text\":\"" << std::string(2'000'000, 'x') << "\"}\n";
  CHECK(w.run({"tokenize", w / "a.txt", "--out", w / "t", "--separator", "\\n\\n", "--json"}) == 0);
  auto result = Json::parse(w.output);
  CHECK(result.at("v") == 1);
  CHECK(result.at("parts").at(0).at("sidecar").at("documents") == 3);
  CHECK(result.at("tokens") == 3 + 3 + 5 + 3);
  REQUIRE(result.at("warnings").size() == 1);
  CHECK(result.at("warnings").at(0).at("file") == w / "a.txt");
  CHECK(result.at("faulty_files") == 1);
  CHECK(result.at("resumed_at_input_bytes").is_null());
  CHECK(w.run({"tokenize", w / "b.txt", "--out", w / "u", "--separator", "<|doc|>"}) == 0);
  CHECK_THAT(w.output, Catch::Contains("2 documents"));
  CHECK(w.run({"tokenize", w / "a.jsonl", "--out", w / "j"}) == 6);
  CHECK(w.run({"tokenize", w / "a.jsonl", "--out", w / "j", "--skip-bad", "--longest-document", "1"}) == 0);
  CHECK_THAT(w.output, Catch::Contains("left out   3 records that could not be read") && Catch::Contains("a.jsonl, line 2: no JSON object") &&
                           Catch::Contains("a.jsonl, line 3: no string under \"text\" (keys: body)") &&
                           Catch::Contains("a.jsonl, line 4: longer than 1.0"));
  CHECK(w.run({"tokenize", w / "a.jsonl", "--out", w / "k", "--skip-bad", "--json"}) == 0);
  CHECK(Json::parse(w.output).at("left_out_records") == 2);
  CHECK(w.run({"tokenize", w / "a.jsonl", "--out", w / "k", "--longest-document", "0"}) == 2);
}

TEST_CASE("data: mistakes are exit status 2, faults of data 6", "[cmd][data]") {
  Workplace w;
  std::ofstream(w / "a.txt") << "some text\n";
  CHECK(w.run({}) == 2);
  CHECK(w.run({"tokenize"}) == 2);
  for (const char* split : {"99", "0:1", "1:x", "-1:1", ":", "1:"})
    CHECK(w.run({"tokenize", w / "a.txt", "--out", w / "t", "--split", split}) == 2);
  CHECK(w.run({"tokenize", w / "a.txt", "--out", w / "t", "--to", "raw"}) == 2);
  CHECK(w.run({"tokenize", w / "a.txt", "--out", w / "t", "--to", "arrow"}) == 2);
  CHECK(w.run({"tokenize", w / "a.txt", "--out", w / "t", "--tokenizer", "bytes", "--train-vocab", "400"}) == 2);
  CHECK(w.run({"inspect", w / "t", "--dtype", "f16"}) == 2);
  CHECK(w.run({"tokenize", w / "a.txt", "--out", w / "t", "--train-vocab", "5"}) == 6);
  CHECK(w.run({"tokenize", w / "none.txt", "--out", w / "t"}) == 6);
  CHECK(w.run({"inspect", w / "t"}) == 6);
  CHECK(w.run({"tokenize", w / "a.txt", "--out", w / "t"}) == 0);
  CHECK(w.run({"verify", w / "t", "--vocab", "100"}) == 6);
  REQUIRE(::truncate((w / "t.bin").c_str(), 5) == 0);
  CHECK(w.run({"verify", w / "t"}) == 6);
}

TEST_CASE("data: the cache of objects has a size and a folder, and objects need credentials", "[cmd][data]") {
  Workplace w;
  std::ofstream(w / "a.txt") << "some text\n";
  const auto tokenize = [&](const std::string& input, const std::vector<std::string>& more) {
    std::vector<std::string> words{"tokenize", input, "--out", w / "t"};
    words.insert(words.end(), more.begin(), more.end());
    return w.run(words);
  };
  CHECK(tokenize(w / "a.txt", {"--cache", "4GiB"}) == 2);
  CHECK(tokenize(w / "a.txt", {"--cache-dir", w / ""}) == 2);
  for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}) ::unsetenv(name);
  ::setenv("AWS_SHARED_CREDENTIALS_FILE", (w / "none").c_str(), 1);
  CHECK(tokenize("s3://b/a.txt", {}) == 2);  // no credentials
  ::setenv("AWS_ACCESS_KEY_ID", "id", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
  ::setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1", 1);  // asked by nothing below
  for (const char* size : {"4", "1000KiB", "-1GiB", "much"})
    CHECK(tokenize("s3://b/a.txt", {"--cache", size}) == 2);
  CHECK(tokenize("s3://b/a.txt", {"--cache-dir", w / "none"}) == 2);
  CHECK(tokenize("s3://b", {}) == 2);
  CHECK_FALSE(real_file_system().exists(w / "t.partial"));
  for (const char* name :
       {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL"})
    ::unsetenv(name);
}

TEST_CASE("data: dedup, in words and as JSON", "[cmd][data]") {
  Workplace w;
  std::ofstream(w / "a.jsonl") << "{\"text\":\"one two three four five six\"}\n"
                               << "{\"text\":\"One, two, three! four five six\"}\n"
                               << "{\"text\":\"one two three four five six\"}\n";
  CHECK(w.run({"dedup", w / "a.jsonl", "--out", w / "d"}) == 0);
  CHECK_THAT(w.output,
             Catch::Contains("kept       2 of 3 documents") && Catch::Contains("removed    exact") &&
                 Catch::Contains("next: trainctl data tokenize") && Catch::Contains("d/removed.jsonl"));
  CHECK(w.run({"dedup", w / "a.jsonl", "--out", w / "d"}) == 2);  // is there
  CHECK(w.run({"dedup", w / "a.jsonl", "--out", w / "n", "--near", "--threshold", "0.9", "--json"}) == 0);
  const auto result = Json::parse(w.output);
  CHECK(result.at("kept") == 1);
  CHECK(result.at("reasons").at(1) == Json{{"reason", "near"}, {"documents", 1}, {"text_bytes", 30}});
  CHECK(w.run({"dedup", w / "none.jsonl", "--out", w / "x"}) == 6);
  CHECK(w.run({"dedup", w / "a.jsonl", "--out", w / "x", "--memory", "much"}) == 2);
  CHECK(w.run({"dedup", w / "a.jsonl", "--out", w / "x", "--memory", "1MiB"}) == 2);
  CHECK(w.run({"dedup", w / "a.jsonl", "--out", w / "x", "--threshold", "0.9"}) == 2);  // without --near
  CHECK(w.run({"dedup", w / "a.jsonl", "--out", w / "x", "--text-key", "body"}) == 6);
  CHECK(!real_file_system().exists(w / "x"));
}

TEST_CASE("data: filter, in words and as JSON", "[cmd][data]") {
  Workplace w;
  std::ofstream(w / "a.jsonl")
      << "{\"text\":\"one two three\"}\n{\"text\":\"one bad thing\"}\n{\"text\":\"one\"}\n";
  std::ofstream(w / "list.txt") << "Bad\n";
  std::ofstream(w / "rules.json") << R"({"min_words": 2})";
  CHECK(w.run({"filter", w / "a.jsonl", "--out", w / "d", "--rules", w / "rules.json", "--blocklist",
               w / "list.txt"}) == 0);
  CHECK_THAT(w.output, Catch::Contains("kept       1 of 3 documents") && Catch::Contains("min_words") &&
                           Catch::Contains("max_blocked_words"));
  CHECK(w.run({"filter", w / "a.jsonl", "--out", w / "e", "--rules", "gopher", "--rule", "min_words=1",
               "--json"}) == 0);
  CHECK(Json::parse(w.output).at("kept") == 0);
  CHECK(w.run({"filter", w / "a.jsonl", "--out", w / "x"}) == 2);
  CHECK(w.run({"filter", w / "a.jsonl", "--out", w / "x", "--rules", "c4"}) == 2);
  CHECK(w.run({"filter", w / "a.jsonl", "--out", w / "x", "--rules", w / "none.json"}) == 2);
  CHECK(w.run({"filter", w / "a.jsonl", "--out", w / "x", "--language", "xx"}) == 2);
  CHECK(!real_file_system().exists(w / "x"));
}

TEST_CASE("data: mix of sources and of a job", "[cmd][data]") {
  Workplace w;
  CHECK(w.run({"mix", "--source", "web:1M:3", "--source", "a:b:10k:1", "--tokens", "2M", "--seq-len",
               "100"}) == 0);
  CHECK_THAT(w.output, Catch::Contains("warning: a:b is read 50.5 times"));
  CHECK(w.run({"mix", "--source", "web:1M:3", "--source", "code:10k:1", "--tokens", "2M", "--seq-len", "100",
               "--json"}) == 0);
  auto result = Json::parse(w.output);
  CHECK(result.at("samples") == 20'000);
  CHECK(result.at("sources").at(0).at("samples") == 15'000);
  CHECK(result.at("sources").at(1).at("drawn_tokens") == 500'000);
  CHECK(result.at("warnings").size() == 1);
  std::ofstream(w / "a.txt") << std::string(5000, 'x') << "\n";
  std::ofstream(w / "b.txt") << std::string(2000, 'y') << "\n";
  REQUIRE(w.run({"tokenize", w / "a.txt", "--out", w / "a"}) == 0);
  REQUIRE(w.run({"tokenize", w / "b.txt", "--out", w / "b"}) == 0);
  std::ofstream(w / "job.json")
      << R"({"version": 1, "name": "mix", "model": {"preset": "gpt2-tiny", "vocab_size": 257}, "data": {"train": [
      {"path": "a.idx", "weight": 3, "name": "first"}, {"path": "b.idx"}], "seq_len": 32},
      "batch": {"global_sequences": 8, "micro_sequences": 1},
      "schedule": {"total_steps": 10, "warmup_steps": 1, "lr": 1e-3}})";
  CHECK(w.run({"mix", w / "job.json", "--json"}) == 0);
  result = Json::parse(w.output);
  CHECK(result.at("samples") == 80);
  CHECK(result.at("sources").at(0).at("name") == "first");
  CHECK(result.at("sources").at(0).at("tokens") == 5002);
  CHECK(result.at("sources").at(0).at("samples") == 60);
  CHECK(result.at("sources").at(1).at("samples") == 20);
  CHECK(w.run({"mix", w / "job.json", "--tokens", "1", "--json"}) == 0);
  CHECK(Json::parse(w.output).at("samples") == 8);  // a whole step
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{},
                                             {"--source", "web:1M:3"},
                                             {"--source", "web", "--tokens", "1M"},
                                             {"--source", "web:1X:3", "--tokens", "1M"},
                                             {"--source", "web:1M:0", "--tokens", "1M"},
                                             {"--source", "web:10:1", "--tokens", "1M"},
                                             {"--source", "web:1M:1", "--tokens", "many"},
                                             {w / "job.json", "--source", "web:1M:1"}}) {
    std::vector<std::string> words = bad;
    words.insert(words.begin(), "mix");
    CHECK(w.run(words) == 2);
  }
}
