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
  REQUIRE(t.shows("tensor x pipeline x data"));
  REQUIRE(t.shows("1x1x1 needs "));
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
  CHECK_THAT(plain.out, Contains("\"preset\": \"llama-4m\"") && Contains("The mesh is for this machine"));
  make_tokens(dir);
  const Outcome named = run_trainctl(dir.path(), {"init", "llama-tiny", "--data", "data/beta"});
  CHECK_THAT(named.out,
             Contains("data/beta.idx") && Contains("\"vocab_size\": 257") && Contains("It reads the "));
  CHECK(run_trainctl(dir.path(), {"init", "--data", "data/gamma"}).status == 2);
  const Outcome proposed = run_trainctl(dir.path(), {"init", "llama-tiny", "--propose", "-o", "jobs.json"});
  INFO(proposed.err);
  CHECK(proposed.status == 0);
  CHECK_THAT(read_file(dir / "jobs.json"),
             Contains("data/alpha.idx") && Contains("The mesh is for this machine: 1 rank."));
  CHECK(run_trainctl(dir.path(), {"validate", "jobs.json"}).status == 0);
}

TEST_CASE("init writes the model of a folder of Hugging Face, and of a checkpoint", "[terminal]") {
  const TemporaryFolder dir;
  make_tokens(dir);
  std::filesystem::create_directory(dir / "a model");
  write_file(dir / "a model/config.json", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 300, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    "rope_theta": 5000.0, "tie_word_embeddings": false, "hidden_act": "silu"})");
  const Outcome made = run_trainctl(dir.path(), {"init", "--from", "a model", "-o", "hf.json"});
  INFO(made.err);
  REQUIRE(made.status == 0);
  const std::string text = read_file(dir / "hf.json");
  CHECK_THAT(text, Contains("\"theta\": 5000.0") &&
                       Contains("\"from\": \"a model\"") && Contains("\"name\": \"a-model\"") &&
                       Contains("data/alpha.idx"));
  // Without the weights, which this folder has not, the job trains; its checkpoint has the same model.
  const Outcome ran =
      run_trainctl(dir.path(), {"launch", "hf.json", "-s", "model.init.from=", "--max-steps", "2"});
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const Outcome again = run_trainctl(dir.path(), {"init", "--from", "latest"});
  CHECK_THAT(again.out,
             Contains("\"hidden_size\": 32") && Contains("\"norm_eps\": 1e-06") && !Contains("\"from\""));
  CHECK(run_trainctl(dir.path(), {"init", "--from", "none"}).status == 2);
  CHECK(run_trainctl(dir.path(), {"init", "gpt2-tiny", "--from", "latest"}).status == 2);
  const Outcome folder = run_trainctl(dir.path(), {"launch", "hf.json", "--from", "a model"});
  CHECK(folder.status == 2);
  CHECK_THAT(folder.err, Contains("trainctl import"));
}
