// Goal: any edit of a file of JSON lines, of a Parquet file or of the index of a token set is refused in a
// sentence or read consistently.
// Method: the seeds with seeded edits of their bytes; libFuzzer goes on from there (scripts/fuzz.sh jsonl
// parquet megatron).
#include "test/data/corpus/fuzz_corpus.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "test/data/token_fixtures.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// The files below a folder of the source, smallest names first.
std::vector<std::string> seeds_in(const std::string& folder, const std::string& ending) {
  std::vector<std::string> paths, seeds;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TRAINCTL_SOURCE_DIR) + "/" + folder))
    if (entry.path().extension() == ending) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) seeds.push_back(data::test::read_bytes(path));
  REQUIRE(seeds.size() > 2);
  return seeds;
}

std::string edited(std::string bytes, std::mt19937& random) {
  for (int n = 1 + int(random() % 4); n > 0 && !bytes.empty(); --n) {
    const size_t at = random() % bytes.size(), length = 1 + random() % std::min<size_t>(bytes.size() - at, 8);
    switch (random() % 5) {
      case 0: bytes[at] = char(random()); break;
      case 1: bytes[at] = char(uint8_t(bytes[at]) ^ 1 << random() % 8); break;
      case 2: bytes.erase(at, length); break;
      case 3: bytes.insert(at, bytes.substr(random() % bytes.size(), length)); break;
      default: bytes.replace(at, length, std::string(length, random() % 2 ? '\xff' : '\0'));
    }
  }
  if (random() % 30 == 0) bytes.resize(random() % (bytes.size() + 1));
  return bytes;
}

void run(void (*body)(const std::string&), const std::vector<std::string>& seeds, int rounds) {
  const uint64_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random{uint32_t(seed)};
  for (size_t i = 0; i < seeds.size(); ++i) {
    REQUIRE_NOTHROW(body(seeds[i]));
    for (int round = 0; round < rounds; ++round) {
      CAPTURE(i, round);
      REQUIRE_NOTHROW(body(edited(seeds[i], random)));
    }
  }
}

}  // namespace

TEST_CASE("edited JSON lines are refused or read consistently", "[corpus]") {
  run(fuzz_jsonl, seeds_in("test/data/corpus/seeds/jsonl", ".jsonl"), 500);
}
TEST_CASE("edited Parquet files are refused or read consistently", "[corpus]") {
  run(fuzz_parquet, seeds_in("test/golden/parquet", ".parquet"), 150);
}
TEST_CASE("edited indices of token sets are refused or read consistently", "[corpus]") {
  run(fuzz_megatron, seeds_in("test/data/corpus/seeds/megatron", ".idx"), 500);
}
