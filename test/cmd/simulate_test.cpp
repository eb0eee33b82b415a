// Goal: `trainctl simulate` refuses what cannot be simulated, each time with what would be legal.
// Method: run_program in this process; its status and its words.
#include <catch2/catch.hpp>

#include "test/cmd/program_run.h"

using namespace trainctl;

TEST_CASE("simulate: what cannot be simulated is refused with what would be legal", "[cmd]") {
  const test::SpecFile spec(R"({"version": 1, "model": {"preset": "gpt2-tiny"},
    "data": {"train": [{"path": "a.idx"}]}, "schedule": {"total_steps": 10}})");
  const auto refusal = [&](std::vector<std::string> words, int status) {
    words.insert(words.begin(), {"simulate", spec.path()});
    const test::Outcome o = test::run(words);
    CHECK(o.status == status);
    return o.err;
  };
  using Catch::Contains;
  CHECK_THAT(refusal({}, 2), Contains("--cluster"));
  CHECK_THAT(refusal({"--cluster", "h1000"}, 2),
             Contains("--cluster h1000: is no file and no known cluster; use a100-40"));
  CHECK_THAT(refusal({"--cluster", "h100", "--fleet", "x"}, 2),
             Contains("--fleet x: is no file and no known one; use llama3"));
  CHECK_THAT(refusal({"--cluster", "h100", "--days", "0"}, 2), Contains("--days"));
  CHECK_THAT(refusal({"--cluster", "h100", "--days", "-1"}, 2), Contains("--days"));
  CHECK_THAT(refusal({"--cluster", "h100", "--price", "2.10"}, 2), Contains("a price needs its date"));
  CHECK_THAT(refusal({"--cluster", "h100", "--gpus", "12"}, 2),
             Contains("--gpus 12: a node of the cluster has 8 GPUs"));
  CHECK_THAT(
      refusal({"--cluster", "h100", "--nodes", "2", "--spares", "2"}, 4),
      Contains("--nodes 2: the job's mesh and 2 spares needs 3 nodes with 8 GPUs each; use --nodes 3"));
  CHECK_THAT(refusal({"--cluster", "h100", "--gpus", "8", "-s", "parallelism.data=16", "-s",
                      "batch.global_sequences=16"},
                     4),
             Contains("--gpus 8: the job's mesh needs 2 nodes"));
  CHECK_THAT(refusal({"--cluster", "h100", "-s", "parallelism.tensor=3"}, 3), Contains("parallelism"));
}
