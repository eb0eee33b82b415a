#include "test/support/fuzz_edits.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace trainctl::test {

std::vector<std::string> seeds_in_source(const std::string& folder) {
  std::vector<std::string> seeds;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TRAINCTL_SOURCE_DIR) + "/" + folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return seeds;
}

void edit(std::string& text, const std::vector<std::string>& seeds, std::mt19937_64& random) {
  static const char* const kNumbers[] = {"0",
                                         "-1",
                                         "1",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "18446744073709551615",
                                         "-9223372036854775808",
                                         "4611686018427387904",
                                         "1e400",
                                         "0.5",
                                         "1e3",
                                         "null",
                                         "\"\"",
                                         "[]",
                                         "{}"};
  const size_t at = text.empty() ? 0 : random() % text.size(),
               count = std::min(text.size() - at, size_t(random() % 20));
  switch (random() % 8) {
    case 0:
      if (!text.empty()) text[at] ^= char(1 << random() % 8);
      break;
    case 1:
      if (!text.empty()) text[at] = char(random());
      break;
    case 2: text.erase(at, count); break;
    case 3: text.insert(random() % (text.size() + 1), text.substr(at, count)); break;
    case 4: text.resize(at); break;
    case 5: {  // a number at a limit in the place of another
      const size_t begin = text.find_first_of("0123456789", at);
      if (begin == std::string::npos) break;
      const size_t end = text.find_first_not_of("0123456789", begin);
      text.replace(begin, (end == std::string::npos ? text.size() : end) - begin,
                   kNumbers[random() % std::size(kNumbers)]);
      break;
    }
    case 6: {  // a piece of another seed
      const std::string& other = seeds[random() % seeds.size()];
      if (!other.empty()) text.insert(at, other.substr(random() % other.size(), random() % 60));
      break;
    }
    case 7: {  // 8 bytes of a binary number
      const uint64_t values[] = {0, 1, ~uint64_t(0), uint64_t(1) << 63, 64, 1000, text.size()};
      const uint64_t value = values[random() % 7];
      if (text.size() >= 8)
        text.replace(std::min(at / 8 * 8, text.size() - 8), 8, reinterpret_cast<const char*>(&value), 8);
      break;
    }
  }
}

std::string hex(const std::string& text) {
  std::string result;
  for (const char c : text.substr(0, 600))
    result +=
        c >= 32 && c < 127 ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return result;
}

void run_edited(const std::string& name, void (*body)(const std::string&),
                const std::vector<std::string>& seeds, int rounds, std::mt19937_64& random) {
  REQUIRE(seeds.size() >= 2);
  const auto run = [&](const std::string& text) {
    try {
      body(text);
    } catch (const std::exception& error) {
      FAIL(name << ": " << error.what() << ": " << hex(text));
    }
  };
  for (const std::string& text : seeds) run(text);
  for (int round = 0; round < rounds; ++round) {
    std::string text = seeds[random() % seeds.size()];
    for (int n = 1 + int(random() % 3); n > 0; --n) edit(text, seeds, random);
    run(text);
  }
}

}  // namespace trainctl::test
