// Goal: tensor ranks that cannot share whole experts are refused, each with what would be legal. Method: a
// job of 4 tensor ranks and 2 data-parallel ones, with overrides; the diagnostics with their places and help.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "runtime/spec/parse.h"

using namespace trainctl;

namespace {

const char* kOfWholeExperts = R"({
  "version": 1,
  "model": {"preset": "mixtral-tiny", "num_heads": 4, "num_kv_heads": 4, "moe": {"num_experts": 8}},
  "data": {"train": [{"path": "a.idx"}], "seq_len": 32},
  "batch": {"global_sequences": 16, "micro_sequences": 1},
  "parallelism": {"world_size": 8, "tensor": 4, "data": 2, "expert": 4, "expert_tensor": 1},
  "schedule": {"total_steps": 100, "lr": 3e-3}
})";

std::string said_of(const std::vector<std::string>& overrides) {
  const ParsedJob job =
      parse_job({.text = kOfWholeExperts, .file = "job.json", .overrides = overrides, .environment = {}});
  std::string text;
  for (const Diagnostic& d : job.diagnostics) {
    CHECK(!d.pointer.empty());
    text += d.code + " " + d.message;
    for (const std::string& help : d.help) text += "; " + help;
  }
  return text;
}

}  // namespace

TEST_CASE("whole experts are shared over tensor and data-parallel ranks, or refused with what is legal") {
  CHECK(said_of({}) == "");
  CHECK(said_of({"parallelism.expert=8"}) == "");
  CHECK(said_of({"parallelism.expert_tensor=4", "parallelism.expert=2"}) == "");
  CHECK(said_of({"parallelism.tensor=1", "parallelism.data=8", "parallelism.expert=1"}) == "");
  CHECK(said_of({"parallelism.expert_tensor=2", "parallelism.expert=2"}) ==
        "E0321 experts are cut over all tensor ranks, 4, or over none; use expert_tensor = 1 or 4");
  CHECK(said_of({"parallelism.expert_tensor=3", "parallelism.tensor=1", "parallelism.data=8"}) ==
        "E0321 experts are cut over all tensor ranks, 1, or over none; use expert_tensor = 1");
  CHECK(said_of({"model.moe.num_experts=0", "parallelism.expert=1"}) ==
        "E0321 the model has no experts to be kept whole; leave it out");
  CHECK(said_of({"parallelism.expert=2"}) ==
        "E0321 whole experts are shared out over whole tensor groups of 4 ranks, not over 2 ranks; "
        "use an expert that is a multiple of 4, or expert_tensor = 4");
  CHECK(said_of({"parallelism.expert=16"}) ==
        "E0320 8 experts cannot be shared evenly by 16 ranks; use a divisor of 8");
  CHECK(said_of({"parallelism.expert=8", "parallelism.data=1", "parallelism.world_size=4"}) ==
        "E0320 the experts are shared by ranks of a data-parallel group and their tensor ranks, and 4 ranks "
        "are not cut into groups of 8; use a divisor of data * context * tensor = 4");
  CHECK(
      said_of({"model.moe.capacity_factor=1.5"}) ==
      "E0321 a capacity is of the tokens that a rank sends, so that whole experts would drop others at each "
      "tensor width; use capacity_factor = 0, or expert_tensor = 4");
  CHECK(said_of({"data.seq_len=30", "parallelism.sequence_parallel=false"}) ==
        "E0321 30 tokens of a context block cannot be sent in equal parts by 4 tensor ranks; "
        "use a seq_len that is a multiple of 4, or expert_tensor = 4");
}
