// TextMeasures: the numbers of a text that rules of `data filter` are about.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "data/clean/filter_rules.h"

namespace trainctl::data {

/// Measures one text after the other, each number when it is first asked for. One thread each; memory: about
/// 40 bytes for each word of the longest text.
///
/// A word is a run of characters without white space, a line one with more than white space in it, without
/// that at its ends; a paragraph a group of lines without an empty line between them. A share of the text
/// counts the bytes of lines, of paragraphs, or of words.
class TextMeasures {
 public:
  /// `text` stays valid as long as it is measured.
  void take(std::string_view text);
  /// The number for every rule but those of blocked words, languages and labels.
  double value(FilterRule rule);

 private:
  struct Word {
    uint64_t hash;
    uint32_t bytes;
  };
  struct Count {
    uint64_t hash = 0;
    uint32_t count = 0, first = 0;  // count 0: a free place
  };
  void count_chars();
  void scan_words_and_symbols();
  void scan_lines();
  void hash_sequences(size_t n);
  double top_sequence_share(size_t n);
  double repeated_sequences_share(size_t n);
  double covered_share(size_t n, const std::vector<bool>& begins) const;

  std::string_view text_;
  bool has_chars_ = false, has_words_ = false, has_lines_ = false;
  uint64_t chars_ = 0, word_chars_ = 0, word_bytes_ = 0, hashes_ = 0, ellipses_ = 0, alphabetic_words_ = 0;
  uint32_t stop_words_ = 0;  // a bit for each
  uint64_t lines_ = 0, bullet_lines_ = 0, ellipsis_lines_ = 0, duplicate_lines_ = 0, paragraphs_ = 0,
           duplicate_paragraphs_ = 0;
  uint64_t line_bytes_ = 0, duplicate_line_bytes_ = 0, paragraph_bytes_ = 0, duplicate_paragraph_bytes_ = 0;
  std::vector<Word> words_;
  std::vector<uint64_t> sequences_;  // hashes of the n words from each word on
  std::vector<Count> counts_;        // of sequences_; its size is a power of two
  std::vector<uint32_t> places_;     // of each sequence in counts_
};

}  // namespace trainctl::data
