// Did you mean: the nearest words to a mistyped one. Pure.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// Optimal-string-alignment distance: insertions, deletions, substitutions and swaps of neighbours each
/// cost 1.
int edit_distance(std::string_view a, std::string_view b);

/// Candidates within edit distance 2 of `word` (1 for words of up to 3 letters), or sharing it as a prefix
/// of at least 3 letters; nearest first, at most `limit`.
std::vector<std::string> closest(std::string_view word, const std::vector<std::string>& candidates,
                                 size_t limit = 3);

}  // namespace trainctl
