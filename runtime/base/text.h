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
/// What a download left in place of a file: "a Git LFS pointer; ..." or "an HTML page; ..."; "": neither.
///   begin   the first bytes of the file, a hundred or more
std::string stand_in(std::string_view begin);
/// Only the first of the two: an HTML page may be what is wanted. Such a file has less than 1024 bytes.
bool is_lfs_pointer(std::string_view begin);
/// The last non-empty line of `text`; "" if there is none.
std::string last_line_of(std::string_view text);

}  // namespace trainctl
