// Texts for messages: counts with a noun, quoted words, last lines. Pure; safe from any thread.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace trainctl {

/// "1 rank", "8 ranks". Pass a plural that does not just add an s: count_of(2, "entry", "entries").
std::string count_of(int64_t count, std::string_view noun, std::string_view plural = {});
/// `word` as one word of a POSIX shell command, in quotes if the shell needs them.
std::string shell_quoted(const std::string& word);
/// The last non-empty line of `text`; "" if there is none.
std::string last_line_of(std::string_view text);

}  // namespace trainctl
