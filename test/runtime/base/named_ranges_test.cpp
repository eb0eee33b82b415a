// Goal: an address is named by the range that holds it, while that range lives. Method: ranges side by side,
// moved and ended; their first and last bytes, and those beside them.
#include <catch2/catch.hpp>

#include "runtime/base/named_ranges.h"

using namespace trainctl;

namespace {

std::string name_at(const char* address) {
  const NamedAddress found = named_address(address);
  return found.name ? found.name : "none";
}

}  // namespace

TEST_CASE("an address is named by the living range that holds it") {
  static const char bytes[100] = {};
  CHECK(name_at(bytes) == "none");
  NamedRange kept;
  {
    const NamedRange first(bytes, 10, "first");
    NamedRange second(bytes + 10, 20, "second");
    CHECK(name_at(bytes) == "first");
    CHECK(name_at(bytes + 9) == "first");
    CHECK(name_at(bytes + 10) == "second");
    CHECK(named_address(bytes + 29).bytes == 20);
    CHECK(name_at(bytes + 30) == "none");
    kept = std::move(second);
  }
  CHECK(name_at(bytes) == "none");
  CHECK(name_at(bytes + 10) == "second");
  kept = NamedRange();
  CHECK(name_at(bytes + 10) == "none");
}
