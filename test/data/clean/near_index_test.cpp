// Goal: signatures estimate the Jaccard similarity without bias and with the error that theory gives; the
// index finds what it promises, in the memory that it promises; what is no word does not count.
// Method: random texts with random edits against the similarity by its definition; counts against plain
// loops.
#include "data/clean/near_index.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "data/clean/word_scanner.h"
#include "test/data/clean/texts.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;

namespace {

std::vector<uint64_t> words_of(std::string_view text) {
  std::vector<uint64_t> words;
  scan_words(text, [&](uint64_t word) { words.push_back(word); });
  return words;
}

struct Slot {
  uint64_t key = 0, value = 0;
  bool is_free() const { return value == 0; }
  uint64_t spread() const { return key; }
};

}  // namespace

TEST_CASE("clean: marks belong to the letter before them, and composed letters are those with marks",
          "[clean]") {
  CHECK(words_of("की का के").size() == 3);
  CHECK(words_of("की") != words_of("का"));
  CHECK(words_of("की") != words_of("क"));
  CHECK(words_of("r\u00e9sum\u00e9") == words_of("re\u0301sume\u0301"));
  CHECK(words_of("re\u0301sume\u0301").size() == 1);
  CHECK(words_of("\u0301 a \u0301") == words_of("a"));  // marks of nothing
}

TEST_CASE("clean: a table that grows holds every slot, in order, within its bytes", "[clean]") {
  for (const uint64_t seed : trainctl::test::test_seeds(3)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    std::vector<uint64_t> keys;  // some of them crowd at the end of a segment
    for (int i = 0; i < 500; ++i)
      keys.push_back(i % 5 == 0 ? ~uint64_t(0) >> 6 | uint64_t(i % 3) << 58 : random());
    SegmentedTable<Slot> table;
    std::map<uint64_t, std::vector<uint64_t>> expected;
    const uint64_t count = 40'000;
    for (uint64_t value = 1; value <= count; ++value) {
      const uint64_t key = value % 3 == 0 ? keys[random() % keys.size()] : random();
      table.add({key, value});
      expected[key].push_back(value);
    }
    bool all = true;
    for (const auto& [key, values] : expected) {
      std::vector<uint64_t> found;
      table.visit(key, [&found, wanted = key](const Slot& slot) {
        if (slot.key == wanted) found.push_back(slot.value);
        return false;
      });
      all = all && found == values;
    }
    CHECK(all);
    CHECK(double(table.bytes()) <= SegmentedTable<Slot>::kMostBytes * double(count) + 64 * 16 * sizeof(Slot));
  }
}

TEST_CASE("clean: words are runs of letters and numbers in small letters", "[clean]") {
  CHECK(words_of("").empty());
  CHECK(words_of(" -- ... \n\t!").empty());
  CHECK(words_of("Hello, WORLD 42") == words_of("hello world\n\n42."));
  CHECK(words_of("ab") != words_of("a b"));
  CHECK(words_of("\xc3\x89t\xc3\xa9") == words_of("\xc3\xa9T\xc3\x89"));  // Été
  CHECK(words_of("caf\xc3\xa9\xe2\x80\x94nuit") == words_of("caf\xc3\xa9 nuit"));
  CHECK(words_of("a\xff"
                 "b")
            .size() == 2);
  // Han has no spaces: each character is a word.
  CHECK(words_of("\xe6\x97\xa5\xe6\x9c\xac"
                 "go")
            .size() == 3);
  CHECK(words_of("ab ab")[0] == words_of("ab ab")[1]);
}

TEST_CASE("clean: MinHash estimates the similarity as well as theory says", "[clean]") {
  for (const uint64_t seed : trainctl::test::test_seeds(2)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    for (const int n : {1, 3, 5}) {
      CAPTURE(n);
      MinHash hasher(n);
      double error = 0, squares = 0;
      const int pairs = 200;
      for (int i = 0; i < pairs; ++i) {
        const Words a = random_words(random, 60 + random() % 600),
                    b = edited(a, random() % (a.size() / 5), random);
        const double exact = exact_jaccard(a, b, size_t(n));
        const auto x = hasher.signature(dressed(a, random)), y = hasher.signature(dressed(b, random));
        REQUIRE((x && y));
        const double off =
            (similarity_of(*x, *y) - exact) / std::sqrt(std::max(exact * (1 - exact), 0.005) / 128);
        error += off;
        squares += off * off;
      }
      // Of 200 errors in standard deviations: the mean within four of its own, the mean square likewise.
      CHECK(std::abs(error / pairs) < 4 / std::sqrt(pairs));
      CHECK(squares / pairs < 1 + 4 * std::sqrt(2.0 / pairs));
      CHECK(squares / pairs > 1 - 5 * std::sqrt(2.0 / pairs));
    }
  }
}

TEST_CASE("clean: signatures of few words", "[clean]") {
  MinHash hasher(5);
  CHECK(!hasher.signature(""));
  CHECK(!hasher.signature("?!"));
  CHECK(similarity_of(*hasher.signature("a b c"), *hasher.signature("A, B (c)")) == 1);
  CHECK(similarity_of(*hasher.signature("a b c"), *hasher.signature("a b d")) < 0.1);
  CHECK(similarity_of(*hasher.signature("a b c d e"), *hasher.signature("b c d e a")) < 0.1);
  // The order of the texts before it does not matter.
  const auto once = hasher.signature("one two three four five six");
  hasher.signature("something else that is long enough for a sequence or two");
  CHECK(hasher.signature("one two three four five six") == once);
}

TEST_CASE("clean: bands find what is as similar as the threshold", "[clean]") {
  for (double threshold = 0.3; threshold <= 1.0001; threshold += 0.05) {
    CAPTURE(threshold);
    const Bands bands = bands_for(std::min(threshold, 1.0));
    CHECK(bands.bands * bands.rows <= 128);
    CHECK(bands.probability(std::min(threshold, 1.0)) >= 0.98);
    CHECK(bands.probability(threshold / 4) < 0.75);
  }
}

TEST_CASE("clean: the index gives the most similar text, of equal ones the first, in bounded memory",
          "[clean]") {
  for (const uint64_t seed : trainctl::test::test_seeds(2)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    const double threshold = 0.7;
    MinHash hasher(5);
    NearIndex index(threshold);
    std::vector<MinHashSignature> added;
    int found = 0, missed = 0;
    Words words;
    for (int i = 0; i < 3000; ++i) {
      words = i % 4 == 0 ? random_words(random, 200) : edited(words, 1 + random() % 8, random);
      const MinHashSignature signature = *hasher.signature(joined(words));
      double best = 0;
      size_t best_at = 0;
      for (size_t j = 0; j < added.size(); ++j)
        if (const double s = similarity_of(signature, added[j]); s >= threshold && s > best)
          best = s, best_at = j;
      const auto match = index.find(signature);
      if (match) {
        ++found;
        // What it finds is never better than the best of all, nor another one that is as good.
        CHECK(match->similarity == similarity_of(signature, added[match->label]));
        CHECK(match->similarity >= threshold);
        CHECK((match->similarity < best || match->label == best_at));
      } else {
        missed += best > 0;
      }
      index.add(signature, added.size());
      added.push_back(signature);
    }
    CHECK(found > 1500);
    CHECK(missed <= found / 50);
    // Room for one chunk of signatures, and the least size of every segment.
    const double spare = 4096 * 136 + 128 * 64 * 16 * 8.0;
    CHECK(double(index.bytes()) <= NearIndex::bytes_per_text(threshold) * 3000 + spare);
  }
}

TEST_CASE("clean: a thousand texts of equal bytes do not make a search long", "[clean]") {
  MinHash hasher(1);
  const MinHashSignature signature = *hasher.signature("the same");
  NearIndex index(0.8);
  const uint64_t before = index.bytes();
  for (uint64_t i = 0; i < 1000; ++i) index.add(signature, i);
  CHECK(index.find(signature)->label == 0);
  // 32 slots in each band, not 1000.
  CHECK(index.bytes() - before < 4096 * 136 + 18 * 64 * 8 * 2);
}
