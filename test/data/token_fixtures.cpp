#include "test/data/token_fixtures.h"

#include <fstream>
#include <iterator>

#include "runtime/base/file_system.h"

namespace trainctl::data::test {

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  REQUIRE(file.good());
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string unhex(const std::string& hex) {
  std::string digits, bytes;
  for (const char c : hex)
    if (c != ' ') digits += c;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) bytes += char(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string golden_idx() {
  return unhex("4d4d49444944580000 0100000000000000 08 0300000000000000 0300000000000000"
               "03000000 02000000 04000000"
               "0000000000000000 0600000000000000 0a00000000000000"
               "0000000000000000 0100000000000000 0300000000000000");
}

std::string golden_bin() { return unhex("0100 0200 0300 0400 0500 0600 0700 0800 0900"); }

void write_raw(const std::string& path, std::span<const int32_t> ids) {
  std::string bytes;
  for (const int32_t id : ids) append(bytes, uint16_t(id));
  write_bytes(path, bytes);
}

}  // namespace trainctl::data::test
