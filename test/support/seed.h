// The seed of a randomised test: a new one each time, or the one that a failure has printed.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

namespace trainctl::test {

/// TRAINCTL_TEST_SEED, else a random one. A test shows it with INFO("TRAINCTL_TEST_SEED=" << seed).
inline uint32_t test_seed() {
  const char* given = std::getenv("TRAINCTL_TEST_SEED");
  return given ? uint32_t(std::stoul(given)) : std::random_device{}();
}

}  // namespace trainctl::test
