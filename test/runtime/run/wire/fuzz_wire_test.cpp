// Goal: no bytes that arrive over a connection of a run crash its reader, or are read as something that cannot
// be. Method: the seeds of test/runtime/run/corpus with seeded edits; scripts/fuzz.sh runs the same bodies
// under libFuzzer, ASan and UBSan.
#include "test/runtime/run/wire/fuzz_wire.h"

#include <catch2/catch.hpp>

#include "test/support/fuzz_edits.h"
#include "test/support/seed.h"

using namespace trainctl::test;

TEST_CASE("edited messages of ranks, nodes and readers of memory are refused or consistent") {
  const uint32_t seed = uint32_t(test_seed());
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto seeds = [](const char* name) {
    return seeds_in_source(std::string("test/runtime/run/corpus/") + name);
  };
  run_edited("control", fuzz_control, seeds("control"), 20000, random);
  run_edited("node", fuzz_node, seeds("node"), 20000, random);
  run_edited("requests", fuzz_requests, seeds("requests"), 1000, random);
}
