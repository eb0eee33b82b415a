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

/// A number with three digits in steps of 1000: "1.23 M", "8.1 k", "412"; "-" for NaN.
std::string short_number(double value);
/// A number of parameters or tokens, with B for 10^9: "1.24 B", "8.1 k".
std::string count_text(double n);
/// A count, exact below ten thousand: "9999", "12.3 k", "1.24 M", "3.00 G".
std::string tally_text(uint64_t n);
/// A number of FLOPs: "1.24 GFLOP"; above peta with an exponent: "3.21e18 FLOP".
std::string flop_text(double n);
/// A measured duration: "2d 6h", "3h 5m", "4m 12s", "8s"; "-" for a negative or infinite time.
std::string short_duration(double seconds);
/// An estimated duration: "0.25 s", "40 min", "3.5 h", "12.0 days", "5 years".
std::string duration_text(double seconds);
/// A file size, in powers of 1000: "112.4 GB", "999 B".
std::string size_text(uint64_t bytes);
/// A memory size, in powers of 1024: "1.50 TiB", "82.5 MiB", "0.5 KiB".
std::string memory_text(double bytes);
/// A memory size with fewer digits, for lists of terms: "1.2 GiB", "310 MiB".
std::string brief_memory_text(uint64_t bytes);

/// "2024-05-03T12:00:00Z".
std::string utc_text(double unix_s);

/// The bytes of one unit: KiB, MiB, GiB, TiB, kB, MB, GB, TB; nullopt for another text.
std::optional<double> bytes_of_unit(std::string_view unit);
/// The seconds of one unit: ms, s, m, min, h, d; nullopt for another text.
std::optional<double> seconds_of_unit(std::string_view unit);
/// The bytes of "80GiB" or "40 GB"; nullopt if the text is not a positive quantity below 2^60 bytes.
std::optional<uint64_t> bytes_of(const std::string& text);

}  // namespace trainctl
