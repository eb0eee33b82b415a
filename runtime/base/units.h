// Units in messages and commands: counts, sizes, rates and durations as text, and quantities with a unit as
// numbers. Pure; safe from any thread.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainctl {

inline constexpr double kKibibyte = 1024, kMebibyte = 1024 * kKibibyte, kGibibyte = 1024 * kMebibyte,
                        kTebibyte = 1024 * kGibibyte;
inline constexpr double kMinuteS = 60, kHourS = 60 * kMinuteS, kDayS = 24 * kHourS;

/// "1.23 M", "8.1 k", "412"; three digits, steps of 1000; "-" for NaN.
std::string short_number(double value);
/// "1.24 B", "8.1 k": parameters and tokens, where 10^9 is B.
std::string count_text(double n);
/// "9999", exact below ten thousand; then "12.3 k", "1.24 M", "3.00 G".
std::string tally_text(uint64_t n);
/// "1.24 GFLOP", "3.21e18 FLOP": beyond peta by the exponent.
std::string flop_text(double n);
/// "2d 6h", "3h 5m", "4m 12s", "8s"; "-" for a negative or infinite time. What a clock has measured.
std::string short_duration(double seconds);
/// "0.25 s", "40 min", "3.5 h", "12.0 days", "5 years": an estimate.
std::string duration_text(double seconds);
/// Of files, in powers of 1000: "112.4 GB", "999 B".
std::string size_text(uint64_t bytes);
/// Of memory, in powers of 1024: "1.50 TiB", "82.5 MiB", "0.5 KiB".
std::string memory_text(double bytes);
/// Of memory with fewer digits, for lists of terms: "1.2 GiB", "310 MiB".
std::string brief_memory_text(uint64_t bytes);

/// Bytes of one unit: KiB, MiB, GiB, TiB, kB, MB, GB, TB; nothing for another text.
std::optional<double> bytes_of_unit(std::string_view unit);
/// Seconds of one unit: ms, s, m, min, h, d; nothing for another text.
std::optional<double> seconds_of_unit(std::string_view unit);
/// Bytes of "80GiB", "40 GB"; nothing for a text that is no positive quantity below 2^60 bytes.
std::optional<uint64_t> bytes_of(const std::string& text);

}  // namespace trainctl
