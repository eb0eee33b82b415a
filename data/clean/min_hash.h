// MinHash: a signature of a text, from which the share of word sequences that two texts have in common can
// be estimated.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace trainctl::data {

/// One byte for each of 128 permutations: the lowest eight bits, mixed, of the smallest value (b-bit minwise
/// hashing, Li and König, WWW 2010).
using MinHashSignature = std::array<uint8_t, 128>;

/// Makes signatures. One thread each.
class MinHash {
 public:
  /// `shingle_words` > 0: the length of the sequences of words that are compared.
  explicit MinHash(int shingle_words);
  /// The signature of the set of sequences of `shingle_words` words that follow each other in `text` (words:
  /// data/clean/word_scanner.h). A text of fewer words is one sequence. nullopt: it has no words.
  std::optional<MinHashSignature> signature(std::string_view text);

 private:
  void add_sequences();

  const size_t shingle_words_;
  uint64_t oldest_factor_;           // of the word that leaves a sequence
  std::vector<uint64_t> window_;     // the last words, in a ring
  std::vector<uint32_t> sequences_;  // hashes that lowest_ does not have yet
  std::array<uint32_t, 128> lowest_, factors_, offsets_;
};

/// Estimates the Jaccard similarity of the two sets, 0 to 1. Without bias; its standard deviation is
/// sqrt(s (1 - s) / 128): 0.035 at s = 0.8.
double similarity_of(const MinHashSignature& a, const MinHashSignature& b);

}  // namespace trainctl::data
