#include "runtime/spec/suggest.h"

#include <algorithm>

namespace trainctl {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substitution = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

namespace {

std::string small_letters(std::string_view word) {
  std::string result(word);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

}  // namespace

std::vector<std::string> closest(std::string_view word, const std::vector<std::string>& candidates,
                                 size_t limit) {
  constexpr size_t kLongestWord = 64;  // a mistyped name is not longer
  std::vector<std::pair<int, std::string>> found;
  if (word.empty() || word.size() > kLongestWord) return {};
  const int reach = word.size() <= 3 ? 1 : 2;
  const std::string typed = small_letters(word);
  for (const std::string& candidate : candidates) {
    const std::string name = small_letters(candidate);
    const int distance = edit_distance(typed, name);
    const size_t common = std::min(typed.size(), name.size());
    const bool prefix = common >= 3 && typed.compare(0, common, name, 0, common) == 0;
    if (distance <= reach)
      found.emplace_back(distance, candidate);
    else if (prefix)
      found.emplace_back(3, candidate);
  }
  // Of equal distance, first what ends alike: "llama-7b" is rather llama3-8b than llama-4m.
  const auto key = [&](const std::pair<int, std::string>& name) {
    return std::pair(name.first, !small_letters(name.second).ends_with(typed.back()));
  };
  std::stable_sort(found.begin(), found.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  std::vector<std::string> result;
  for (const auto& [distance, candidate] : found)
    if (result.size() < limit && std::find(result.begin(), result.end(), candidate) == result.end())
      result.push_back(candidate);
  return result;
}

}  // namespace trainctl
