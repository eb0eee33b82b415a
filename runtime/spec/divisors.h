// What numbers would be legal, for messages.
#pragma once
#include <fmt/ranges.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace trainctl::spec {

/// The divisors that all numbers share, the smallest ones.
inline std::vector<int64_t> common_divisors(const std::vector<int64_t>& numbers) {
  int64_t common = 0;
  for (const int64_t number : numbers) common = std::gcd(common, number);
  std::vector<int64_t> divisors;
  constexpr size_t kMost = 12;
  for (int64_t d = 1; d <= common && d <= 1024 && divisors.size() < kMost; ++d)
    if (common % d == 0) divisors.push_back(d);
  return divisors;
}

/// "use 1, 2, 4 or 8".
inline std::string use_one_of(const std::vector<int64_t>& values) {
  if (values.size() == 1) return fmt::format("use {}", values[0]);
  const std::vector<int64_t> most(values.begin(), values.end() - 1);
  return fmt::format("use {} or {}", fmt::join(most, ", "), values.back());
}

}  // namespace trainctl::spec
