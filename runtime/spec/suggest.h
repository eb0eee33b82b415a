// Suggestions for mistyped words ("did you mean"). Pure.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// Optimal-string-alignment distance: insertions, deletions, substitutions and swaps of neighbours each
/// cost 1.
int edit_distance(std::string_view a, std::string_view b);

/// The candidates within edit distance 2 of `word` (1 for words of up to 3 letters), and those of which one
/// is a prefix of at least 3 letters of the other. Nearest first, at most `limit`. Ignores case.
std::vector<std::string> closest(std::string_view word, const std::vector<std::string>& candidates,
                                 size_t limit = 3);

}  // namespace trainctl
