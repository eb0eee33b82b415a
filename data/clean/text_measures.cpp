#include "data/clean/text_measures.h"

#include <algorithm>
#include <bit>

#include "data/character_classes.h"
#include "data/clean/word_scanner.h"
#include "data/utf8.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::data {
namespace {

constexpr std::string_view kStopWords[] = {"the", "be", "to", "of", "and", "that", "have", "with"};
constexpr std::string_view kBullets[] = {
    "\xe2\x80\xa2", "\xe2\x80\xa3", "\xe2\x97\xa6", "\xe2\x97\x8f", "\xe2\x96\xaa", "-", "*"};  // • ‣ ◦ ● ▪
constexpr std::string_view kEllipsis = "\xe2\x80\xa6";                                          // …

double share(uint64_t part, uint64_t whole) { return whole == 0 ? 0 : double(part) / double(whole); }

bool is_space(CharacterClass kind) {
  return kind == CharacterClass::space || kind == CharacterClass::newline;
}

/// The bit of a stop word, which may have capitals, and marks at its ends; 0 of another word.
uint32_t stop_word_bit(std::string_view word) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  while (!word.empty() && !is_letter(word.front()) && uint8_t(word.front()) < 0x80) word.remove_prefix(1);
  while (!word.empty() && !is_letter(word.back()) && uint8_t(word.back()) < 0x80) word.remove_suffix(1);
  for (size_t i = 0; i < std::size(kStopWords); ++i)
    if (word.size() == kStopWords[i].size() && std::equal(word.begin(), word.end(), kStopWords[i].begin(),
                                                          [](char a, char b) { return (a | 0x20) == b; }))
      return uint32_t(1) << i;
  return 0;
}

std::string_view trimmed(std::string_view line) {
  constexpr std::string_view kSpaces = " \t\r\v\f";
  const size_t begin = line.find_first_not_of(kSpaces);
  return begin == line.npos ? "" : line.substr(begin, line.find_last_not_of(kSpaces) + 1 - begin);
}

}  // namespace

void TextMeasures::take(std::string_view text) {
  text_ = text;
  has_chars_ = has_words_ = has_lines_ = false;
}

void TextMeasures::count_chars() {
  if (std::exchange(has_chars_, true)) return;
  chars_ = 0;
  for (const char c : text_) chars_ += (uint8_t(c) & 0xc0) != 0x80;
}

void TextMeasures::scan_words_and_symbols() {
  if (std::exchange(has_words_, true)) return;
  const CharacterClasses& classes = character_classes();
  words_.clear();
  word_chars_ = word_bytes_ = hashes_ = ellipses_ = alphabetic_words_ = stop_words_ = 0;
  size_t begin = 0, dots = 0;
  bool in_word = false, has_letter = false;
  const auto end_word = [&](size_t end) {
    if (!in_word) return;
    const std::string_view word = text_.substr(begin, end - begin);
    words_.push_back({xxh3(word), uint32_t(std::min<size_t>(word.size(), UINT32_MAX))});
    word_bytes_ += words_.back().bytes;
    alphabetic_words_ += has_letter;
    if (word.size() < 32) stop_words_ |= stop_word_bit(word);
    in_word = has_letter = false;
  };
  for (size_t i = 0; i < text_.size();) {
    const CodePoint point = code_point_at(text_.substr(i));
    const CharacterClass kind = classes[point.value];
    if (is_space(kind)) {
      end_word(i);
    } else {
      if (!in_word) begin = i;
      in_word = true;
      has_letter = has_letter || kind == CharacterClass::letter;
      ++word_chars_;
    }
    hashes_ += point.value == '#';
    dots = point.value == '.' ? dots + 1 : 0;
    ellipses_ += dots == 3 || point.value == 0x2026;  // a longer row of dots is one
    i += point.length;
  }
  end_word(text_.size());
}

void TextMeasures::scan_lines() {
  if (std::exchange(has_lines_, true)) return;
  lines_ = bullet_lines_ = ellipsis_lines_ = duplicate_lines_ = paragraphs_ = duplicate_paragraphs_ = 0;
  line_bytes_ = duplicate_line_bytes_ = paragraph_bytes_ = duplicate_paragraph_bytes_ = 0;
  std::vector<std::string_view> lines, paragraphs;
  const char* paragraph = nullptr;
  const auto end_paragraph = [&] {
    if (paragraph == nullptr) return;
    paragraphs.push_back({paragraph, size_t(lines.back().data() + lines.back().size() - paragraph)});
    paragraph = nullptr;
  };
  for (size_t at = 0; at < text_.size();) {
    const size_t end = std::min(text_.find('\n', at), text_.size());
    const std::string_view line = trimmed(text_.substr(at, end - at));
    at = end + 1;
    if (line.empty()) {
      end_paragraph();
      continue;
    }
    if (paragraph == nullptr) paragraph = line.data();
    lines.push_back(line);
    bullet_lines_ += std::any_of(std::begin(kBullets), std::end(kBullets),
                                 [&](std::string_view bullet) { return line.starts_with(bullet); });
    ellipsis_lines_ += line.ends_with("...") || line.ends_with(kEllipsis);
  }
  end_paragraph();
  const auto count = [this](const std::vector<std::string_view>& parts, uint64_t& number,
                            uint64_t& duplicates, uint64_t& bytes, uint64_t& duplicate_bytes) {
    counts_.assign(std::bit_ceil(2 * parts.size() + 2), {});
    const size_t mask = counts_.size() - 1;
    for (const std::string_view part : parts) {
      const uint64_t hash = xxh3(part);
      size_t i = hash & mask;
      while (counts_[i].count > 0 && counts_[i].hash != hash) i = (i + 1) & mask;
      bytes += part.size();
      if (counts_[i].count++ > 0) {
        ++duplicates;
        duplicate_bytes += part.size();
      }
      counts_[i].hash = hash;
    }
    number = parts.size();
  };
  count(lines, lines_, duplicate_lines_, line_bytes_, duplicate_line_bytes_);
  count(paragraphs, paragraphs_, duplicate_paragraphs_, paragraph_bytes_, duplicate_paragraph_bytes_);
}

void TextMeasures::hash_sequences(size_t n) {
  constexpr uint64_t kFactor = 0x9fb21c651e98df25;
  scan_words_and_symbols();
  sequences_.clear();
  places_.clear();
  if (words_.size() < n) return;
  uint64_t oldest_factor = 1, hash = 0;
  for (size_t i = 0; i < n; ++i) oldest_factor *= kFactor;
  for (size_t i = 0; i < words_.size(); ++i) {
    hash = hash * kFactor + words_[i].hash - (i >= n ? words_[i - n].hash * oldest_factor : 0);
    if (i + 1 >= n) sequences_.push_back(mixed_bits(hash));
  }
  counts_.assign(std::bit_ceil(2 * sequences_.size()), {});
  const size_t mask = counts_.size() - 1;
  for (size_t s = 0; s < sequences_.size(); ++s) {
    size_t i = sequences_[s] & mask;
    while (counts_[i].count > 0 && counts_[i].hash != sequences_[s]) i = (i + 1) & mask;
    if (counts_[i].count++ == 0) counts_[i].first = uint32_t(s);
    counts_[i].hash = sequences_[s];
    places_.push_back(uint32_t(i));
  }
}

double TextMeasures::covered_share(size_t n, const std::vector<bool>& begins) const {
  uint64_t covered = 0;
  size_t end = 0;  // the word where the last sequence ends
  for (size_t i = 0; i < words_.size(); ++i) {
    if (i < begins.size() && begins[i]) end = i + n;
    if (i < end) covered += words_[i].bytes;
  }
  return share(covered, word_bytes_);
}

double TextMeasures::top_sequence_share(size_t n) {
  hash_sequences(n);
  const Count* top = nullptr;
  const auto bytes = [&](const Count& c) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; ++i) sum += words_[c.first + i].bytes;
    return sum;
  };
  for (const Count& c : counts_) {
    if (c.count < 2) continue;  // what is there once does not repeat
    if (top == nullptr || c.count > top->count ||
        (c.count == top->count && std::pair(bytes(c), top->first) > std::pair(bytes(*top), c.first)))
      top = &c;
  }
  if (top == nullptr) return 0;
  std::vector<bool> begins(sequences_.size());
  for (size_t s = 0; s < sequences_.size(); ++s) begins[s] = sequences_[s] == top->hash;
  return covered_share(n, begins);
}

double TextMeasures::repeated_sequences_share(size_t n) {
  hash_sequences(n);
  std::vector<bool> begins(sequences_.size());
  for (size_t s = 0; s < sequences_.size(); ++s) begins[s] = counts_[places_[s]].count > 1;
  return covered_share(n, begins);
}

double TextMeasures::value(FilterRule rule) {
  using R = FilterRule;
  if (rule >= R::max_duplicate_5gram_chars && rule <= R::max_duplicate_10gram_chars)
    return repeated_sequences_share(5 + size_t(rule) - size_t(R::max_duplicate_5gram_chars));
  if (rule >= R::max_top_2gram_chars && rule <= R::max_top_4gram_chars)
    return top_sequence_share(2 + size_t(rule) - size_t(R::max_top_2gram_chars));
  if (rule == R::min_chars || rule == R::max_chars)
    count_chars();
  else if (rule == R::max_bullet_lines || rule == R::max_ellipsis_lines || rule > R::min_stop_words)
    scan_lines();
  else
    scan_words_and_symbols();
  switch (rule) {
    case R::min_chars:
    case R::max_chars: return double(chars_);
    case R::min_words:
    case R::max_words: return double(words_.size());
    case R::min_mean_word_length:
    case R::max_mean_word_length: return share(word_chars_, words_.size());
    case R::max_hashes_per_word: return share(hashes_, words_.size());
    case R::max_ellipses_per_word: return share(ellipses_, words_.size());
    case R::max_bullet_lines: return share(bullet_lines_, lines_);
    case R::max_ellipsis_lines: return share(ellipsis_lines_, lines_);
    case R::min_alphabetic_words: return share(alphabetic_words_, words_.size());
    case R::min_stop_words: return std::popcount(stop_words_);
    case R::max_duplicate_lines: return share(duplicate_lines_, lines_);
    case R::max_duplicate_line_chars: return share(duplicate_line_bytes_, line_bytes_);
    case R::max_duplicate_paragraphs: return share(duplicate_paragraphs_, paragraphs_);
    case R::max_duplicate_paragraph_chars: return share(duplicate_paragraph_bytes_, paragraph_bytes_);
    default: break;
  }
  ENSURE(false, "rule {} is not measured here", size_t(rule));
  return 0;
}

}  // namespace trainctl::data
