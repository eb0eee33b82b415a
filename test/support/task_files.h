// Files of multiple-choice tasks as llm.c writes them.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/philox.h"

namespace trainctl::test {

/// `header`: the first numbers of the header, then the examples.
inline std::string task_bytes(const std::vector<int32_t>& header, const std::vector<uint16_t>& words) {
  std::vector<int32_t> whole = header;
  whole.resize(256);
  return std::string(reinterpret_cast<const char*>(whole.data()), 1024) +
         std::string(reinterpret_cast<const char*>(words.data()), words.size() * 2);
}

/// Random examples of tokens below `vocab_size`: contexts of 1 to 6 tokens, two to four endings of 1 to 5.
inline std::string random_tasks(int examples, uint32_t vocab_size, uint64_t seed) {
  const Philox random(seed, RandomPurpose::kTest);
  uint64_t drawn = 0;
  const auto below = [&](uint32_t n) { return uint16_t(random.bits64(drawn++) % n); };
  std::vector<uint16_t> all;
  for (int i = 0; i < examples; ++i) {
    const uint16_t endings = uint16_t(2 + below(3));
    std::vector<uint16_t> words = {65535, 0, uint16_t(i), below(endings), endings};
    for (int text = 0; text <= endings; ++text) {
      words.push_back(uint16_t(1 + below(text == 0 ? 6 : 5)));
      for (uint16_t left = words.back(); left > 0; --left) words.push_back(below(vocab_size));
    }
    words[1] = uint16_t(words.size() * 2);
    all.insert(all.end(), words.begin(), words.end());
  }
  return task_bytes({20240522, 1, examples, 1000}, all);
}

}  // namespace trainctl::test
