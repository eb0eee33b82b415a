#include "data/clean/word_list.h"

#include <algorithm>

#include "data/clean/word_scanner.h"
#include "runtime/base/error.h"

namespace trainctl::data {

WordList::WordList(std::string_view text, const std::string& name) {
  uint64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    Phrase phrase{.text = std::string(line)};
    scan_words(line, [&](uint64_t word) { phrase.words.push_back(word); });
    if (phrase.words.empty())
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}, line {}: there is no letter or digit; write a word a line", name, number));
    by_first_.emplace(phrase.words[0], phrases_.size());
    phrases_.push_back(std::move(phrase));
  }
  if (phrases_.empty()) throw Error(ErrorCode::kUsage, fmt::format("{} has no words", name));
}

WordList::Hits WordList::hits(std::string_view text) const {
  Hits hits;
  if (is_empty()) return hits;
  std::vector<uint64_t> words;
  scan_words(text, [&](uint64_t word) { words.push_back(word); });
  for (size_t i = 0; i < words.size(); ++i) {
    const auto [begin, end] = by_first_.equal_range(words[i]);
    for (auto at = begin; at != end; ++at) {
      const Phrase& phrase = phrases_[at->second];
      if (phrase.words.size() > words.size() - i ||
          !std::equal(phrase.words.begin(), phrase.words.end(), words.begin() + std::ptrdiff_t(i)))
        continue;
      if (hits.count++ == 0) hits.first = phrase.text;
      break;
    }
  }
  return hits;
}

}  // namespace trainctl::data
