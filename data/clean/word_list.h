// WordList: words and phrases that a user does not want, and how often a text has them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trainctl::data {

/// Immutable; any thread.
class WordList {
 public:
  WordList() = default;
  /// `text`: a word or phrase a line; lines that begin with # and empty ones do not count. What a word is:
  /// data/clean/word_scanner.h, so neither capitals nor punctuation count, and "ass" is not in "class".
  /// Error(kUsage) with the name of the list and the line: a line without a word.
  WordList(std::string_view text, const std::string& name);

  struct Hits {
    uint64_t count = 0;
    std::string first;  ///< as the list has it
  };
  /// The places of the text where words or phrases of the list begin.
  Hits hits(std::string_view text) const;
  bool is_empty() const { return phrases_.empty(); }

 private:
  struct Phrase {
    std::vector<uint64_t> words;
    std::string text;
  };
  std::vector<Phrase> phrases_;
  std::unordered_multimap<uint64_t, size_t> by_first_;  // word -> index in phrases_
};

}  // namespace trainctl::data
