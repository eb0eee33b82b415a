#include "test/data/clean/texts.h"

#include <algorithm>
#include <set>

namespace trainctl::data::test {

Words random_words(std::mt19937_64& random, size_t count, uint64_t vocabulary) {
  Words words;
  for (size_t i = 0; i < count; ++i) {
    std::string word;
    for (uint64_t n = random() % vocabulary + 1; n > 0; n /= 17) word += "etaoinshrdlucmfwg"[n % 17];
    words.push_back(word);
  }
  return words;
}

Words edited(Words words, size_t edits, std::mt19937_64& random) {
  for (size_t i = 0; i < edits && !words.empty(); ++i) {
    const auto at = words.begin() + std::ptrdiff_t(random() % words.size());
    const std::string word = random_words(random, 1)[0] + "x";
    switch (random() % 3) {
      case 0: *at = word; break;
      case 1: words.erase(at); break;
      default: words.insert(at, word);
    }
  }
  return words;
}

std::string dressed(const Words& words, std::mt19937_64& random) {
  constexpr const char* kBetween[] = {" ", " ", " ", ", ", ". ", "\n", "  ", " - ", "\xe2\x80\x94"};
  std::string text;
  for (std::string word : words) {
    if (random() % 5 == 0) word[0] = char(std::toupper(word[0]));
    text += word + kBetween[random() % std::size(kBetween)];
  }
  return text;
}

std::string joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

double exact_jaccard(const Words& a, const Words& b, size_t n) {
  const auto sequences = [n](const Words& words) {
    std::set<Words> set;
    if (words.size() < n) return std::set<Words>{words};
    for (size_t i = 0; i + n <= words.size(); ++i)
      set.insert(Words(words.begin() + std::ptrdiff_t(i), words.begin() + std::ptrdiff_t(i + n)));
    return set;
  };
  const std::set<Words> x = sequences(a), y = sequences(b);
  size_t both = 0;
  for (const Words& sequence : x) both += y.count(sequence);
  return double(both) / double(x.size() + y.size() - both);
}

}  // namespace trainctl::data::test
