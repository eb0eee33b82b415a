// The seeds of randomised tests. TRAINCTL_TEST_SEED=N repeats the run of a failure that has printed this.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace trainctl::test {

/// The value of TRAINCTL_TEST_SEED, if it is set.
inline std::optional<uint64_t> given_seed() {
  const char* const text = std::getenv("TRAINCTL_TEST_SEED");
  return text && *text ? std::optional<uint64_t>(std::stoull(text)) : std::nullopt;
}

/// For a test that is new at each run: the given seed, else a random one. The test prints it where it fails:
/// INFO("TRAINCTL_TEST_SEED=" << seed).
inline uint64_t test_seed() {
  const std::optional<uint64_t> given = given_seed();
  return given ? *given : std::random_device{}();
}

/// For a test that is the same at each run, over many histories: the seeds 1 to `count`, or the given one alone. The test
/// prints the seed of the history that fails, in the same form.
inline std::vector<uint64_t> test_seeds(uint64_t count) {
  if (const std::optional<uint64_t> given = given_seed()) return {*given};
  std::vector<uint64_t> seeds(count);
  for (uint64_t i = 0; i < count; ++i) seeds[i] = i + 1;
  return seeds;
}

}  // namespace trainctl::test
