// What a burn-in found wrong with one place (runtime/machine/burn_in.h), as sentences. Pure.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/machine/burn_in.h"

namespace trainctl {

/// The first product with other bits than those of its row in `right`, where nullopt is: no bits are right;
/// "": there is none.
std::string wrong_product(const PlaceResult& place, const std::vector<std::optional<uint64_t>>& right);
/// "": each word was read as it was written.
std::string wrong_memory(const MemoryResult& memory);
/// Why the device of the place failed, its first cause: a GPU that threw in its work, or did not answer.
/// "": it did not. What else keeps a place from its end, others may have caused.
std::string failure_of(const PlaceResult& place);

/// Why the place must not be used, by its own results alone: "core 3: 2 of 40 results of ... have other bits
/// than the reference". "": nothing is known against it.
std::string wrong_place(const PlaceResult& place);

}  // namespace trainctl
