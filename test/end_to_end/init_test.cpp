// Goal: init asks in a terminal, proposes what is there and refuses what cannot be; the job that it writes is
// launched as it is. Elsewhere nothing is asked.
// Method: the real program, its questions answered in a pseudo terminal.
#include <catch2/catch.hpp>
#include <filesystem>

#include "test/end_to_end/program.h"
#include "test/support/pseudo_terminal.h"
#include "test/support/temporary_folder.h"

using namespace trainctl::test;
using Catch::Matchers::Contains;

namespace {

/// Two token sets, of bytes, in data/.
void make_tokens(const TemporaryFolder& dir) {
  for (const char* name : {"alpha", "beta"}) {
    const Outcome o =
        run_trainctl(dir.path(), {"data", "tokenize", TRAINCTL_SOURCE_DIR "/README.md",
                                  TRAINCTL_SOURCE_DIR "/CONTRIBUTING.md", "--out",
                                  std::string("data/") + name, "--tokenizer", "bytes", "--split", "60:40"});
    INFO(o.err);
    REQUIRE(o.status == 0);
  }
}

}  // namespace

TEST_CASE("init asks for model, data, mesh and file, and the job trains", "[terminal]") {
  const TemporaryFolder dir;
  make_tokens(dir);
  write_file(dir / "taken.json", "{}");
  PseudoTerminal t({trainctl_path(), "init"}, dir.path(), 100, 40);
  REQUIRE(t.shows("model ["));
  t.press("llama-tinny\n");
  REQUIRE(t.shows("did you mean `llama-tiny`?"));
  REQUIRE(t.shows("model ["));
  t.press("llama-tiny\n");
  REQUIRE(t.shows("data/beta.idx: "));
  REQUIRE(t.shows("and validation, vocabulary 257, tokenizer bytes"));
  REQUIRE(t.shows("training data [data/alpha.idx]: "));
  t.press("data/gamma\n");
  REQUIRE(t.shows("data/gamma is no token set"));
  REQUIRE(t.shows("training data ["));
  t.press("data/beta\n");
  REQUIRE(t.shows("tensor x pipeline x data; 1x1x1 needs "));
  REQUIRE(t.shows("ranks [1x1x1]: "));
  t.press("3x1x1\n");
  REQUIRE(t.shows("tensor parallel size"));
  REQUIRE(t.shows("ranks [1x1x1]: "));
  t.press("1x2x1\n");
  REQUIRE(t.shows("file [job.json]: "));
  t.press("taken.json\n");
  REQUIRE(t.shows("taken.json exists"));
  t.press("\n");
  REQUIRE(t.shows("wrote job.json. next: trainctl validate job.json"));
  CHECK(t.wait() == 0);
  const std::string spec = read_file(dir / "job.json");
  CHECK_THAT(spec,
             Contains("data/beta.idx") && Contains("data/beta-val.idx") && Contains("\"vocab_size\": 257"));
  CHECK_THAT(spec, Contains("\"pipeline\": 2"));
  const Outcome o = run_trainctl(dir.path(), {"launch", "job.json", "--max-steps", "2"});
  INFO(o.err);
  CHECK(o.status == 0);
}

TEST_CASE("a question without an answer writes nothing; off a terminal nothing is asked", "[terminal]") {
  const TemporaryFolder dir;
  {
    PseudoTerminal t({trainctl_path(), "init", "-o", "job.json"}, dir.path(), 100, 40);
    REQUIRE(t.shows("model ["));
    t.press("\x04");
    CHECK(t.wait() == 2);
    CHECK_THAT(t.all(), Contains("nothing was written"));
    CHECK_FALSE(std::filesystem::exists(dir / "job.json"));
  }
  const Outcome plain = run_trainctl(dir.path(), {"init"});
  CHECK(plain.status == 0);
  CHECK_THAT(plain.out, Contains("\"preset\": \"gpt2-124m\""));
  make_tokens(dir);
  const Outcome proposed = run_trainctl(dir.path(), {"init", "llama-tiny", "--propose", "-o", "jobs.json"});
  INFO(proposed.err);
  CHECK(proposed.status == 0);
  CHECK_THAT(read_file(dir / "jobs.json"),
             Contains("data/alpha.idx") && Contains("The mesh is for this machine: 1 rank."));
  CHECK(run_trainctl(dir.path(), {"validate", "jobs.json"}).status == 0);
}
