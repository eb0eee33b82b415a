// A cache of keys against the pass over the whole window.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/train/generate/generate.h"
#include "test/support/tolerances.h"

namespace trainctl::test {

/// With a cache of keys: token by token, several at once, and with another end.
///   tokens  of a vocabulary of v, one window at most
inline void check_cached(Generator& generator, const std::vector<int32_t>& tokens, size_t v) {
  const auto difference = [&](std::span<const int32_t> known, const std::vector<float>& whole) {
    const std::vector<float> next = generator.next_logits(known);
    REQUIRE(next.size() == v);
    double largest = 0;
    for (size_t i = 0; i < v; ++i)
      largest = std::max(largest, std::abs(double(next[i]) - double(whole[(known.size() - 1) * v + i])));
    return largest;
  };
  const std::vector<float> whole = generator.logits(tokens);
  for (const size_t chunk : {1, 5}) {
    generator.next_logits(std::vector<int32_t>{tokens[0] == 0});  // forgets what it has read
    for (size_t count = chunk; count <= tokens.size(); count += chunk)
      CHECK(difference(std::span(tokens).first(count), whole) < tolerance::kCachedLogits);
  }
  std::vector<int32_t> other = tokens;
  for (size_t i = tokens.size() / 2; i < tokens.size(); ++i) other[i] = (tokens[i] + 1) % int32_t(v);
  CHECK(difference(other, generator.logits(other)) < tolerance::kCachedLogits);
}

/// The likeliest next tokens, each by a pass over the whole window of at most seq_len tokens.
inline std::vector<int32_t> likeliest_tokens(Generator& generator, std::vector<int32_t> tokens, size_t v,
                                             int64_t count) {
  std::vector<int32_t> found;
  for (int64_t i = 0; i < count; ++i) {
    const auto window = std::span(tokens).last(std::min(tokens.size(), size_t(generator.seq_len())));
    const std::vector<float> logits = generator.logits(window);
    found.push_back(pick_token(std::span(logits).last(v), {.temperature = 0}, 0));
    tokens.push_back(found.back());
  }
  return found;
}

}  // namespace trainctl::test
