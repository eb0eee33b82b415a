// Random texts for tests of cleaning, and the similarity of two of them by its definition.
#pragma once
#include <random>
#include <string>
#include <vector>

namespace trainctl::data::test {

using Words = std::vector<std::string>;

/// Random words of a vocabulary of `vocabulary` words.
Words random_words(std::mt19937_64& random, size_t count, uint64_t vocabulary = 20000);
/// With `edits` words replaced, left out or added at random places.
Words edited(Words words, size_t edits, std::mt19937_64& random);
/// The words with random punctuation, spaces and capitals, which do not count.
std::string dressed(const Words& words, std::mt19937_64& random);
/// Joined by single spaces.
std::string joined(const Words& words);
/// |A and B| / |A or B| of the sets of sequences of n words (of all words, if they are fewer).
double exact_jaccard(const Words& a, const Words& b, size_t n);

}  // namespace trainctl::data::test
