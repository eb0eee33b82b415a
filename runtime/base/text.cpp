#include "runtime/base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace trainctl {

std::string count_of(int64_t count, std::string_view noun, std::string_view plural) {
  if (count == 1) return fmt::format("1 {}", noun);
  return plural.empty() ? fmt::format("{} {}s", count, noun) : fmt::format("{} {}", count, plural);
}

std::string shell_quoted(const std::string& text) {
  const bool plain =
      !text.empty() &&
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%^") ==
          std::string::npos;
  if (plain) return text;
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

std::string last_line_of(std::string_view text) {
  const size_t last = text.find_last_not_of("\n\r ");
  if (last == std::string_view::npos) return "";
  const size_t before = text.find_last_of("\n\r", last);
  const size_t begin = before == std::string_view::npos ? 0 : before + 1;
  return std::string(text.substr(begin, last - begin + 1));
}

bool is_lfs_pointer(std::string_view begin) {
  return begin.starts_with("version https://git-lfs.github.com/");
}

std::string stand_in(std::string_view begin) {
  if (is_lfs_pointer(begin))
    return "a Git LFS pointer, not the file that it stands for; `git lfs pull` in its repository fetches "
           "that";
  const size_t first = begin.find_first_not_of(" \t\r\n");
  const std::string_view text = begin.substr(std::min(first, begin.size()));
  const auto begins = [&](std::string_view word) {
    return text.size() >= word.size() &&
           std::equal(word.begin(), word.end(), text.begin(),
                      [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? char(b - 'A' + 'a') : b); });
  };
  if (begins("<!doctype html") || begins("<html"))
    return "an HTML page, not the file; the download ended at an error or a login: repeat it";
  return "";
}

}  // namespace trainctl
