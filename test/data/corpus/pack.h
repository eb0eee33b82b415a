// Packs bytes as compressed files, for tests of what unpacks them.
#pragma once
#include <string>
#include <string_view>

namespace trainctl::data::test {

std::string gzipped(std::string_view bytes);
std::string zstd_packed(std::string_view bytes);

}  // namespace trainctl::data::test
