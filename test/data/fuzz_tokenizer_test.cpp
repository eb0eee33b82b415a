// Goal: any edit of a tokenizer's file is refused in a sentence or gives a tokenizer that is consistent
// with itself.
// Method: the golden files with seeded edits of their JSON and of their bytes; libFuzzer goes on from there
// (scripts/fuzz.sh tokenizer).
#include <catch2/catch.hpp>

#include <random>

#include "runtime/base/json.h"
#include "test/data/fuzz_tokenizer.h"
#include "test/data/token_fixtures.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

/// Replaces, removes or moves a value somewhere in the tree.
void edit(Json& value, std::mt19937& random, int depth = 0) {
  static const Json values = parse_json(
      R"([null, true, false, 0, 1, 255, -1, 1e300, 18446744073709551615, "", " ", "NFC", "x", [], {}, [[]], {"type": "ByteLevel"},
          {"type": "Digits"}, {"type": "Sequence"}, {"Regex": "a|\\s+"}, {"String": " "}, "Removed", "Contiguous"])");
  if (value.is_structured() && !value.empty() && (depth == 0 || random() % 5 != 0)) {
    const size_t at = random() % std::min<size_t>(value.size(), 500);
    const bool erased = random() % 12 == 0 && depth > 0;
    if (value.is_array()) {
      if (erased) return value.erase(at);
      return edit(value[at], random, depth + 1);
    }
    if (!erased) return edit(value.items()[at].value, random, depth + 1);
    value.erase(std::string(value.items()[at].key));
    return;
  }
  value = values[random() % values.size()];
}

}  // namespace

TEST_CASE("edited files of tokenizers are refused or consistent", "[bpe]") {
  const uint64_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random{uint32_t(seed)};
  const std::string folder = TRAINCTL_SOURCE_DIR "/test/golden/tokenizers/";
  for (const char* name : {"gpt2", "llama3", "qwen2", "digits", "behaviors", "cased"}) {
    const std::string text = data::test::read_bytes(folder + name + ".json");
    const Json good = parse_json(text);
    REQUIRE_NOTHROW(fuzz_tokenizer(text));
    for (int round = 0; round < 150; ++round) {
      Json changed = good;
      for (int n = 1 + int(random() % 2); n > 0; --n) edit(changed, random);
      std::string bytes = dump_json(changed);
      if (round % 3 == 0) bytes[random() % bytes.size()] = char(random());
      if (round % 50 == 0) bytes.resize(random() % bytes.size());
      CAPTURE(name, round);
      REQUIRE_NOTHROW(fuzz_tokenizer(bytes));
    }
  }
}
