// Goal: a job may leave its mesh to the program. Method: parse_job on small specs.
#include <catch2/catch.hpp>

#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

const char* kJob =
    R"({"version":1,"model":{"preset":"gpt2-124m"},"data":{"train":[{"path":"data/train.idx"}]},
        "schedule":{"total_tokens":"1B"}})";

}  // namespace

TEST_CASE("a text in place of `parallelism` is its mesh", "[spec]") {
  const auto parsed = [](const std::string& parallelism, std::vector<std::string> overrides = {}) {
    std::string text = kJob;
    text.insert(text.find('{') + 1, parallelism.empty() ? "" : "\"parallelism\": " + parallelism + ", ");
    return parse_job(
        {.text = text, .file = "job.json", .overrides = std::move(overrides), .environment = {}});
  };
  const ParsedJob word = parsed("\"auto\""), object = parsed("{\"mesh\": \"auto\"}");
  REQUIRE(word.ok());
  CHECK(word.job.parallelism.mesh_from == MeshFrom::automatic);
  CHECK(word.resolved_json == object.resolved_json);
  CHECK(parsed("\"auto\"", {"parallelism.tensor=2"}).job.parallelism.tensor == 2);
  // In place of the object, not besides it.
  const ParsedJob replaced = parsed("{\"tensor\": 2}", {"parallelism=auto", "parallelism.zero_stage=2"});
  CHECK(replaced.job.parallelism.tensor == 1);
  CHECK(replaced.job.parallelism.zero_stage == 2);
  // The number of ranks is that of a mesh to come.
  CHECK(parsed("{\"mesh\": \"auto\", \"world_size\": 6}").job.parallelism.data == 1);
  const ParsedJob wrong = parsed("\"best\"");
  REQUIRE(wrong.diagnostics.size() == 1);
  CHECK(wrong.diagnostics[0].pointer == "/parallelism/mesh");
  // A job in which the mesh is given has the hash, and the text, that it had before there was the field.
  CHECK(parsed("").resolved_json.find("mesh") == std::string::npos);
}
