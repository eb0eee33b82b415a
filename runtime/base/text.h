// Texts for counts, sizes and durations in messages. Pure; safe from any thread.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace trainctl {

/// "1 rank", "8 ranks". Pass a plural that does not just add an s: count_of(2, "entry", "entries").
std::string count_of(int64_t count, std::string_view noun, std::string_view plural = {});
/// "1.23 M", "8.1 k", "412"; "-" for NaN.
std::string short_number(double value);
/// "2d 6h", "3h 5m", "4m 12s", "8s"; "-" for a negative or infinite time.
std::string short_duration(double seconds);
/// A file size, in powers of 1000: "112.4 GB", "999 B".
std::string size_text(uint64_t bytes);
/// A memory size, in powers of 1024: "1.50 TiB", "82.5 MiB", "0.5 KiB".
std::string memory_text(double bytes);
/// `word` as one word of a POSIX shell command, in quotes if the shell needs them.
std::string shell_quoted(const std::string& word);
/// The last non-empty line of `text`; "" if there is none.
std::string last_line_of(std::string_view text);

}  // namespace trainctl
