// Numbers that a person typed: digits and nothing else. The one reader of those of the command line. Pure.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace trainctl {

/// A whole number from 0 to `most`, in base ten ("010" is 10); nullopt for another text. A sign, spaces,
/// 0x10 and 1e3 are other texts.
std::optional<uint64_t> whole_number(std::string_view text,
                                     uint64_t most = std::numeric_limits<int64_t>::max());
/// A finite decimal number: "2", "-0.5", "1e-3"; nullopt for another text, such as one with a plus in front,
/// spaces, "0x10" or "nan".
std::optional<double> decimal_number(std::string_view text);

}  // namespace trainctl
