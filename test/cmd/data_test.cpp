// Goal: `trainctl data` from the command line: every outcome has its exit status, results are on disk, --json is JSON.
// Method: the whole program in this process with its stdout in a file.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cmd/commands.h"
#include "runtime/base/file_system.h"
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
  CHECK_THAT(w.output, Catch::Contains("model.vocab_size = 257") && Catch::Contains("next: trainctl data inspect"));
  CHECK(w.run({"inspect", w / "t"}) == 0);
  CHECK_THAT(w.output, Catch::Contains("document 0") && Catch::Contains("next: trainctl data verify"));
  CHECK(w.run({"verify", w / "t-val"}) == 0);
  CHECK_THAT(w.output, Catch::Contains("sound") && Catch::Contains("trainctl plan"));
  CHECK(w.run({"tokenize", w / "a.txt", "--out", w / "l", "--to", "llmc", "--json"}) == 0);
  CHECK(nlohmann::json::parse(w.output).at("tokens") == 1003);
  CHECK(w.run({"inspect", w / "l", "--json"}) == 0);
  CHECK(nlohmann::json::parse(w.output).at("format") == "llmc");
  CHECK(w.run({"verify", w / "l", "--json"}) == 0);
  CHECK(nlohmann::json::parse(w.output).at("largest_id") == 256);
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
