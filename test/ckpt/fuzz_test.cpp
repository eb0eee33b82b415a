// Goal: no bytes, however broken, crash a reader of manifests, COMMITs, safetensors headers, receipts or
// memory slots, and what it accepts is consistent with itself. Method: the seeds of test/ckpt/corpus, then
// seeded random edits of them: bits, bytes, cuts, repeated pieces, numbers at their limits
// (TRAINCTL_TEST_SEED). scripts/fuzz.sh runs the same bodies under libFuzzer, ASan and UBSan.
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "ckpt/checkpoint.h"
#include "test/ckpt/fuzz_bodies.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

std::vector<std::string> seeds_of(const std::string& target) {
  std::vector<std::string> seeds;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TRAINCTL_SOURCE_DIR) + "/test/ckpt/corpus/" + target))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return seeds;
}

void edit(std::string& text, const std::vector<std::string>& seeds, std::mt19937_64& random) {
  static const char* const kNumbers[] = {"0",
                                         "-1",
                                         "1",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "18446744073709551615",
                                         "-9223372036854775808",
                                         "4611686018427387904",
                                         "1e400",
                                         "0.5",
                                         "1e3",
                                         "null",
                                         "\"\"",
                                         "[]",
                                         "{}"};
  const size_t at = text.empty() ? 0 : random() % text.size(),
               count = std::min(text.size() - at, size_t(random() % 20));
  switch (random() % 8) {
    case 0:
      if (!text.empty()) text[at] ^= char(1 << random() % 8);
      break;
    case 1:
      if (!text.empty()) text[at] = char(random());
      break;
    case 2:
      text.erase(at, count);
      break;
    case 3:
      text.insert(random() % (text.size() + 1), text.substr(at, count));
      break;
    case 4:
      text.resize(at);
      break;
    case 5: {  // a number at a limit in the place of another
      const size_t begin = text.find_first_of("0123456789", at);
      if (begin == std::string::npos) break;
      const size_t end = text.find_first_not_of("0123456789", begin);
      text.replace(begin, (end == std::string::npos ? text.size() : end) - begin,
                   kNumbers[random() % std::size(kNumbers)]);
      break;
    }
    case 6: {  // a piece of another seed
      const std::string& other = seeds[random() % seeds.size()];
      if (!other.empty()) text.insert(at, other.substr(random() % other.size(), random() % 60));
      break;
    }
    case 7: {  // 8 bytes of a binary number
      const uint64_t values[] = {0, 1, ~uint64_t(0), uint64_t(1) << 63, 64, 1000, text.size()};
      const uint64_t value = values[random() % 7];
      if (text.size() >= 8)
        text.replace(std::min(at / 8 * 8, text.size() - 8), 8, reinterpret_cast<const char*>(&value), 8);
      break;
    }
  }
}

std::string hex(const std::string& text) {
  std::string result;
  for (const char c : text.substr(0, 600))
    result +=
        c >= 32 && c < 127 ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return result;
}

}  // namespace

TEST_CASE("edited texts and headers of checkpoints are refused or consistent") {
  const uint32_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (const FuzzTarget& target : kFuzzTargets) {
    const std::vector<std::string> seeds = seeds_of(target.name);
    REQUIRE(seeds.size() >= 2);
    const auto run = [&](const std::string& text) {
      try {
        target.run(text);
      } catch (const std::exception& error) {
        FAIL(target.name << ": " << error.what() << ": " << hex(text));
      }
    };
    for (const std::string& text : seeds) run(text);
    for (int round = 0; round < 20000; ++round) {
      std::string text = seeds[random() % seeds.size()];
      for (int n = 1 + int(random() % 3); n > 0; --n) edit(text, seeds, random);
      run(text);
    }
  }
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
