#include "test/end_to_end/killed_tokenize.h"

#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/base/file_system.h"
#include "test/support/temporary_folder.h"

namespace trainctl::test {

std::string seeded_lines(size_t bytes, unsigned seed, int bad_every) {
  std::mt19937 random(seed);
  std::string lines;
  for (int i = 0; lines.size() < bytes; ++i) {
    if (bad_every > 0 && i % bad_every == bad_every - 1) lines += "not json\n";
    lines += "{\"id\":" + std::to_string(i) + ",\"text\":\"";
    for (int words = int(random() % 200); words > 0; --words) {
      for (int letters = 1 + int(random() % 8); letters > 0; --letters) lines += char('a' + random() % 26);
      lines += random() % 12 == 0 ? "\\n" : " ";
    }
    lines += "\"}\n";
  }
  return lines;
}

bool kill_some_time(Child& child, const std::string& progress, bool at_any_moment, double longest_s,
                    std::mt19937& random, const std::function<void()>& look) {
  const auto recorded = [&] {
    std::error_code gone;
    return std::filesystem::exists(progress, gone) ? read_file(progress) : "";
  };
  const std::string before = recorded();
  const auto moves_on = [&] {
    if (look) look();
    return !child.running() || recorded() != before;
  };
  if (!at_any_moment) REQUIRE(eventually(60, moves_on));
  real_clock().sleep_s(std::uniform_real_distribution<>(0, longest_s)(random));
  if (!child.running()) return false;
  if (look) look();
  child.signal(SIGKILL);
  return true;
}

bool is_tokenized(const std::string& prefix) {
  return std::filesystem::exists(prefix + ".bin") &&
         !std::filesystem::exists(prefix + ".partial/progress.json");
}

}  // namespace trainctl::test
