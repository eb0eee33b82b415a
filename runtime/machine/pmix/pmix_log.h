// Finds the text for people in the messages that MPI asks its launcher to print.
#pragma once
#include <string>
#include <string_view>

namespace trainctl {

/// The longest run of printable characters in `buffer`, without a length field that looks printable; "" if
/// there is none. OpenMPI 4.1 sends a buffer in its own format: names, numbers and the text. A length (4
/// bytes, big-endian, counts the final 0) precedes each string.
std::string longest_text(std::string_view buffer);

}  // namespace trainctl
