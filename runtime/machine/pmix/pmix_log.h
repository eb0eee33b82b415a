// The text for people in what MPI asks its launcher to print.
#pragma once
#include <string>
#include <string_view>

namespace trainctl {

/// OpenMPI 4.1 sends a buffer in its own packing: names, numbers and the text, each string with its length
/// (4 bytes, the most significant first, the final 0 counted) before it. This is the longest run of printable
/// characters in it, without a length that looks like one; "" if there is none.
std::string longest_text(std::string_view buffer);

}  // namespace trainctl
