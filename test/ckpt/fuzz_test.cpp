// Goal: no bytes, however broken, crash a reader of manifests, COMMITs, safetensors headers, receipts, pieces
// or memory slots, and what it accepts is consistent with itself. Method: the seeds of test/ckpt/corpus, then
// seeded random edits of them: bits, bytes, cuts, repeated pieces, numbers at their limits
// (TRAINCTL_TEST_SEED). scripts/fuzz.sh runs the same bodies under libFuzzer, ASan and UBSan.
#include <catch2/catch.hpp>

#include <random>

#include "ckpt/checkpoint.h"
#include "test/ckpt/fuzz_bodies.h"
#include "test/support/fuzz_edits.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("edited texts and headers of checkpoints are refused or consistent") {
  const uint32_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (const FuzzTarget& target : kFuzzTargets)
    run_edited(target.name, target.run, seeds_in_source(std::string("test/ckpt/corpus/") + target.name),
               20000, random);
}

TEST_CASE("sizes that overflow are refused by name") {
  const auto receipt = [](const std::string& chunks, const std::string& shape) {
    return R"({"file":"f","bytes":8,"chunks":[)" + chunks + R"(],"tensors":[["w","master","f32",[)" + shape +
           "]]]}";
  };
  const std::string hashes = R"("00000000000000010000000000000002"])";
  CHECK_THROWS_WITH(
      ckpt::ShardReceipt::from_json(receipt("[0,0,4611686018427387904," + hashes, "4611686018427387904,4")),
      Catch::Contains("the size of w overflows"));
  // Four chunks of 2^62 bytes are 2^64, that is 0.
  const std::string quarter = "[0,0,1152921504606846976," + hashes;
  CHECK_THROWS_WITH(ckpt::ShardReceipt::from_json(receipt(
                        quarter + "," + quarter + "," + quarter + "," + quarter, "1152921504606846976")),
                    Catch::Contains("the chunks of f overflow"));
}
