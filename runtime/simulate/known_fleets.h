// The fleet files that are part of the program; the build writes them from scripts/fleets.
#pragma once
#include <span>
#include <string_view>

namespace trainctl::simulate {

struct KnownFleet {
  std::string_view name, text;
};
std::span<const KnownFleet> known_fleets();

}  // namespace trainctl::simulate
